"""Zero mean and unit variance per column: part of every saved model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from ._numerics import as_float, epsilon, is_concrete
from ._programs import compiled
from ._repr import short_repr


class Standardization(NamedTuple):
    """The affine map `x -> (x - shift) / scale`, column by column.

    Differentiable in its argument and in both fields.

    Attributes:
        shift: the columns' means, shape `d`.
        scale: the columns' standard deviations, 1 where a column is constant, shape `d`.
    """

    shift: Float[Array, "d"]
    scale: Float[Array, "d"]

    __repr__ = short_repr

    def apply(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Raw units to standardised units, in the dtype of `X`."""
        return (X - _rows_like(self.shift, X)) / _rows_like(self.scale, X)

    def undo(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Standardised units back to raw units, in the dtype of `X`."""
        return X * _rows_like(self.scale, X) + _rows_like(self.shift, X)


def standardize(
    X: Float[Array, "n d"] | ArrayLike, weights: Float[Array, " n"] | ArrayLike | None = None
) -> Standardization:
    """Return the standardisation that gives columns mean 0 and (population) variance 1.

    Columns are centred about one of their rows and then twice about their mean, so a mean of 1e6
    costs no digits of the variance, even in float32; deviations are divided by their largest before
    they are squared, so neither overflow nor underflow is met. A column whose values all agree to
    two units of rounding is constant and keeps scale 1.

    Pure and jittable. Differentiable in `X` (forward and reverse mode) where no column sits at the
    edge of being constant; a constant column has derivative zero in `scale`.

    Args:
        X: inputs, shape `n d`.
        weights: nonnegative row weights, shape `n`; rows of weight 0 have no influence whatever
            they hold. By default all 1.

    Returns:
        The standardisation, in the dtype of `X`. Should every weight be 0, it is finite but
        means nothing.

    Raises:
        ValueError: if `X` has no rows, `weights` is not of shape `n`, or (outside `jit`) a weight
            is negative.
    """
    X = as_float(X)
    n = X.shape[0] if X.ndim == 2 else 0
    if n == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    weights = jnp.ones(n, X.dtype) if weights is None else as_float(weights)
    if weights.shape != (n,):
        raise ValueError(f"weights: expected shape ({n},), one per row of X; got {weights.shape}")
    # NumPy, as jax.numpy would trace even concrete values inside a caller's jit.
    if is_concrete(weights) and np.any(np.asarray(weights) < 0):
        raise ValueError(f"weights: expected no negative value, got {np.min(np.asarray(weights))}")
    return _standardize(X, weights.astype(X.dtype))


@compiled
def _standardize(X: Float[Array, "n d"], weights: Float[Array, "n"]) -> Standardization:
    used = jnp.broadcast_to((weights > 0)[:, None], X.shape)
    total = jnp.sum(weights)
    share = jnp.broadcast_to((weights / jnp.where(total > 0, total, 1))[:, None], X.shape)

    def mean(values: Float[Array, "n d"]) -> Float[Array, "d"]:
        return jnp.sum(share * values, axis=0)

    # About one of the rows first: columns that are constant become exactly zero.
    first = X[jnp.argmax(weights)]
    deviations = jnp.where(used, X - _rows_like(first, X), 0)
    constant = _is_constant(X, deviations, used)
    # The largest deviation only guards the squares; the result does not depend on it.
    spread = jax.lax.stop_gradient(jnp.max(jnp.abs(deviations), axis=0))
    spread = jnp.where(spread > 0, spread, 1)
    deviations = deviations / _rows_like(spread, X)
    middle = mean(deviations)
    deviations = jnp.where(used, deviations - _rows_like(middle, X), 0)
    error = mean(deviations)  # what rounding left of the mean
    variance = mean(deviations**2) - error**2
    usable = ~constant & (variance > 0)
    deviation = spread * jnp.sqrt(jnp.where(usable, variance, 1))
    shift = first + spread * (middle + error)
    return Standardization(shift, jnp.where(usable, deviation, 1))


def _is_constant(
    X: Float[Array, "n d"], deviations: Float[Array, "n d"], used: Bool[Array, "n d"]
) -> Bool[Array, "d"]:
    """Whether a column's values differ by no more than the rounding of their magnitude.

    Two units: a value computed in two ways differs by one or so. The range decides and not the
    variance, so that one row in a million that truly differs is seen.
    """
    magnitude = jnp.max(jnp.where(used, jnp.abs(X), 0), axis=0)
    spread = jnp.max(jnp.abs(deviations), axis=0)
    return spread <= 2 * epsilon(X.dtype) * magnitude


def _rows_like(row: Float[Array, "d"], X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    return jnp.broadcast_to(row.astype(X.dtype), X.shape)
