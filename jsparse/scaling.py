"""Maps of raw input columns to comparable units: standardisation, or normal scores of ranks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

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

    shift: Float[Array, " d"]
    scale: Float[Array, " d"]

    columns = "standard"  # the argument of `train` that gives this map
    __repr__ = short_repr

    def apply(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map raw units to standardised units, in the dtype of `X`."""
        return (X - _rows_like(self.shift, X)) / _rows_like(self.scale, X)

    def undo(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map standardised units to raw units, in the dtype of `X`."""
        return X * _rows_like(self.scale, X) + _rows_like(self.shift, X)

    def undo_on_host(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Map standardised units to raw units by NumPy, without compiling a program."""
        return X * np.asarray(self.scale) + np.asarray(self.shift)


class NormalScores(NamedTuple):
    """Monotone maps of each column to normal scores of its ranks.

    A value at rank `r` of `n` becomes the quantile `(r - 1/2) / n` of the normal distribution, so
    heavy tails and outliers lose their influence. Between knots the map is linear; beyond the first
    and the last knot it is constant. Scores have mean 0 and variance 1.

    Differentiable in its argument and in both fields, except at the knots.

    Attributes:
        knots: values of each column in increasing order, shape `k d`. The last knot may be
            repeated.
        scores: scores of the knots, shape `k d`; 0 for a constant column.
    """

    knots: Float[Array, "k d"]
    scores: Float[Array, "k d"]

    columns = "ranks"  # the argument of `train` that gives this map
    __repr__ = short_repr

    def apply(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map raw units to scores, in the dtype of `X`."""
        return _interpolated(X, self.knots.astype(X.dtype), self.scores.astype(X.dtype))

    def undo(self, X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map scores to raw units, in the dtype of `X`; outer scores become the outer knots."""
        return _interpolated(X, self.scores.astype(X.dtype), self.knots.astype(X.dtype))

    def undo_on_host(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Map scores to raw units by NumPy, without compiling a program."""
        columns = zip(X.T, np.asarray(self.scores).T, np.asarray(self.knots).T, strict=True)
        return np.stack([np.interp(*column) for column in columns], axis=1).astype(X.dtype)


Scaling = Standardization | NormalScores


def _interpolated(
    X: Float[Array, "*n d"], x: Float[Array, "k d"], y: Float[Array, "k d"]
) -> Float[Array, "*n d"]:
    return jax.vmap(jnp.interp, in_axes=-1, out_axes=-1)(X, x, y)


def normal_scores(
    X: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    n_knots: int = 128,
) -> NormalScores:
    """Return the map of each column to normal scores, computed from the rows of `X` on the host.

    Args:
        X: finite inputs, shape `n d`.
        weights: row weights, shape `n`, by default all 1. Rows of weight 0 are ignored.
        n_knots: largest number of knots of a column. A column with fewer different values has a
            knot at each value. Other columns have knots at evenly spaced scores.

    Example:
        >>> import numpy as np
        >>> scaling = normal_scores(np.array([[1.0], [10.0], [1000.0]]))
        >>> np.asarray(100 * scaling.apply(scaling.knots[:3])).round()[:, 0].tolist()
        [-122.0, 0.0, 122.0]
    """
    from scipy.special import ndtri  # slow to import, and often not needed

    X, w = np.asarray(X), np.ones(len(X)) if weights is None else np.asarray(weights, float)
    X, w = X[w > 0], w[w > 0]
    columns = []
    for column in X.T:
        values, inverse = np.unique(column, return_inverse=True)
        mass = np.bincount(inverse, w)
        mean_rank = (np.cumsum(mass) - mass / 2) / mass.sum()  # of equal values, as a fraction
        smallest = 0.5 / len(X)
        scores = ndtri(np.clip(mean_rank, smallest, 1 - smallest))
        places = np.arange(len(values))
        if len(values) > n_knots:
            even_scores = np.linspace(scores[0], scores[-1], n_knots)
            inner = np.searchsorted(scores, even_scores[:-1])
            places = np.unique(np.append(inner, len(values) - 1))
        all_scores = np.interp(column, values[places], scores[places])
        mean = np.average(all_scores, weights=w)
        spread = np.sqrt(np.average(np.square(all_scores - mean), weights=w))
        scores = (scores[places] - mean) / (spread if spread > 0 else 1)
        padding = (0, n_knots - len(places))
        columns.append((np.pad(values[places], padding, "edge"), np.pad(scores, padding, "edge")))
    knots_and_scores = [np.stack(p, axis=1).astype(X.dtype) for p in zip(*columns, strict=True)]
    return NormalScores(*jax.device_put(knots_and_scores))


def standardize(
    X: Float[Array, "n d"] | ArrayLike, weights: Float[Array, " n"] | ArrayLike | None = None
) -> Standardization:
    """Return the standardisation that gives columns mean 0 and (population) variance 1.

    Columns are centred about one row and then twice about the mean, so a mean of 1e6 costs no
    digits of the variance, even in float32. Deviations are divided by the largest deviation before
    they are squared, so they neither overflow nor underflow. A column whose values all agree to two
    units of rounding is constant and has scale 1.

    Pure and jittable. Differentiable in `X` in both modes, unless a column is about to become
    constant. The derivative of `scale` is zero for a constant column.

    Args:
        X: inputs, shape `n d`.
        weights: nonnegative row weights, shape `n`, by default all 1. Rows of weight 0 are ignored,
            even if they are not finite.

    Returns:
        The standardisation, in the dtype of `X`. If all weights are 0, it is finite but arbitrary.

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
    # Inside a caller's jit, jax.numpy would trace even concrete values.
    if is_concrete(weights) and np.any(np.asarray(weights) < 0):
        raise ValueError(f"weights: expected no negative value, got {np.min(np.asarray(weights))}")
    return _standardize(X, weights.astype(X.dtype))


@compiled
def _standardize(X: Float[Array, "n d"], weights: Float[Array, " n"]) -> Standardization:
    """Return the result of `standardize` for arrays that it has checked."""
    used = jnp.broadcast_to((weights > 0)[:, None], X.shape)
    total = jnp.sum(weights)
    share = jnp.broadcast_to((weights / jnp.where(total > 0, total, 1))[:, None], X.shape)

    def mean(values: Float[Array, "n d"]) -> Float[Array, " d"]:
        return jnp.sum(share * values, axis=0)

    # Centred about one row, a constant column is exactly zero.
    first = X[jnp.argmax(weights)]
    deviations = jnp.where(used, X - _rows_like(first, X), 0)
    # The largest deviation keeps squares in range; the result does not depend on it.
    spread = jax.lax.stop_gradient(jnp.max(jnp.abs(deviations), axis=0))
    # A column is constant up to two units of rounding, because a value computed in two ways differs
    # by about one. The range decides, not the variance, so that one row in a million counts.
    magnitude = jnp.max(jnp.where(used, jnp.abs(X), 0), axis=0)
    constant = spread <= 2 * epsilon(X.dtype) * magnitude
    spread = jnp.where(spread > 0, spread, 1)
    deviations = deviations / _rows_like(spread, X)
    middle = mean(deviations)
    deviations = jnp.where(used, deviations - _rows_like(middle, X), 0)
    error = mean(deviations)  # the mean that rounding left
    variance = mean(deviations**2) - error**2
    usable = ~constant & (variance > 0)
    deviation = spread * jnp.sqrt(jnp.where(usable, variance, 1))
    shift = first + spread * (middle + error)
    return Standardization(shift, jnp.where(usable, deviation, 1))


def _rows_like(row: Float[Array, " d"], X: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Repeat a row in the shape and dtype of `X`."""
    return jnp.broadcast_to(row.astype(X.dtype), X.shape)
