"""Models of every kernel and task, made without a fit, and the program that runs their files."""

import dataclasses

import jax
import numpy as np
import onnxruntime

from jsparse import Model, kernels, scaling
from jsparse.expansion import KernelExpansion
from jsparse.multiclass import output_code

D, M = 3, 8  # inputs and prototypes
LENGTHSCALES = np.array([0.7, 1.1, 2.0])
_MATRIX = np.array([[0.5, -1.0, 0.2], [1.0, 0.3, -0.7]])

with jax.enable_x64(True):
    KERNELS = {
        "RBF": kernels.RBF(LENGTHSCALES),
        "Laplacian": kernels.Laplacian(1.3),
        "Matern32": kernels.Matern32(LENGTHSCALES),
        "Matern52": kernels.Matern52(0.9),
        "RationalQuadratic": kernels.RationalQuadratic(LENGTHSCALES, 3.3),
        "RationalQuadratic, almost RBF": kernels.RationalQuadratic(1.0, 1e4),
        "Linear": kernels.Linear(0.5),
        "Polynomial": kernels.Polynomial(3, 0.5, 0.7),
        "Sum": kernels.RBF(1.0) + kernels.Linear(0.2),
        "Product": kernels.Matern32(2.0) * kernels.Polynomial(2),
        "Scaled": 2.5 * kernels.Matern52(LENGTHSCALES),
        "Mixed": kernels.Mixed(kernels.RBF(LENGTHSCALES), (1,)),
        "Mixed, a cusp": kernels.Mixed(kernels.Laplacian(LENGTHSCALES), (0, 2)),
        "Mixed, codes only": kernels.Mixed(kernels.Matern52(1.5), (0, 1, 2)),
        "Projected": kernels.Projected(kernels.RBF(1.2), _MATRIX),
        "Projected, products": kernels.Projected(kernels.Linear(), _MATRIX),
        "Mixture": kernels.Mixture(
            (kernels.RBF(1.0), kernels.Linear(), kernels.Laplacian(2.0), kernels.RBF(3.0)),
            np.array([0, 2, 1, 0, 1, 2, 2, 0]),
        ),
        "nested": 0.5 * kernels.Projected(kernels.RBF(LENGTHSCALES[:2]), _MATRIX)
        + kernels.Product(kernels.Matern32(3.0), kernels.Linear(1.0)),
    }
SCHEMES = ("one_versus_one", "one_versus_rest", "minimum_output")
TASKS = (
    "number",
    "several numbers",
    "two",
    *(f"{s}, {decoding}" for s in SCHEMES for decoding in ("loss", "hamming")),
)
SCALINGS = ("none", "standard", "ranks")


def rows(n, dtype, codes=False):
    """Rows about (0, 3, -2); with `codes` whole numbers."""
    X = np.random.default_rng(n).standard_normal((n, D)) * [1, 2, 1] + [0, 3, -2]
    return (np.round(X) if codes else X).astype(dtype)


def make(kernel="RBF", task="two", dtype="float64", scaling_of="standard", labels=None):
    """A model with random coefficients."""
    rng = np.random.default_rng(0)
    k = 5 if "," in task else 2
    code = output_code(task.split(",")[0], k) if k == 5 else None
    outputs = {"several numbers": (2,)}.get(task, () if code is None else code.matrix.shape[1:])
    codes = kernel.startswith("Mixed")
    training = rows(300, dtype, codes)
    with jax.enable_x64(dtype == "float64"):
        scale = None
        if scaling_of == "standard" and not codes:
            scale = scaling.standardize(jax.device_put(training))
        elif scaling_of == "ranks" and not codes:
            scale = scaling.normal_scores(training, n_knots=20)
        scale, kernel = in_dtype((scale, KERNELS[kernel]), dtype)
        prototypes = training[:M]
        if scale is not None:
            prototypes = np.asarray(scale.apply(jax.device_put(prototypes)))
        arrays = prototypes, rng.standard_normal((M, *outputs)), rng.standard_normal(outputs)
        expansion = KernelExpansion(kernel, *in_dtype(arrays, dtype), scale)
    if "number" in task:
        return Model(expansion)
    labels = tuple(f"class {i}" for i in range(k)) if labels is None else labels
    return Model(
        expansion,
        inverse_temperatures=np.linspace(0.5, 1.5, k),
        code=code,
        decoding=task.partition(", ")[2] or "loss",
        labels=labels,
        label_dtype=np.array(labels).dtype.str,
    )


def in_dtype(tree, dtype):
    """Return a pytree with its floating arrays in `dtype`."""
    return jax.tree.map(
        lambda leaf: jax.device_put(np.asarray(leaf, dtype) if leaf.dtype.kind == "f" else leaf),
        jax.tree.map(np.asarray, tree),
    )


def without_probabilities(model):
    return dataclasses.replace(model, inverse_temperatures=None)


class Program:
    """A file as onnxruntime runs it."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the tests run side by side
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {i.name: i.type for i in session.get_inputs()}
        self.outputs = {o.name: o.type for o in session.get_outputs()}
        self.session = session

    def __call__(self, **columns):
        return dict(zip(self.outputs, self.session.run(None, columns), strict=True))


def program(model, tmp_path):
    path = tmp_path / "model.onnx"
    model.to_onnx(path)
    return Program(path)
