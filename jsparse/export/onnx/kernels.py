"""Kernel values as ONNX formulas, one function for each node of `predictor.kernels`.

The formulas equal the formulas of `jsparse.kernels`, in the same precision. Each node costs about
half a microsecond for each call, so the affine maps of the rows are merged. Whatever depends on the
prototypes alone is written as a formula, so that a file stores each array once; programs compute it
once, when they load the file.
"""

import functools

import numpy as np

from ...predictor import kernels
from .graph import Tensor
from .rows import Points, Rows, centred


@functools.singledispatch
def cross_gram(kernel: kernels.Kernel, X: Rows, Z: Points) -> Tensor:
    """Return `k(x_i, z_j)` for the rows of `X (n, d)` and `Z (m, d)`, shape `n m`."""
    raise NotImplementedError(f"no ONNX formula for the kernel {type(kernel).__name__}")


@cross_gram.register
def _(kernel: kernels.Stationary, X: Rows, Z: Points) -> Tensor:
    U, V = centred(X, Z, _unit(kernel, Z.width))
    return profile(kernel, _minus_squares(kernel, U, V, Z.width))


@cross_gram.register
def _(kernel: kernels.Linear, X: Rows, Z: Points) -> Tensor:
    return _products(X.tensor, Z.tensor) + float(kernel.offset)


@cross_gram.register
def _(kernel: kernels.Polynomial, X: Rows, Z: Points) -> Tensor:
    base = _products(X.tensor, Z.tensor) * float(kernel.scale) + float(kernel.offset)
    return kernels.power(base, kernel.degree)  # the operator Pow is slow


@cross_gram.register
def _(kernel: kernels.Sum, X: Rows, Z: Points) -> Tensor:
    return cross_gram(kernel.left, X, Z) + cross_gram(kernel.right, X, Z)


@cross_gram.register
def _(kernel: kernels.Product, X: Rows, Z: Points) -> Tensor:
    return cross_gram(kernel.left, X, Z) * cross_gram(kernel.right, X, Z)


@cross_gram.register
def _(kernel: kernels.Scaled, X: Rows, Z: Points) -> Tensor:
    return cross_gram(kernel.kernel, X, Z) * float(kernel.variance)


@cross_gram.register
def _(kernel: kernels.Mixed, X: Rows, Z: Points) -> Tensor:
    inner, codes = kernel.kernel, np.array(kernel.columns)
    assert isinstance(inner, kernels.Stationary)
    numbers = np.setdiff1d(np.arange(Z.width), codes)
    unit, graph = _unit(inner, Z.width), X.raw.graph
    # One entry for each row, prototype and column of codes.
    row_codes, point_codes = X.tensor.columns(codes), Z.tensor.columns(codes)
    equal = graph.op("Equal", row_codes.with_axis(1), point_codes.with_axis(0))
    rates = 2 / np.square(unit[codes])
    total = graph.op("Not", equal).cast() @ (-rates).astype(graph.dtype)
    if len(numbers):
        U, V = centred(X.columns(numbers), Z.columns(numbers), unit[numbers])
        total = total + _minus_squares(inner, U, V, len(numbers))
    return profile(inner, total)


@cross_gram.register
def _(kernel: kernels.Projected, X: Rows, Z: Points) -> Tensor:
    inner, dtype = kernel.kernel, X.raw.graph.dtype
    to_mapped = np.asarray(kernel.matrix, float).T
    if isinstance(inner, kernels.Stationary):  # a shift changes no distance
        width = to_mapped.shape[1]
        U, V = centred(X, Z, np.ones(Z.width), to_mapped / _unit(inner, width))
        return profile(inner, _minus_squares(inner, U, V, width))
    matrix = to_mapped.astype(dtype)
    mapped = Points(Z.array @ matrix, Z.tensor @ matrix)
    return cross_gram(inner, Rows(X.tensor @ matrix), mapped)


