"""Squared distances by one matrix product, and a square root with finite derivatives at zero."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import dot, epsilon

Lengthscale = Float[Array, ""] | Float[Array, " d"]


def squared_distances(
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    lengthscale: Lengthscale,
    *,
    snap: bool = False,
) -> Float[Array, "n m"]:
    """Return `|(x_i - z_j) / lengthscale|^2` as `|u_i|^2 + |v_j|^2 - 2 u_i.v_j`, at least 0.

    `u` and `v` are the points less the mean of `Z`, divided by `lengthscale`. The formula has an
    absolute error of about `eps (|u|^2 + |v|^2)`. Without the mean subtracted, an offset in the
    data would multiply this error (an offset of 1e3 by a million). The mean is a function of `Z`
    only, so that blocks of rows agree.

    Differentiable any number of times in both modes. Clipping at 0 changes only values, so the
    derivatives at coincident points are exact.

    Args:
        X: shape `n d`.
        Z: shape `m d`.
        lengthscale: divides the differences; shape `()` or `d`.
        snap: whether to set distances within the error of the formula to 0. A function with a
            cusp at 0 needs it, because the square root turns an error of eps into `sqrt(eps)`.

    Raises:
        ValueError: if the lengthscale is not a scalar or of shape `d`.
    """
    # The distances do not depend on the centre, so neither do their derivatives.
    centre = jax.lax.stop_gradient(jnp.mean(Z, axis=0, keepdims=True))
    U, V = X - centre, Z - centre
    lengthscale = matching(lengthscale, U).reshape(1, -1)
    U, V = U / lengthscale, V / lengthscale
    norms = jnp.sum(U * U, axis=1)[:, None] + jnp.sum(V * V, axis=1)[None, :]
    # Rounding errors of sums of d terms grow like a random walk. The bound is about twice as large
    # and includes the errors of the other operations.
    error = (3 + float(np.sqrt(X.shape[1]))) * epsilon(X.dtype)
    noise = error * norms if snap else 0
    s = norms - 2 * dot(U, V.T)
    # Only the value is clipped, not its derivative. NaN stays NaN.
    return s - jax.lax.stop_gradient(jnp.where(s <= noise, s, 0))


def squared_distance(
    x: Float[Array, " d"], z: Float[Array, " d"], lengthscale: Lengthscale
) -> Float[Array, ""]:
    """Return `|(x - z) / lengthscale|^2` for two points, from their differences."""
    return jnp.sum(jnp.square((x - z) / matching(lengthscale, x)))


def matching(lengthscale: Lengthscale, points: Float[Array, "*n d"]) -> Lengthscale:
    """Return the lengthscale in the points' dtype; raise ValueError unless its shape fits."""
    d = points.shape[-1]
    if lengthscale.shape not in ((), (d,)):
        raise ValueError(
            f"lengthscale: expected a scalar or one value for each of the {d} columns, got shape "
            f"{lengthscale.shape}"
        )
    return lengthscale.astype(points.dtype)


def safe_sqrt(s: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return `sqrt(s)` of a scaled squared distance; all derivatives at 0 are set to 0.

    The true derivatives at 0 are infinite. Below `(eps / 4)^2`, where `exp(-sqrt(s))` rounds to 1,
    `s` counts as 0, so that the first two derivatives are always finite.
    """
    nonzero = ~(s < (epsilon(s.dtype) / 4) ** 2)  # NaN stays NaN
    return jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, s, 1)), 0)
