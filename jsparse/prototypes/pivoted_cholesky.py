"""Prototypes by randomly pivoted Cholesky, which prefers rows that earlier ones do not explain."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments import as_key
from .._numerics import dot, epsilon
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, KeyLike
from ..kernels import Kernel
from ._validate import check_table, check_weighted


class PivotedCholeskyResult(NamedTuple):
    """Rows in the order in which they were drawn.

    Attributes:
        indices: rows of X, all different, shape `m`.
        residual: relative trace of the error of the Nystroem approximation from the first 1, 2, ..
            m rows, shape `m`. It never increases.
    """

    indices: Int[Array, " m"]
    residual: Float[Array, " m"]

    __repr__ = short_repr


def pivoted_cholesky(
    key: KeyLike,
    kernel: Kernel,
    X: Float[Array, "n d"],
    n_prototypes: int,
    weights: Float[Array, " n"] | None = None,
) -> PivotedCholeskyResult:
    """Choose rows by randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber 2024, Alg. 1).

    Earlier rows are projected out of the kernel matrix. The next row is drawn with probability
    proportional to its remaining diagonal entry. In expectation, the Nystroem approximation from
    about k / epsilon rows is as good as the best approximation of rank k, up to epsilon. Only the
    drawn columns of the matrix are computed, in memory `m n` and time `m^2 n`. The first k of m
    rows are the result for `n_prototypes = k`.

    Args:
        key: random key of the draws.
        kernel: kernel of two points.
        X: shape `n d`.
        n_prototypes: number of rows `m` (static).
        weights: factors of the probabilities, shape `n`. Rows of weight 0 are left out.

    Pure in `key`, `kernel`, `X` and `weights`.

    Raises:
        ValueError: unless 1 <= m <= n; or, outside `jit`, if m exceeds the number of rows with
            weight, a weight is negative, or X is not finite.
    """
    X, key = check_table(X), as_key(key)
    m, weights = check_weighted(n_prototypes, X, weights)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    return _pivoted_cholesky(key, kernel, X, m, w)


@functools.partial(compiled, static_argnames="m")
def _pivoted_cholesky(
    key: Key, kernel: Kernel, X: Float[Array, "n d"], m: int, w: Float[Array, " n"]
) -> PivotedCholeskyResult:
    present = w > 0
    diagonal = jnp.where(present, kernel.diagonal(X), 0)
    total = jnp.sum(diagonal)

    def step(i: Int[Array, ""], state: tuple[Array, ...]) -> tuple[Array, ...]:
        factor, remaining, free, indices, residual = state
        # Every free row can be drawn, even if by rounding the drawn rows explain all.
        odds = jnp.where(free, jnp.maximum(remaining, epsilon(X.dtype) * diagonal) * w, 0)
        cumulative = jnp.cumsum(odds)
        u = jax.random.uniform(jax.random.fold_in(key, i), (), X.dtype) * cumulative[-1]
        index = jnp.searchsorted(cumulative, u, side="right").astype(jnp.int32)
        # Because of rounding, the draw may fall after the last free row.
        index = jnp.where(odds[index] > 0, index, jnp.argmax(odds).astype(jnp.int32))
        column = kernel.cross_gram(X, X[index][None])[:, 0] - dot(factor[:, index], factor)
        pivot = column[index]
        noise = epsilon(X.dtype) * diagonal[index]
        row = jnp.where(pivot > noise, column / jnp.sqrt(jnp.maximum(pivot, noise)), 0)
        remaining = jnp.where(present, jnp.maximum(remaining - jnp.square(row), 0), 0)
        remaining = remaining.at[index].set(0)
        return (
            factor.at[i].set(row),
            remaining,
            free.at[index].set(False),
            indices.at[i].set(index),
            residual.at[i].set(jnp.sum(remaining) / total),
        )

    initial = (
        jnp.zeros((m, len(X)), X.dtype),
        diagonal,
        present,
        jnp.zeros(m, jnp.int32),
        jnp.zeros(m, X.dtype),
    )
    *_, indices, residual = jax.lax.fori_loop(0, m, step, initial)
    return PivotedCholeskyResult(indices, residual)