@cross_gram.register
def _(kernel: kernels.Mixture, X: Rows, Z: Points) -> Tensor:
    groups = [np.flatnonzero(kernel.which == number) for number in range(len(kernel.kernels))]
    parts = [
        cross_gram(part, X, Z.rows(prototypes))
        for part, prototypes in zip(kernel.kernels, groups, strict=True)
        if len(prototypes)
    ]
    return X.raw.graph.concatenated(parts).columns(np.argsort(np.concatenate(groups)))


def _unit(kernel: kernels.Stationary, d: int) -> np.ndarray:
    """Return the lengthscales of `d` columns, divided by the root of `_factor`, in float64."""
    return np.broadcast_to(kernel.lengthscale / np.sqrt(_factor(kernel)), d).astype(float)


def _factor(kernel: kernels.Stationary) -> float:
    """Return `a` if the kernel's profile is a function of `a s`, `s` the squared distance."""
    if isinstance(kernel, kernels.RationalQuadratic):
        return 0.5 / float(kernel.alpha)
    return {kernels.RBF: 0.5, kernels.Laplacian: 1.0, kernels.Matern32: 3.0}.get(type(kernel), 5.0)


@functools.singledispatch
def profile(kernel: kernels.Stationary, q: Tensor) -> Tensor:
    """Return kernel values, given `q`: minus the squared scaled distances times `_factor`."""
    raise NotImplementedError(f"no ONNX formula for the kernel {type(kernel).__name__}")


@profile.register
def _(kernel: kernels.RBF, q: Tensor) -> Tensor:
    return q.graph.op("Exp", q)


@profile.register
def _(kernel: kernels.Laplacian, q: Tensor) -> Tensor:
    return q.graph.op("Exp", -_root(q))


@profile.register
def _(kernel: kernels.Matern32, q: Tensor) -> Tensor:
    r = _root(q)
    return (1.0 + r) * q.graph.op("Exp", -r)


@profile.register
def _(kernel: kernels.Matern52, q: Tensor) -> Tensor:
    r = _root(q)
    return (1.0 + r - q / 3.0) * q.graph.op("Exp", -r)


@profile.register
def _(kernel: kernels.RationalQuadratic, q: Tensor) -> Tensor:
    # ONNX has no log1p. The rounding error of 1 + t cancels in log(1 + t) t / ((1 + t) - 1).
    graph, t = q.graph, -q
    above = 1.0 + t
    rounded = above - 1.0
    zero = graph.op("Equal", rounded, 0.0)
    ratio = graph.op("Log", above) / graph.op("Where", zero, 1.0, rounded)
    log1p = t * graph.op("Where", zero, 1.0, ratio)
    return graph.op("Exp", log1p * -float(kernel.alpha))


def _root(q: Tensor) -> Tensor:
    """Return `sqrt(-q)`."""
    return q.graph.op("Sqrt", -q)


def _products(X: Tensor, Z: Tensor) -> Tensor:
    """Return the inner products of the rows of `X (n, d)` and of `Z (m, d)`, shape `n m`."""
    return X @ X.graph.op("Transpose", Z, perm=[1, 0])


def _minus_squares(kernel: kernels.Stationary, U: Tensor, V: Tensor, width: int) -> Tensor:
    """Return `2 u.v - |v|^2 - |u|^2`, shape `n m`, for centred points in units of `_unit`.

    The RBF kernel needs no bound at 0: its relative error is the absolute error of the formula,
    whatever the sign. For the other kernels the values are at most 0. For a kernel with a cusp,
    values within the error of the formula become 0.
    """
    graph = U.graph
    U_norms = U.reduced("ReduceSumSquare", 1, keep=True)
    V_norms = V.reduced("ReduceSumSquare", 1)
    q = graph.op("Gemm", U, V, V_norms, alpha=2.0, beta=-1.0, transB=1) - U_norms
    if isinstance(kernel, kernels.RBF):
        return q
    if not kernel.cusp:
        return graph.op("Min", q, 0.0)
    error = (3 + float(np.sqrt(width))) * float(np.finfo(graph.dtype).eps)
    noise = (U_norms + V_norms) * -error
    return graph.op("Where", graph.op("GreaterOrEqual", q, noise), 0.0, q)
