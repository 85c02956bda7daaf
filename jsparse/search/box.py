"""The box of parameters, within bounds, that annealing and the simplex search."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._numerics import as_float, is_concrete


def bounds(low: ArrayLike, high: ArrayLike) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
    """Return `low` and `high` as arrays of one floating dtype, shape `p`.

    Raises:
        ValueError: if the shapes differ or are not `p` with p >= 1. Also, if the values are known
            (outside `jit`), unless all are finite with low < high.
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
    """Return `x` reflected at the bounds until it lies in the box [low, high].

    A point inside the box is returned unchanged. Wrapping would move a point just outside one bound
    to the opposite bound, which suits angles but not log-parameters. Clipping would pile up points
    on the bounds. Reflection keeps symmetric moves symmetric and continuous objectives continuous.
    """
    width = high - low
    t = jnp.mod((x - low) / width, 2)  # one period of the triangle wave
    inside = jnp.clip(low + width * jnp.where(t > 1, 2 - t, t), low, high)
    return jnp.where((x >= low) & (x <= high), x, inside)


def finite_or_inf(values: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """Return `values` with NaN and both infinities replaced by infinity."""
    return jnp.where(jnp.isfinite(values), values, jnp.inf)
