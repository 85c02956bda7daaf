"""Squared distances by a matrix product."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import dot


def squared_distances(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """`|x_i - z_j|^2` as `|x|^2 + |z|^2 - 2 x.z`, never an `n m d` array.

    Both are centred at the mean of `Z` first: a common offset of 1e3 would otherwise cost all
    digits of float32. Rounding below zero is clipped in value only, so that first and second
    derivatives at coincident points are those of the exact distance.
    """
    center = jax.lax.stop_gradient(jnp.mean(Z, axis=0, keepdims=True))
    X, Z = X - center, Z - center
    x2, z2 = jnp.sum(X * X, axis=1), jnp.sum(Z * Z, axis=1)
    d2 = x2[:, None] + z2[None, :] - 2.0 * dot(X, Z.T)
    return d2 + jax.lax.stop_gradient(jnp.maximum(d2, 0.0) - d2)


def safe_sqrt(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square root with derivative 0, not infinity, at 0."""
    positive = s > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, s, 1.0)), 0.0)
