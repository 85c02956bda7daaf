"""Kernel values as ONNX formulas, one function for each node of `predictor.kernels`.

The formulas equal the formulas of `jsparse.kernels`, in the same precision. Whatever depends on the
prototypes alone is written as a formula, too, so that a file stores each array once.
"""

import functools

import numpy as np

from ...predictor import kernels
from .graph import Tensor


@functools.singledispatch
def cross_gram(kernel: kernels.Kernel, X: Tensor, Z: Tensor, d: int) -> Tensor:
    """Return `k(x_i, z_j)` for the rows of `X (n, d)` and `Z (m, d)`, shape `n m`."""
    raise NotImplementedError(f"no ONNX formula for the kernel {type(kernel).__name__}")


@cross_gram.register
def _(kernel: kernels.Stationary, X: Tensor, Z: Tensor, d: int) -> Tensor:
    scale = np.broadcast_to(kernel.lengthscale, d)
    return profile(kernel, _minus_squares(kernel, X, Z, scale))


@cross_gram.register
def _(kernel: kernels.Linear, X: Tensor, Z: Tensor, d: int) -> Tensor:
    return _products(X, Z) + float(kernel.offset)


@cross_gram.register
def _(kernel: kernels.Polynomial, X: Tensor, Z: Tensor, d: int) -> Tensor:
    base = _products(X, Z) * float(kernel.scale) + float(kernel.offset)
    power, degree = None, kernel.degree
    while degree:  # repeated squaring, as the operator Pow is slow
        if degree & 1:
            power = base if power is None else power * base
        degree >>= 1
        base = base * base if degree else base
    assert power is not None
    return power


@cross_gram.register
def _(kernel: kernels.Sum, X: Tensor, Z: Tensor, d: int) -> Tensor:
    return cross_gram(kernel.left, X, Z, d) + cross_gram(kernel.right, X, Z, d)


@cross_gram.register
def _(kernel: kernels.Product, X: Tensor, Z: Tensor, d: int) -> Tensor:
    return cross_gram(kernel.left, X, Z, d) * cross_gram(kernel.right, X, Z, d)


@cross_gram.register
def _(kernel: kernels.Scaled, X: Tensor, Z: Tensor, d: int) -> Tensor:
    return cross_gram(kernel.kernel, X, Z, d) * float(kernel.variance)


@cross_gram.register
def _(kernel: kernels.Mixed, X: Tensor, Z: Tensor, d: int) -> Tensor:
    inner, codes = kernel.kernel, np.array(kernel.columns)
    assert isinstance(inner, kernels.Stationary)
    numbers = np.setdiff1d(np.arange(d), codes)
    scale = np.broadcast_to(inner.lengthscale, d)
    graph = X.graph
    # One entry for each row, prototype and column of codes.
    equal = graph.op("Equal", X.columns(codes).with_axis(1), Z.columns(codes).with_axis(0))
    rates = 2 * _factor(inner) / np.square(scale[codes].astype(float))
    total = graph.op("Not", equal).cast() @ (-rates).astype(graph.dtype)
    if len(numbers):
        total = total + _minus_squares(
            inner, X.columns(numbers), Z.columns(numbers), scale[numbers]
        )
    return profile(inner, total)


@cross_gram.register
def _(kernel: kernels.Projected, X: Tensor, Z: Tensor, d: int) -> Tensor:
    to_mapped = kernel.matrix.T.astype(X.graph.dtype)
    if isinstance(kernel.kernel, kernels.Stationary):  # a shift changes no distance
        centre = Z.reduced("ReduceMean", 0, keep=True)
        X, Z = X - centre, Z - centre
    return cross_gram(kernel.kernel, X @ to_mapped, Z @ to_mapped, to_mapped.shape[1])


@cross_gram.register
def _(kernel: kernels.Mixture, X: Tensor, Z: Tensor, d: int) -> Tensor:
    places = [np.flatnonzero(kernel.which == number) for number in range(len(kernel.kernels))]
    parts = [
        cross_gram(part, X, Z.rows(place), d)
        for part, place in zip(kernel.kernels, places, strict=True)
        if len(place)
    ]
    return X.graph.concatenated(parts).columns(np.argsort(np.concatenate(places)))


def _factor(kernel: kernels.Stationary) -> float:
    """Return `a` for a kernel whose profile is a function of `a s`, `s` the squared distance."""
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
    """Return the inner products of all rows, shape `n m`."""
    return X @ X.graph.op("Transpose", Z, perm=[1, 0])


def _minus_squares(
    kernel: kernels.Stationary, X: Tensor, Z: Tensor, lengthscale: np.ndarray
) -> Tensor:
    """Return minus the squared scaled distances times `_factor`, at most 0, shape `n m`.

    They are `2 u.v - |v|^2 - |u|^2` of points less the mean of `Z`, so that an offset of the data
    costs no digits. For a kernel with a cusp, distances within the error of the formula become 0.
    """
    graph = X.graph
    scale = lengthscale.astype(graph.dtype) / np.sqrt(_factor(kernel))
    centre = Z.reduced("ReduceMean", 0, keep=True)
    U, V = ((points - centre) / scale.astype(graph.dtype) for points in (X, Z))
    U_norms = U.reduced("ReduceSumSquare", 1, keep=True)
    V_norms = V.reduced("ReduceSumSquare", 1)
    q = graph.op("Gemm", U, V, V_norms, alpha=2.0, beta=-1.0, transB=1) - U_norms
    if not kernel.cusp:
        return graph.op("Min", q, 0.0)
    error = (3 + float(np.sqrt(len(scale)))) * float(np.finfo(graph.dtype).eps)
    noise = (U_norms + V_norms) * -error
    return graph.op("Where", graph.op("GreaterOrEqual", q, noise), 0.0, q)
