"""The fixed-size LS-SVM: ridge regression in Nystroem features of a few prototypes."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import default_block_rows, map_row_blocks, sum_row_blocks
from .._numerics import dot, epsilon, like
from .._status import CONVERGED, PRECISION_LOST
from ..solvers.ridge import ridge_system
from .._types import Scalar, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap, nystroem
from ..kernels import Kernel
from ..normal_equations import NormalEquations, accumulate


class FixedSizeFit(NamedTuple):
    """A fitted fixed-size LS-SVM and what is known of its solve."""

    expansion: KernelExpansion
    degrees_of_freedom: Float[Array, ""]  # sum_i d_i / (d_i + 1/C) of the centred gram
    effective_rank: Int[Array, ""]  # features above rounding noise
    relative_residual: Float[Array, ""]  # of the ridge system
    status: Int[Array, ""]


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit a fixed-size LS-SVM (De Brabanter 2010, eq. 6-7 with squared loss)."""
    return fit_features(
        nystroem(kernel, prototypes),
        C,
        X,
        y,
        weights,
        intercept_penalty=intercept_penalty,
        block_rows=block_rows,
    )


def fit_features(
    feature_map: FeatureMap,
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """fixme."""
    w = jnp.ones(X.shape[0], X.dtype) if weights is None else weights
    return _fit(
        feature_map,
        like(C, X),
        X,
        y,
        w,
        like(intercept_penalty, X),
        block_rows=block_rows or default_block_rows(),
    )


@functools.partial(jax.jit, static_argnames=("block_rows", "steps"))
def _fit(feature_map, C, X, y, w, intercept_penalty, block_rows, steps=3):
    outputs = y.shape[1:]
    Y = y.reshape(y.shape[0], -1)
    equations = accumulate(feature_map, X, Y, w, block_rows=block_rows)
    system = ridge_system(
        equations.gram, equations.feature_sum, equations.weight_sum, intercept_penalty
    )
    start = system.solve(C[None], equations.cross, equations.target_sum)
    start = jax.tree.map(lambda a: a[0], start)

    def pull_back(direction, target):
        """`[Phi 1]' W (target - [Phi 1] direction)`, and the penalty."""

        def block(x, target, w):
            def predict(weights, intercept):
                return feature_map.expansion(weights, intercept)(x, block_rows=block_rows)

            values, transpose = jax.vjp(predict, *direction)
            return transpose(w[:, None] * (target - values))

        zero = jax.tree.map(jnp.zeros_like, direction)
        g, gb = sum_row_blocks(block, (X, target, w), zero, block_rows)
        return g - direction[0] / C, gb - intercept_penalty / C * direction[1]

    def precondition(r):
        return jax.tree.map(lambda a: a[0], system.solve(C[None], *r))

    def inner(a, b):
        return jnp.sum(a[0] * b[0], axis=0) + a[1] * b[1]

    def axpy(alpha, a, b):
        return a[0] * alpha[None] + b[0], a[1] * alpha + b[1]

    start_ = jax.lax.stop_gradient(start)
    energy = inner(start_, (equations.cross, equations.target_sum))
    r = pull_back(start_, Y)
    z = precondition(r)
    p = z
    rz = inner(r, z)
    x = start_
    hist = [jnp.sqrt(jnp.maximum(rz, 0) / energy)]
    for _ in range(steps):
        Ap = jax.tree.map(jnp.negative, pull_back(p, jnp.zeros_like(Y)))
        pAp = inner(p, Ap)
        alpha = jnp.where(pAp > 0, rz / jnp.where(pAp > 0, pAp, 1), 0)
        x = axpy(alpha, p, x)
        r = axpy(-alpha, Ap, r)
        z = precondition(r)
        new = inner(r, z)
        p = axpy(new / jnp.where(rz > 0, rz, 1), p, z)
        rz = new
        hist.append(jnp.sqrt(jnp.maximum(rz, 0) / energy))
    hist = jnp.stack(hist)
    r2 = pull_back(x, Y)
    true = jnp.sqrt(jnp.maximum(inner(r2, precondition(r2)), 0) / energy)
    exp0 = feature_map.expansion(start[0].reshape(-1, *outputs), start[1].reshape(outputs))
    exp = feature_map.expansion(x[0].reshape(-1, *outputs), x[1].reshape(outputs))
    return exp0, exp, hist, true, system.centred.values, equations.weight_sum
