"""Symmetric positive definite systems with a shift, by Cholesky."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._numerics import dot, epsilon


class Definite(NamedTuple):
    """Solutions of `(A + shift I) x = rhs`."""

    x: Float[Array, "p k"]
    residual: Float[Array, "p k"]  # rhs - (A + shift I) x
    lost: Bool[Array, ""]  # the shift lay below the rounding of A, which took its place


def solve_definite(
    A: Float[Array, "p p"], rhs: Float[Array, "p k"], shift: Float[Array, ""]
) -> Definite:
    """Solve `(A + shift I) x = rhs` for a positive semi-definite `A`, refined once.

    Below a shift of the size of A's rounding the factorisation would meet an indefinite matrix;
    that size is then used instead, and `lost` says so. Differentiable in every argument.
    """
    p = A.shape[0]
    noise = 4 * epsilon(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), axis=0))
    matrix = A + jnp.maximum(shift, noise) * jnp.eye(p, dtype=A.dtype)
    factor = (jnp.linalg.cholesky(matrix), True)
    x = jax.scipy.linalg.cho_solve(factor, rhs)
    x = x + jax.scipy.linalg.cho_solve(factor, rhs - dot(matrix, x))
    return Definite(x, rhs - dot(matrix, x), noise > shift)
