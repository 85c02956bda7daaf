"""Novelty of rows: their distance, in feature space, from the span of a model's prototypes."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._blocks import map_row_batches, map_row_blocks, rows_in_block
from ._numerics import as_array, cholesky_shift, epsilon
from ._programs import compiled
from ._repr import short_repr
from .conformal import ConformalScores, conformal_scores
from .expansion import KernelExpansion
from .kernels import Kernel
from .prediction import check_scores
from .scaling import Scaling

# Largest relative difference, in units of rounding, of two copies of a row: if two programs
# standardise the row, the results differ by a few units.
_ROUNDINGS = 8


class Novelty(NamedTuple):
    """How novel rows are.

    Attributes:
        distance: squared distance of `phi(x)` from the span of the prototypes, divided by `k(x,
            x)`: from 0, within the span, to 1, orthogonal to all prototypes. Shape `n`.
        p_value: share of calibration rows that are at least as novel, the row itself included, so
            at least `1 / (n_rows + 1)`. Shape `n`.
    """

    distance: Float[Array, " n"] | Float[np.ndarray, " n"]
    p_value: Float[Array, " n"] | Float[np.ndarray, " n"]

    __repr__ = short_repr


class Span(eqx.Module):
    """The span of prototypes in the feature space of a kernel."""

    kernel: Kernel
    prototypes: Float[Array, "m d"]  # in scaled units
    scaling: Scaling | None  # map of raw inputs to scaled units
    # Lower Cholesky factor of the prototypes' Gram matrix. Its diagonal is shifted by a few units
    # of rounding, which admits linearly dependent prototypes.
    factor: Float[Array, "m m"]
    distance_to_others: Float[Array, " m"]  # of each prototype from the span of the others

    def distances(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the novelty of raw inputs, see `Novelty.distance`; differentiable in `X`."""

        def block(rows: Float[Array, "r d"]) -> Float[Array, " r"]:
            rows = self._scaled(rows)
            return self._distances(rows, self.kernel.cross_gram(rows, self.prototypes))

        return map_row_blocks(block, X, rows_in_block(None))

    def distances_without_self(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return `distances` as if the rows had been held out.

        A row that is a prototype gets its distance from the span of the other prototypes.
        """

        def block(rows: Float[Array, "r d"]) -> Float[Array, " r"]:
            rows = self._scaled(rows)
            cross = self.kernel.cross_gram(rows, self.prototypes)
            # The squared distances in feature space, less k(x, x), which no prototype changes.
            squares = self.kernel.diagonal(self.prototypes)[None] - 2 * cross
            nearest = jnp.argmin(squares, axis=1)
            is_prototype = _equal(rows, self.prototypes[nearest])
            others = self.distance_to_others[nearest]
            return jnp.where(is_prototype, others, self._distances(rows, cross))

        return map_row_blocks(block, X, rows_in_block(None))

    def _scaled(self, rows: Float[Array, "r d"]) -> Float[Array, "r d"]:
        return rows if self.scaling is None else self.scaling.apply(rows)

    def _distances(
        self, rows: Float[Array, "r d"], cross: Float[Array, "r m"]
    ) -> Float[Array, " r"]:
        explained = jax.scipy.linalg.solve_triangular(self.factor, cross.T, lower=True)
        squares = self.kernel.diagonal(rows)
        return _share(squares - jnp.sum(jnp.square(explained), axis=0), squares)


def _equal(a: Float[Array, "r d"], b: Float[Array, "r d"]) -> Bool[Array, " r"]:
    """Return whether rows are equal up to rounding."""
    tolerance = _ROUNDINGS * epsilon(a.dtype) * jnp.maximum(jnp.abs(a), jnp.abs(b))
    return jnp.all(jnp.abs(a - b) <= tolerance, axis=1)


def _share(part: Float[Array, " n"], total: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return `part / total`, clipped to the range from 0 to 1; 0 where `total` is 0."""
    return jnp.clip(jnp.where(total > 0, part / jnp.where(total > 0, total, 1), 0), 0, 1)


@compiled
def span_of(expansion: KernelExpansion) -> Span:
    """Return the span of a machine's prototypes in feature space; takes time `m^3`.

    Raise ValueError for a `Mixture` of kernels, which has no common feature space.
    """
    kernel, prototypes = expansion.kernel, expansion.prototypes
    gram = kernel.gram(prototypes)
    shift, identity = cholesky_shift(gram), jnp.eye(len(gram), dtype=gram.dtype)
    factor = jnp.linalg.cholesky(gram + shift * identity)
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    # The squared distance of a prototype from the span of the others is the Schur complement of its
    # diagonal entry in the Gram matrix: the reciprocal of the diagonal entry of the inverse matrix.
    complement = 1 / jnp.sum(jnp.square(inverse), axis=0) - shift
    distance_to_others = _share(complement, jnp.diagonal(gram))
    return Span(kernel, prototypes, expansion.scaling, factor, distance_to_others)


_distances = compiled(Span.distances)
_distances_without_self = compiled(Span.distances_without_self)


def calibration(expansion: KernelExpansion, X: Float[np.ndarray, "n d"]) -> ConformalScores:
    """Return a few hundred quantiles of the distances of rows, see `conformal.conformal_scores`.

    `X` are raw inputs on the host, of training rows or later rows. A row that is a prototype counts
    with its distance from the other prototypes, as if it had been held out.
    """
    return conformal_scores(_on_host(expansion, X, _distances_without_self))


def novelty(
    expansion: KernelExpansion,
    calibrated: ConformalScores,
    X: Float[np.ndarray, "n d"] | Float[Array, "n d"],
    xp: Any = np,
) -> Novelty:
    """Return the novelty of raw inputs, which are on the host if `xp` is `numpy`.

    With `jax.numpy` as `xp` the function is traceable. `calibrated` comes from `calibration`.
    """
    if isinstance(X, np.ndarray) and xp is np:
        distance = _on_host(expansion, X, _distances)
    else:
        distance = span_of(expansion).distances(as_array(X, expansion.prototypes.dtype))
    quantiles, counts = xp.asarray(calibrated.errors), xp.asarray(calibrated.counts)
    # 1, for the row itself, plus the number of calibration rows at least as novel as each quantile.
    at_least = xp.append(xp.cumsum(counts[::-1])[::-1], xp.zeros_like(counts[:1])) + 1
    share = at_least.astype(quantiles.dtype) / (xp.sum(counts) + 1).astype(quantiles.dtype)
    return Novelty(distance, share[xp.searchsorted(quantiles, distance)])


def _on_host(
    expansion: KernelExpansion, X: Float[np.ndarray, "n d"], distances: Any
) -> Float[np.ndarray, " n"]:
    """Return `distances(span, X)` of raw inputs on the host, in batches of rows.

    Raise NumericalError if a distance is not finite.
    """
    dtype = np.dtype(expansion.prototypes.dtype)
    with jax.enable_x64(dtype == np.float64):
        span = span_of(expansion)
        values = map_row_batches(lambda rows: distances(span, as_array(rows)), X.astype(dtype))
    check_scores(values)
    return values
