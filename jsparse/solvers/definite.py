"""Symmetric positive definite systems, their largest eigenvalue, and triangular inverses."""

import functools
import itertools
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
    rounding = 4 * epsilon(A.dtype) * jnp.max(dot(jnp.abs(A), jnp.ones(p, A.dtype)))
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
    p, half = len(lower), len(lower) // 2
    if p > _LARGEST_BY_ROWS:
        top, bottom = inverse_of_lower(lower[:half, :half]), inverse_of_lower(lower[half:, half:])
        corner = -dot(bottom, dot(lower[half:, :half], top))
        return jnp.block([[top, jnp.zeros((half, p - half), lower.dtype)], [corner, bottom]])
    columns = jnp.arange(p, dtype=jnp.int32)

    def row(i: Int[Array, ""], inverse: Float[Array, "p p"]) -> Float[Array, "p p"]:
        lower_row = jax.lax.dynamic_index_in_dim(lower, i, 0, keepdims=False)
        left_of_diagonal = jnp.where(columns < i, lower_row, 0)
        remainder = (columns == i).astype(lower.dtype) - dot(left_of_diagonal, inverse)
        return jax.lax.dynamic_update_index_in_dim(inverse, remainder / lower_row[i], i, 0)

    return jax.lax.fori_loop(0, p, row, jnp.zeros_like(lower))


# Size up to which a triangular solve inverts a block. With 3072 rows, leave-one-out takes 8 % less
# time than with blocks of 1024. Blocks of 600 take as long as these, and 0.4 s more to compile
# (measured). A matrix of more than `_MOST_BLOCKS` such blocks has larger ones, as compilation and
# memory would grow with the number of blocks.
_BLOCK = 800
_MOST_BLOCKS = 8


class InverseOfLower(NamedTuple):
    """The inverse of a lower triangular matrix, without the blocks of 0 above its diagonal.

    `columns[j]` has the rows of the `j`-th block of columns from its diagonal block down.
    """

    columns: tuple[Float[Array, "_ _"], ...]

    __repr__ = short_repr

    def times(self, vectors: Float[Array, "p k"]) -> Float[Array, "p k"]:
        """Return the inverse times `vectors`."""
        products = [
            jnp.pad(dot(block, vectors[begin:end]), ((begin, 0), (0, 0)))
            for block, begin, end in self._blocks()
        ]
        return functools.reduce(jnp.add, products)

    def transposed_times(self, vectors: Float[Array, "p k"]) -> Float[Array, "p k"]:
        """Return the transposed inverse times `vectors`."""
        products = [dot(block.T, vectors[begin:]) for block, begin, _ in self._blocks()]
        return jnp.concatenate(products)

    def squared_norms(self) -> Float[Array, " p"]:
        """Return the squared norm of each column of the inverse."""
        return jnp.concatenate([jnp.sum(jnp.square(block), axis=0) for block in self.columns])

    def _blocks(self) -> list[tuple[Array, int, int]]:
        """Return each block of columns, with its first column and the first column after it."""
        p = len(self.columns[0])
        edges = [p - len(block) for block in self.columns] + [p]
        return [(self.columns[i], *edge) for i, edge in enumerate(itertools.pairwise(edges))]


def inverse_by_blocks(lower: Float[Array, "p p"]) -> InverseOfLower:
    """Invert a large lower triangular matrix `L` by products of blocks.

    A block of the inverse `X` below the diagonal is `X_ij = -X_ii sum_k L_ik X_kj`, `j <= k < i`.
    With four blocks this takes `0.56 p^3` operations, with eight `0.45 p^3`.
    """
    p = len(lower)
    count = min(-(-p // _BLOCK), _MOST_BLOCKS)
    edges = [p * i // count for i in range(count + 1)]
    blocks = list(itertools.pairwise(edges))
    # LAPACK stores a factor by columns. Products read slices of its transpose without a copy.
    upper = lower.T

    def inverse_of_block(block: Float[Array, "b b"]) -> Float[Array, "b b"]:
        identity = jnp.eye(len(block), dtype=lower.dtype)
        return jax.scipy.linalg.solve_triangular(block, identity, lower=True)

    diagonal = [inverse_of_block(lower[begin:end, begin:end]) for begin, end in blocks]
    columns = []
    for j, (left, _) in enumerate(blocks):
        column = diagonal[j]
        for inverse, (begin, end) in zip(diagonal[j + 1 :], blocks[j + 1 :], strict=True):
            next_rows = dot(-inverse, dot(upper[left:begin, begin:end].T, column))
            column = jnp.concatenate([column, next_rows])
        columns.append(column)
    return InverseOfLower(tuple(columns))
