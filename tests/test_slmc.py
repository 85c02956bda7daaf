"""Sparse large margin classifiers as a method: sharing, starts, repeated rows, bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse.kernels import RBF
from jsparse.machines.method import TrainingRows
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization

KEY = jax.random.key(0)


def three_classes(n=60):
    rng = np.random.default_rng(0)
    label = np.arange(n) % 3
    X = rng.standard_normal((n, 2)) + 2 * np.stack([label == 1, label == 2], axis=1)
    return jnp.asarray(X), jnp.asarray(label.astype(np.int32))


@pytest.mark.parametrize("sharing", ["shared", "separate"])
def test_a_descent_lowers_the_objective_of_the_machine_it_starts_from(sharing):
    X, label = three_classes()
    code = output_code("one_versus_rest", 3).astype(X.dtype)
    start = jsparse.ReducedSVM(4).fit(RBF(1.0), X[:4], 10.0, X, label, code=code)
    found = jsparse.SLMC(4, sharing=sharing).fit(RBF(1.0), X[:4], 10.0, X, label, code=code)
    Z, beta = found.expansion.prototypes, np.asarray(found.expansion.coefficients)
    assert beta.shape == ((4, 3) if sharing == "shared" else (12, 3))
    # By NumPy, from the machine itself.
    K = np.exp(-np.square(np.asarray(Z)[:, None] - np.asarray(Z)[None]).sum(-1) / 2)
    y = np.asarray(code.matrix)[np.asarray(label)]
    short = np.maximum(1 - y * np.asarray(found.expansion(X)), 0)
    objective = np.sum(beta * (K @ beta)) / 2 + 10 * short.sum()
    ends = np.take_along_axis(
        np.atleast_2d(found.history), np.atleast_1d(found.steps)[:, None], axis=1
    )
    np.testing.assert_allclose(objective, ends.sum(), rtol=1e-5)
    starts = np.atleast_2d(found.history)[:, 0].sum()
    np.testing.assert_allclose(starts, start.objective, rtol=1e-7)
    assert objective < 0.8 * starts
    if sharing == "separate":  # each problem's machine is made of its own prototypes
        assert (np.count_nonzero(beta, axis=1) == 1).all()


def test_rows_that_are_there_several_times_are_chosen_once():
    X = np.repeat(np.random.default_rng(0).standard_normal((10, 2)), 6, axis=0)
    scaling = Standardization(jnp.zeros(2), jnp.ones(2))
    rows = TrainingRows(jnp.asarray(X), np.arange(60) // 30, np.ones(60), scaling, 60)
    for selection in ("renyi", "uniform"):
        found = jsparse.SLMC(8, selection).points(KEY, RBF(1.0), rows)
        assert len(np.unique(np.asarray(found.X), axis=0)) == 8


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (jsparse.SLMC, {"n_prototypes": 0}, "n_prototypes: expected a whole number between 1"),
        (jsparse.SLMC, {"n_prototypes": [2, 4]}, "n_prototypes: expected a whole number"),
        (jsparse.SLMC, {"n_prototypes": 200}, "between 1 and the number of rows"),
        (jsparse.SLMC, {"selection": "center"}, "selection: expected one of"),
        (jsparse.SLMC, {"sharing": "joint"}, "sharing: expected 'shared' or 'separate'"),
        (jsparse.SLMC, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.ReducedSVM, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.SLMC, {"tolerance": -1.0}, "tolerance: expected a number of at least 0"),
        (jsparse.SLMC, {"max_steps": 0}, "max_steps: expected a whole number between 1"),
    ],
)
def test_bad_settings_are_told(kind, options, match, as_users_call):
    X, y = (np.asarray(a) for a in three_classes())
    with pytest.raises(ValueError, match=match):
        jsparse.train(X, y, task="classification", key=0, method=kind(**options))
