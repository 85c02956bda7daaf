"""What the searches share: a box of log-parameters, and a record of every evaluation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._numerics import as_float, is_concrete
from .._repr import short_repr

Objective = Callable[[Float[Array, " p"], Any], Float[Array, ""]]


class Evaluations(NamedTuple):
    """Every point evaluated by a search, in order; rows never reached hold NaN."""

    thetas: Float[Array, "e p"]
    values: Float[Array, " e"]  # as the objective returned them, NaN included

    __repr__ = short_repr


def bounds(low: ArrayLike, high: ArrayLike) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
    """`low` and `high` as arrays of one floating dtype, shape `p`.

    Raises:
        ValueError: if the shapes differ or are not `p >= 1`, or, when their values are known, if
            they are not finite with low < high everywhere.
    """
    lower, upper = as_float(low), as_float(high)
    if lower.shape != upper.shape or lower.ndim != 1 or lower.size == 0:
        raise ValueError(
            "low, high: expected two vectors of one length, got shapes "
            f"{lower.shape} and {upper.shape}"
        )
    upper = upper.astype(lower.dtype)
    if is_concrete(lower) and is_concrete(upper):
        a, b = np.asarray(lower), np.asarray(upper)
        if not (np.isfinite(a).all() and np.isfinite(b).all() and (a < b).all()):
            raise ValueError(f"low, high: expected finite values with low < high, got {a} and {b}")
    return lower, upper


def reflect(
    x: Float[Array, " p"], low: Float[Array, " p"], high: Float[Array, " p"]
) -> Float[Array, " p"]:
    """`x` reflected into the box [low, high], as often as it takes; unchanged inside.

    Reflection rather than wrapping: a log-parameter is no angle, so a point just outside one
    bound must not come back at the other. It keeps a symmetric move symmetric, keeps a continuous
    objective continuous, and never piles up points on a bound as clipping does.
    """
    width = high - low
    t = jnp.mod((x - low) / width, 2)  # one period of the triangle wave
    inside = jnp.clip(low + width * jnp.where(t > 1, 2 - t, t), low, high)
    return jnp.where((x >= low) & (x <= high), x, inside)


def finite_or_inf(values: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """`values` with everything that is not finite, minus infinity too, made the worst."""
    return jnp.where(jnp.isfinite(values), values, jnp.inf)


def scalar_value(value: Any, theta: Float[Array, " p"]) -> Float[Array, ""]:
    """What an objective returned, in the dtype of `theta`.

    Raises:
        ValueError: if it is not a scalar.
    """
    value = as_float(value)
    if value.shape != ():
        raise ValueError(f"objective: expected a scalar, got shape {value.shape}")
    return value.astype(theta.dtype)
