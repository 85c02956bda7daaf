"""Symmetric positive definite systems with a shift, by Cholesky."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import dot, epsilon


class Factor(NamedTuple):
    """Cholesky factor of `A + shift I`."""

    matrix: Float[Array, "p p"]  # A + shift I
    lower: Float[Array, "p p"]

    def solve(self, rhs: Float[Array, "p k"]) -> Float[Array, "p k"]:
        """`(A + shift I)^(-1) rhs`, refined once."""
        x = jax.scipy.linalg.cho_solve((self.lower, True), rhs)
        return x + jax.scipy.linalg.cho_solve((self.lower, True), rhs - dot(self.matrix, x))


def factorise(A: Float[Array, "p p"], shift: Float[Array, ""]) -> Factor:
    """Factorise `A + shift I` for a positive semi-definite `A`.

    Below a shift of the size of A's rounding the factorisation would meet an indefinite matrix;
    that size is then used instead. Solutions are differentiable in every argument.
    """
    p = A.shape[0]
    noise = 4 * epsilon(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), axis=0))
    matrix = A + jnp.maximum(shift, noise) * jnp.eye(p, dtype=A.dtype)
    return Factor(matrix, jnp.linalg.cholesky(matrix))
