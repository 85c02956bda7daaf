"""Models of every kernel, task, code and precision, made without training."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jsparse import Model, kernels
from jsparse.conformal import ConformalScores
from jsparse.expansion import KernelExpansion
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization, normal_scores

M, D = 80, 4  # 1,000 rows are too many for NumPy, so a `Model` predicts them by JAX


def every_kernel():
    """Return each kernel, alone and in combinations that a search or a user makes."""
    rng = np.random.default_rng(0)
    by_column = kernels.RBF(np.linspace(0.8, 2.5, D))
    which = np.arange(M) % 3
    several = (kernels.RBF(1.5), kernels.Laplacian(2.0), kernels.Matern32(1.1))
    return {
        "rbf": by_column,
        "laplacian": kernels.Laplacian(2.0),
        "matern32": kernels.Matern32(1.3),
        "matern52": kernels.Matern52(np.linspace(1.0, 2.0, D)),
        "rational": kernels.RationalQuadratic(1.1, 0.6),
        "linear": kernels.Linear(0.3),
        "polynomial": kernels.Polynomial(3, 0.4, 1.2),
        "composed": 0.3 * (by_column + kernels.Linear(0.1) * kernels.Polynomial(2, 0.4, 1.2)),
        "mixed": kernels.Mixed(kernels.Matern52(np.linspace(1.0, 2.0, D)), (1, 3)),
        "mixed cusp": 2.0 * kernels.Mixed(kernels.Laplacian(1.5), (2,)),
        "projected": kernels.Projected(kernels.RBF(1.3), rng.normal(size=(2, D))),
        "projected linear": kernels.Projected(kernels.Polynomial(2), rng.normal(size=(5, D))),
        "mixed and projected": kernels.Mixed(kernels.RBF(1.1), (1,))
        + kernels.Projected(kernels.RBF(1.3), rng.normal(size=(2, D))),
        "mixture": kernels.Mixture(several, which),
    }


TASKS = {
    "regression": (None, "loss"),
    "targets": (None, "loss"),
    "quantiles": (None, "loss"),
    "two": (None, "loss"),
    "one_versus_one": ("one_versus_one", "loss"),
    "hamming": ("one_versus_one", "hamming"),
    "one_versus_rest": ("one_versus_rest", "loss"),
    "rest by hamming": ("one_versus_rest", "hamming"),
    "minimum_output": ("minimum_output", "hamming"),
    "output by loss": ("minimum_output", "loss"),
}


def every_pair(kernels):
    """Return each kernel with each task; fast are one task for each kernel, and every task."""
    fast = [(kernel, list(TASKS)[i % len(TASKS)]) for i, kernel in enumerate(kernels)]
    return [
        pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow, id="-".join(pair))
        for pair in itertools.product(kernels, TASKS)
    ]


def a_model(kernel, task="regression", dtype="float64", *, scaling="standard", folds=0):
    """Return a model with random prototypes and coefficients, probabilities, and errors."""
    scheme, decoding = TASKS[task]
    code = None if scheme is None else output_code(scheme, 4)
    classes = {"regression": 0, "targets": 0, "quantiles": 0, "two": 2}.get(task, 4)
    quantiles = (0.1, 0.5, 0.9) if task == "quantiles" else ()
    outputs = {"targets": (2,), "quantiles": (3,)}.get(task, ())
    outputs = outputs if code is None else code.matrix.shape[1:]
    rng = np.random.default_rng(1)

    def array(values):
        return jax.device_put(np.asarray(values, dtype))

    with jax.enable_x64(dtype == "float64"):
        prototypes = np.round(rng.normal(size=(M, D)), 1)
        scale = {
            "standard": lambda: Standardization(array(rng.normal(size=D)), array(np.full(D, 1.5))),
            "ranks": lambda: normal_scores(rng.normal(size=(50, D)).astype(dtype), n_knots=9),
            "none": lambda: None,
        }[scaling]()
        parts = array(rng.normal(size=(M, *outputs))), array(rng.normal(size=outputs))
        expansion = KernelExpansion(kernel, array(prototypes), *parts, scale)
        single = classes or quantiles
        errors = np.abs(rng.normal(size=(30, *(() if single else outputs)))).astype(dtype)
        errors = errors - 0.3 if quantiles else errors  # a target between them has one below 0
        counts = np.arange(30, dtype=np.int32) % 4 + 1  # rows that each error represents
        conformal = ConformalScores(errors, counts=counts)
        if folds:
            columns = folds * max(1, int(np.prod(outputs)))
            machines = KernelExpansion(
                kernel, array(prototypes), array(rng.normal(size=(M, columns))),
                array(rng.normal(size=columns)),
            )  # fmt: skip
            fold = np.arange(30, dtype=np.int32) % folds
            conformal = ConformalScores(errors, fold, machines, counts)
    labels = tuple("abcd"[:classes]) or None
    temperatures = np.linspace(0.5, 2.0, classes) if classes else None
    return Model(
        expansion,
        inverse_temperatures=temperatures,
        conformal=conformal,
        code=code,
        decoding=decoding,
        labels=labels,
        label_dtype="<U1" if labels else "",
        quantiles=quantiles,
    )


def numbered(model, labels=None):
    """Return a classifier with whole numbers, or other labels, instead of texts."""
    labels = tuple(range(3, 3 + len(model.labels))) if labels is None else labels
    return dataclasses.replace(model, labels=labels, label_dtype=np.array(labels).dtype.str)


def rows(n=1000, dtype="float64"):
    """Return rows, of which some are equal to others in some columns, as categories are."""
    return np.round(np.random.default_rng(2).normal(size=(n, D)), 1).astype(dtype)


def table_model(frame, labels=()):
    """Return a model of the columns of a `Frame`, of numbers or of two classes."""
    targets = np.resize(labels or [0.5, 1.5], frame.n_rows)
    X, _, schema = frame.arrays(targets, "classification" if labels else "regression")
    return schema_model(schema, X, labels)


def schema_model(schema, X, labels=()):
    """Return a model with random coefficients of columns and rows that they encode."""
    codes, rng = schema.codes, np.random.default_rng(0)
    scale = np.where(np.isin(np.arange(X.shape[1]), codes), 1, X.std(axis=0))
    kernel = kernels.Mixed(kernels.RBF(3.0), codes) if codes else kernels.RBF(3.0)
    with jax.enable_x64(True):
        beta = rng.normal(size=8)
        beta -= beta.mean()  # so that both classes are predicted
        parts = X[:8] / scale, beta, np.zeros(()), 0 * scale, scale
        Z, beta, b, shift, scale = map(jax.device_put, parts)
        machine = KernelExpansion(kernel, Z, beta, b, Standardization(shift, scale))
    if not labels:
        return Model(machine, columns=schema)
    names = np.array(labels)
    return Model(
        machine, inverse_temperatures=np.array([0.5, 2.0]), labels=tuple(names.tolist()),
        label_dtype=names.dtype.str, columns=schema,
    )  # fmt: skip
