"""Symmetric positive definite systems with a shift, by Cholesky."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, epsilon, unbatched_lapack
from .._repr import short_repr


class Factor(NamedTuple):
    """Cholesky factor of `A + shift I`."""

    matrix: Float[Array, "p p"]  # A + shift I
    lower: Float[Array, "p p"]
    shift: Float[Array, ""]  # the requested shift, or the size of A's rounding if that is larger
    lost: Bool[Array, ""]  # whether the rounding of A replaced the requested shift

    __repr__ = short_repr

    def solve(self, rhs: Float[Array, "p k"]) -> Float[Array, "p k"]:
        """Solve `(A + shift I) x = rhs` with one step of iterative refinement."""
        x = jax.scipy.linalg.cho_solve((self.lower, True), rhs)
        return x + jax.scipy.linalg.cho_solve((self.lower, True), rhs - dot(self.matrix, x))


def factorise(A: Float[Array, "p p"], shift: Float[Array, ""]) -> Factor:
    """Factorise `A + shift I` for a positive semi-definite `A`.

    If the shift is below the rounding of A, the matrix may be indefinite in this precision. The
    size of the rounding is then used as the shift, and `lost` is True. Solutions are differentiable
    in every argument.
    """
    p = A.shape[0]
    noise = 4 * epsilon(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), axis=0))
    used = jnp.maximum(shift, noise)
    matrix = A + used * jnp.eye(p, dtype=A.dtype)
    return Factor(matrix, jnp.linalg.cholesky(matrix), used, noise > shift)


@unbatched_lapack
def cholesky(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return the Cholesky factor; on a CPU each matrix of a batch alone, see `unbatched_lapack`."""
    return jnp.linalg.cholesky(matrix)


def inverse_of_lower(lower: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Invert a lower triangular matrix, row by row.

    If a process may use only a part of the processor, a triangular solve by BLAS can take two
    hundred times as long (measured for size 60: 16 ms against 0.08 ms).
    """
    column = jnp.arange(len(lower), dtype=jnp.int32)

    def row(i: Int[Array, ""], found: Float[Array, "p p"]) -> Float[Array, "p p"]:
        lower_row = jax.lax.dynamic_index_in_dim(lower, i, 0, keepdims=False)
        before = jnp.where(column < i, lower_row, 0)
        rest = (column == i).astype(lower.dtype) - dot(before, found)
        return jax.lax.dynamic_update_index_in_dim(found, rest / lower_row[i], i, 0)

    return jax.lax.fori_loop(0, len(lower), row, jnp.zeros_like(lower))


_BLOCK = 256  # size below which a triangular solve inverts a block


def inverse_by_blocks(lower: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Invert a large lower triangular matrix by matrix products, in `p^3 / 3` operations."""
    p, h = len(lower), len(lower) // 2
    if p <= _BLOCK:
        one = jnp.eye(p, dtype=lower.dtype)
        return jax.scipy.linalg.solve_triangular(lower, one, lower=True)
    top, bottom = inverse_by_blocks(lower[:h, :h]), inverse_by_blocks(lower[h:, h:])
    corner = -dot(bottom, dot(lower[h:, :h], top))
    return jnp.block([[top, jnp.zeros((h, p - h), lower.dtype)], [corner, bottom]])
