"""Symmetric positive definite systems, their largest eigenvalue, and triangular inverses."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, epsilon, unbatched_lapack
from .._repr import short_repr


class Factor(NamedTuple):
    """A matrix `A + shift I` with its Cholesky factor."""

    matrix: Float[Array, "p p"]  # A + shift I
    lower: Float[Array, "p p"]  # Cholesky factor of `matrix`
    shift: Float[Array, ""]  # the requested shift, or the rounding error of A if larger
    lost: Bool[Array, ""]  # whether the rounding error replaced the requested shift

    __repr__ = short_repr

    def solve(self, rhs: Float[Array, "p k"]) -> Float[Array, "p k"]:
        """Solve `(A + shift I) x = rhs` with one step of iterative refinement."""
        x = jax.scipy.linalg.cho_solve((self.lower, True), rhs)
        return x + jax.scipy.linalg.cho_solve((self.lower, True), rhs - dot(self.matrix, x))


def factorise(A: Float[Array, "p p"], shift: Float[Array, ""]) -> Factor:
    """Factorise `A + shift I` for a positive semi-definite `A`.

    A shift below the rounding error of A may leave the matrix indefinite. The rounding error then
    replaces the shift, and `lost` is True. Solutions are differentiable in every argument.
    """
    p = A.shape[0]
    rounding = 4 * epsilon(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), axis=0))
    effective_shift = jnp.maximum(shift, rounding)
    matrix = A + effective_shift * jnp.eye(p, dtype=A.dtype)
    lower = cholesky_from_upper(matrix)
    return Factor(matrix, lower, effective_shift, rounding > shift)


def cholesky_from_upper(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return the lower Cholesky factor of a symmetric matrix, read from its upper triangle.

    JAX stores a matrix by rows, LAPACK by columns. The transpose is therefore in LAPACK's order
    already, so that nothing is transposed in memory. JAX's default would also average the matrix
    with its transpose. The derivative reads both triangles, and holds for symmetric changes.
    """
    return jnp.linalg.cholesky(matrix.T, symmetrize_input=False)


@unbatched_lapack
def cholesky(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return `cholesky_from_upper(matrix)`; on a CPU, a batch is factorised one by one."""
    return cholesky_from_upper(matrix)


def largest_eigenvalue(
    product: Callable[[Float[Array, " p"]], Float[Array, " p"]], start: Float[Array, " p"]
) -> Float[Array, ""]:
    """Estimate the largest eigenvalue of a positive semi-definite matrix by 16 power steps.

    The estimate is a lower bound, within a few per cent.

    Args:
        product: `x -> A x`.
        start: a vector that is not orthogonal to the first eigenvector.
    """

    def scaled(x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Scale the largest entry to 1, as squares of the entries may be out of range."""
        size = jnp.max(jnp.abs(x))
        return jnp.where(size > 0, x / jnp.where(size > 0, size, 1), 1)

    x = jax.lax.fori_loop(0, 16, lambda _, x: scaled(product(x)), scaled(start))
    return jnp.sum(x * product(x)) / jnp.sum(jnp.square(x))


# Size up to which a lower triangle is inverted row by row: a larger one does not stay in the cache,
# and takes three times as long as two halves and the products that join them (measured for 500).
_LARGEST_BY_ROWS = 256


def inverse_of_lower(lower: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Invert a lower triangular matrix: up to size 256 row by row, a larger one by halves.

    BLAS can be two hundred times slower if the process may use only some of the cores (measured for
    size 60: 16 ms against 0.08 ms).
    """
    if len(lower) > _LARGEST_BY_ROWS:
        return _inverse_by_halves(lower, inverse_of_lower)
    columns = jnp.arange(len(lower), dtype=jnp.int32)

    def row(i: Int[Array, ""], inverse: Float[Array, "p p"]) -> Float[Array, "p p"]:
        lower_row = jax.lax.dynamic_index_in_dim(lower, i, 0, keepdims=False)
        left_of_diagonal = jnp.where(columns < i, lower_row, 0)
        remainder = (columns == i).astype(lower.dtype) - dot(left_of_diagonal, inverse)
        return jax.lax.dynamic_update_index_in_dim(inverse, remainder / lower_row[i], i, 0)

    return jax.lax.fori_loop(0, len(lower), row, jnp.zeros_like(lower))


# Size up to which a triangular solve inverts a block. With 3072 rows the program runs 10 % longer
# than with blocks of 256, and compiles in 0.7 s instead of 2.1 (measured).
_BLOCK = 1024


def inverse_by_blocks(lower: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Invert a large lower triangular matrix by matrix products, in `p^3 / 3` operations."""
    if len(lower) > _BLOCK:
        return _inverse_by_halves(lower, inverse_by_blocks)
    identity = jnp.eye(len(lower), dtype=lower.dtype)
    return jax.scipy.linalg.solve_triangular(lower, identity, lower=True)


def _inverse_by_halves(
    lower: Float[Array, "p p"], invert: Callable[[Float[Array, "h h"]], Float[Array, "h h"]]
) -> Float[Array, "p p"]:
    """Invert a lower triangular matrix: `invert` the diagonal blocks, multiply for the third."""
    p, half = len(lower), len(lower) // 2
    top, bottom = invert(lower[:half, :half]), invert(lower[half:, half:])
    corner = -dot(bottom, dot(lower[half:, :half], top))
    return jnp.block([[top, jnp.zeros((half, p - half), lower.dtype)], [corner, bottom]])
