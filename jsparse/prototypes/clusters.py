"""Prototypes by clustering: farthest points (k-centre) and cluster means (k-means)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments import as_key, whole_number
from .._blocks import default_block_rows, map_row_blocks
from .._numerics import dot, exponents, present_rows, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import Key, KeyLike
from ._validate import check_table, check_weighted
from .uniform import uniform

_FOLDED = 64  # number of rows of X over which the first maximum is taken
_COLUMNS = 16  # number of columns of X whose squares are added without a loop


class KCenterResult(NamedTuple):
    """Rows that are far from each other.

    Attributes:
        indices: rows of X, all different, in the order of selection, shape `m`.
        radius: the largest distance of any row from its nearest centre, for the first 1, 2, .. m
            centres, shape `m`. It never increases.
    """

    indices: Int[Array, " m"]
    radius: Float[Array, " m"]

    __repr__ = short_repr


class KMeansResult(NamedTuple):
    """Means of clusters of rows.

    Attributes:
        centres: shape `m d`.
        inertia: weighted sum of squared distances of the rows from their centres; 0 or infinite if
            the dtype cannot hold it.
        steps: number of moves of the centres.
        status: `CONVERGED` if no row changed its cluster, `EXHAUSTED`, or `NOT_FINITE`.
    """

    centres: Float[Array, "m d"]
    inertia: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def k_center(
    key: KeyLike,
    X: Float[Array, "n d"],
    n_prototypes: int,
    weights: Float[Array, " n"] | None = None,
) -> KCenterResult:
    """Choose rows by farthest-point clustering (Gonzalez 1985; Karsmakers 2011, Section 4.2).

    The first centre is a random row. Each further centre is the row farthest from all earlier
    centres. The radius is at most twice the smallest possible radius. The first k of m centres are
    the result for `n_prototypes = k`. A step computes the distances of all rows from one point. The
    centres cover the data regardless of density, so outliers come first.

    Args:
        key: random key of the first row.
        X: shape `n d`, in comparable units, such as standardised columns.
        n_prototypes: number of rows `m` (static).
        weights: rows of weight 0 are left out; other weights have no effect.

    Pure in `key`, `X` and `weights`.

    Raises:
        ValueError: unless 1 <= m <= n; or, outside `jit`, if m exceeds the number of rows with
            weight, a weight is negative, or X is not finite.
    """
    X, key = check_table(X), as_key(key)
    m, weights = check_weighted(n_prototypes, X, weights)
    return _k_center(key, X, m, weights)


@functools.partial(compiled, static_argnames="m")
def _k_center(
    key: Key, X: Float[Array, "n d"], m: int, weights: Float[Array, " n"] | None
) -> KCenterResult:
    present = jnp.ones(X.shape[0], bool) if weights is None else weights > 0
    n, d = X.shape
    first = uniform(key, n, 1, present.astype(X.dtype))[0].astype(jnp.int32)
    # Scale X so that squared distances are in range.
    exponent = exponents(jnp.where(present[:, None], X - X[first][None], 0)[None])
    X = times_power(X[None], -exponent)[0]
    # Row `j r + i` of X is stored at position `i, j`, so that a maximum over i reads whole rows of
    # memory. The squares of a block of columns are added one by one. On a CPU, an argmax and a sum
    # over columns by XLA take thirty times as long.
    r = min(_FOLDED, n)
    tall, wide = -(-n // r), min(_COLUMNS, d)
    padded = jnp.pad(X, ((0, r * tall - n), (0, -d % wide)))
    columns = padded.T.reshape(-1, wide, tall, r).swapaxes(2, 3)

    def distances(x: Float[Array, "g w"]) -> Float[Array, "r t"]:
        def block(g: Int[Array, ""], total: Float[Array, "r t"]) -> Float[Array, "r t"]:
            for column, value in zip(columns[g], x[g], strict=True):
                total = total + jnp.square(column - value)
            return total

        zeros = jnp.zeros((r, tall), X.dtype)
        if len(columns) == 1:
            return block(jnp.zeros((), jnp.int32), zeros)
        return jax.lax.fori_loop(0, len(columns), block, zeros)

    def step(i: Int[Array, ""], state: tuple[Array, ...]) -> tuple[Array, ...]:
        squares, latest, indices, radius = state
        new_squares = distances(padded[latest].reshape(-1, wide))
        # A chosen row is never the farthest again.
        squares = jnp.minimum(squares, new_squares).at[latest % r, latest // r].set(-1)
        j = jnp.argmax(jnp.max(squares, axis=0)).astype(jnp.int32)
        column_squares = jax.lax.dynamic_index_in_dim(squares, j, axis=1, keepdims=False)
        farthest = jnp.argmax(column_squares).astype(jnp.int32)
        indices = indices.at[i].set(latest)
        radius = radius.at[i].set(jnp.sqrt(jnp.maximum(column_squares[farthest], 0)))
        return squares, j * r + farthest, indices, radius

    start = jnp.where(present, jnp.inf, -1).astype(X.dtype)
    start = jnp.pad(start, (0, r * tall - n), constant_values=-1).reshape(tall, r).T
    state = (start, first, jnp.zeros(m, jnp.int32), jnp.zeros(m, X.dtype))
    _, _, indices, radius = jax.lax.fori_loop(0, m, step, state)
    return KCenterResult(indices, times_power(radius[None], exponent)[0])


class _Means(NamedTuple):
    centres: Float[Array, "m d"]
    nearest: Int[Array, " n"]  # the number of each row's centre
    inertia: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]


def k_means(
    key: KeyLike,
    X: Float[Array, "n d"],
    n_prototypes: int,
    weights: Float[Array, " n"] | None = None,
    *,
    max_iterations: int = 50,
) -> KMeansResult:
    """Cluster rows by Lloyd's algorithm (k-means; Karsmakers 2011, 4.2; Zhang et al. 2008).

    The first centres are the rows of `k_center`. A centre without rows does not move.

    Args:
        key: random key of the first centres.
        X: shape `n d`, in comparable units, such as standardised columns.
        n_prototypes: number of centres `m` (static).
        weights: row weights, shape `n`, at least 0.
        max_iterations: limit of moves of the centres (static).

    Raises:
        ValueError: unless 1 <= m <= n; or, outside `jit`, if m exceeds the number of rows with
            weight, a weight is negative, or X is not finite.
    """
    X, key = check_table(X), as_key(key)
    m, weights = check_weighted(n_prototypes, X, weights)
    return _k_means(key, X, m, weights, whole_number("max_iterations", max_iterations, 1))


@functools.partial(compiled, static_argnames=("m", "max_iterations"))
def _k_means(
    key: Key,
    X: Float[Array, "n d"],
    m: int,
    weights: Float[Array, " n"] | None,
    max_iterations: int,
) -> KMeansResult:
    w = jnp.ones(X.shape[0], X.dtype) if weights is None else weights
    X = present_rows(X, w)
    middle = jnp.mean(X, axis=0, keepdims=True)
    U = X - middle  # an offset would cost digits in the products below
    exponent = exponents(U[None])  # scaling keeps the squares below in range
    U = times_power(U[None], -exponent)[0]

    def assign(centres: Float[Array, "m d"]) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        half = jnp.sum(jnp.square(centres), axis=1) / 2

        def block(rows: Float[Array, "r d"]) -> Float[Array, "r two"]:
            # |u - c|^2 / 2 without |u|^2 / 2, which is equal for all centres.
            scores = half[None, :] - dot(rows, centres.T)
            best = jnp.argmin(scores, axis=1)
            return jnp.stack([best.astype(rows.dtype), jnp.min(scores, axis=1)], axis=1)

        nearest = map_row_blocks(block, U, default_block_rows())
        squares = jnp.sum(jnp.square(U), axis=1) + 2 * nearest[:, 1]
        return nearest[:, 0].astype(jnp.int32), jnp.maximum(squares, 0)

    def step(state: _Means) -> _Means:
        mass = jnp.zeros(m, X.dtype).at[state.nearest].add(w)
        sums = jnp.zeros_like(state.centres).at[state.nearest].add(w[:, None] * U)
        occupied = (mass > 0)[:, None]
        centres = jnp.where(occupied, sums / jnp.where(mass > 0, mass, 1)[:, None], state.centres)
        nearest, squares = assign(centres)
        same = jnp.all((nearest == state.nearest) | (w == 0))
        inertia, steps = jnp.sum(w * squares), state.steps + 1
        status = jnp.where(steps >= max_iterations, EXHAUSTED, RUNNING)
        status = jnp.where(same, CONVERGED, status)
        status = jnp.where(jnp.isfinite(inertia), status, NOT_FINITE).astype(jnp.int32)
        return _Means(centres, nearest, inertia, steps, status)

    start = U[_k_center(key, X, m, weights).indices]
    nearest, squares = assign(start)
    zero, running = jnp.zeros((), jnp.int32), jnp.full((), RUNNING, jnp.int32)
    initial = _Means(start, nearest, jnp.sum(w * squares), zero, running)
    final = jax.lax.while_loop(lambda state: state.status == RUNNING, step, initial)
    centres = times_power(final.centres[None], exponent)[0] + middle
    inertia = times_power(final.inertia[None], 2 * exponent)[0]
    return KMeansResult(centres, inertia, final.steps, final.status)
