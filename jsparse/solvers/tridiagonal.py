"""Shifted symmetric systems from one reduction to tridiagonal form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, unbatched_lapack
from .._repr import short_repr
from .definite import largest_eigenvalue

_WIDTH = 32  # reflections that are applied together, by matrix products
# Number of rows from which the first blocks are stored separately, because their vectors are short.
_SPLIT = 256


class Tridiagonal(NamedTuple):
    """The factors of `A = Q T Q'` for a symmetric positive semi-definite `A`, `T` tridiagonal.

    `(A + shift I)^(-1) b` is a product with `Q'`, a tridiagonal solve for each shift, and a product
    with `Q` (Elden 1977). A ridge system therefore needs no eigendecomposition. `Q` is the product
    of blocks of reflections `I - V' S V` (Schreiber and Van Loan 1989). The rows of `V` are the
    vectors of the reflections, in reversed order of entries. Rows of zeros fill the last block. The
    vectors become longer from block to block; entries beyond their ends do not change.
    """

    matrix: Float[Array, "p p"]
    diagonal: Float[Array, " p"]  # of T
    below: Float[Array, " p"]  # T[i, i-1], and 0 for i = 0
    # vectors of the reflections, one in each row; one array for each part that is stored separately
    V: tuple[Float[Array, "_ w _"], ...]
    S_t: tuple[Float[Array, "_ w w"], ...]  # S', lower triangular

    __repr__ = short_repr

    def apply_inverse(
        self, rhs: Float[Array, "t k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """Solve `(A + shift_s I) x_s = rhs_s`; vectors are rows. If `t` is 1, all share `rhs`."""
        (_, k, p), s = rhs.shape, len(shifts)
        rotated = self._rotate(rhs.reshape(-1, p), transpose=True).reshape(rhs.shape)

        # T + shift I = L D L'. The scans treat one row of all systems at a time.
        def forward(before: tuple[Array, Array], row: tuple[Array, Array, Array]) -> tuple:
            (pivot, x), (diagonal, below, b) = before, row
            after = self._next_pivot(pivot, diagonal, below, shifts)
            x = b - (below / pivot)[:, None] * x
            return (after, x), (after, x)

        def backward(x: Float[Array, "s k"], row: tuple[Array, Array, Array]) -> tuple:
            pivot, above, b = row
            x = (b - above * x) / pivot[:, None]
            return x, x

        rows = (self.diagonal, self.below, jnp.moveaxis(rotated, 2, 0))
        zeros = jnp.zeros((s, k), rhs.dtype)
        _, (pivots, halfway) = jax.lax.scan(forward, (jnp.ones_like(shifts), zeros), rows)
        rows = (pivots, self._above, halfway)
        solved = jnp.moveaxis(jax.lax.scan(backward, zeros, rows, reverse=True)[1], 0, 2)
        return self._rotate(solved.reshape(s * k, p), transpose=False).reshape(s, k, p)

    def _rotate(self, rows: Float[Array, "k p"], *, transpose: bool) -> Float[Array, "k p"]:
        """Return `Q x` for every row `x`, or `Q' x` if `transpose`."""
        p = rows.shape[1]
        rows = jnp.pad(rows[:, ::-1], ((0, 0), (0, self.V[-1].shape[2] - p)))

        def reflect(x: Array, reflections: tuple[Array, Array]) -> tuple[Array, None]:
            V, S_t = reflections
            return x - dot(dot(dot(x, V.T), S_t if transpose else S_t.T), V), None

        parts = list(zip(self.V, self.S_t, strict=True))
        for V, S_t in parts[::-1] if transpose else parts:
            end = V.shape[2]
            rotated, _ = jax.lax.scan(reflect, rows[:, :end], (V, S_t), reverse=transpose)
            rows = rotated if end == rows.shape[1] else rows.at[:, :end].set(rotated)
        return rows[:, :p][:, ::-1]

    @property
    def _above(self) -> Float[Array, " p"]:
        """Return `T[i, i+1]`, and 0 for the last row."""
        return jnp.roll(self.below, -1)

    @property
    def largest(self) -> Float[Array, ""]:
        """Estimate the largest eigenvalue from below, within a few per cent."""
        # |T| has the same eigenvalues and its first eigenvector is non-negative, so a positive
        # start is never orthogonal to it.
        diagonal, below, above = (jnp.abs(a) for a in (self.diagonal, self.below, self._above))

        def product(x: Float[Array, " p"]) -> Float[Array, " p"]:
            return diagonal * x + below * jnp.roll(x, 1) + above * jnp.roll(x, -1)

        estimate = largest_eigenvalue(product, jnp.ones_like(diagonal))
        return jnp.maximum(estimate, jnp.max(diagonal))

    def numerical_rank(self, noise: Float[Array, ""]) -> Int[Array, ""]:
        """Return the number of eigenvalues above `noise`: the positive pivots of `T - noise I`."""
        return jnp.sum(self._pivots(-noise[None]) > 0, dtype=jnp.int32)

    def degrees_of_freedom(self, shifts: Float[Array, " s"]) -> Float[Array, " s"]:
        """Return `tr(A (A + shift I)^(-1))` for every shift.

        The factors `T + shift I = L D L'` give the diagonal of the inverse, from the last entry to
        the first, as sums of positive numbers. The entries beside the diagonal are products of this
        diagonal with `-L`.
        """
        above, pivots = self._above[:, None], self._pivots(shifts)
        L = above / pivots

        def step(after: Float[Array, " s"], row: tuple[Array, Array]) -> tuple[Array, Array]:
            pivot, below = row
            inverse = 1 / pivot + below * below * after
            return inverse, inverse

        zero = jnp.zeros_like(shifts)
        inverse = jax.lax.scan(step, zero, (pivots, L), reverse=True)[1]
        after = jnp.concatenate([inverse[1:], zero[None]])
        return jnp.sum(self.diagonal[:, None] * inverse - 2 * above * L * after, axis=0)

    def _pivots(self, shifts: Float[Array, " s"]) -> Float[Array, "p s"]:
        """Return the pivots `D` of `T + shift I = L D L'`."""

        def step(pivot: Float[Array, " s"], row: tuple[Array, Array]) -> tuple[Array, Array]:
            after = self._next_pivot(pivot, *row, shifts)
            return after, after

        return jax.lax.scan(step, jnp.ones_like(shifts), (self.diagonal, self.below))[1]

    @staticmethod
    def _next_pivot(
        pivot: Float[Array, " s"],
        diagonal: Float[Array, ""],
        below: Float[Array, ""],
        shifts: Float[Array, " s"],
    ) -> Float[Array, " s"]:
        after = diagonal + shifts - below / pivot * below
        return jnp.where(after == 0, jnp.finfo(shifts.dtype).tiny, after)


def tridiagonal(matrix: Float[Array, "p p"]) -> Tridiagonal:
    """Return the factors of a symmetric positive semi-definite matrix (LAPACK `sytrd`).

    It runs on CPU and GPU only. Only the field `matrix` of the result has derivatives, from which
    `resolvent` computes its own derivative.
    """
    # Small features keep their digits only if the large features are eliminated before them, and
    # Nystroem features come largest first. So the reduction must start at the first column. The
    # order is reversed, because LAPACK is faster if it starts at the last column.
    backward = jax.lax.stop_gradient(matrix).T[::-1, ::-1]
    diagonal, beside, V, scales = _reduce(backward)
    return Tridiagonal(
        matrix,
        diagonal[::-1],
        jnp.pad(beside[::-1], (1, 0)),
        V,
        tuple(_triangles(*part) for part in zip(V, scales, strict=True)),
    )


@unbatched_lapack
def _reduce(
    matrix: Float[Array, "p p"],
) -> tuple[Array, Array, tuple[Array, ...], tuple[Array, ...]]:
    """Reduce to tridiagonal form from the last column on.

    Return the diagonal, the entries beside it, and blocks of the reflections' vectors and scales.
    """
    p, dtype = matrix.shape[0], matrix.dtype
    reduced, diagonal, beside, scales = jax.lax.linalg.tridiagonal(matrix, lower=False)
    # Q' is a product of p - 1 reflections I - scale_i v v'. LAPACK stores v in column i + 1: entry
    # i is 1 and the entries after it are 0. Reflections with v = 0 pad the last block. LAPACK may
    # set scales to 0. Rows are padded to whole cache lines: without padding a product takes up to
    # three times as long on a CPU (measured).
    blocks = -(-p // _WIDTH)
    size = blocks * _WIDTH
    scales = jnp.pad(scales, (0, size - (p - 1)))
    vectors = jnp.pad(reduced.T[1:], ((0, size - (p - 1)), (0, size - p)))
    row = jnp.arange(size, dtype=jnp.int32)[:, None]
    column = jnp.arange(size, dtype=jnp.int32)[None]
    v = jnp.where(column < row, vectors, (column == row).astype(dtype))
    v = jnp.where(scales[:, None] > 0, v, 0)
    ends = [blocks] if p < _SPLIT else [blocks // 2, blocks]
    parts = [slice(a * _WIDTH, b * _WIDTH) for a, b in zip([0, *ends], ends, strict=False)]
    V = tuple(v[part, : part.stop].reshape(-1, _WIDTH, part.stop) for part in parts)
    return diagonal, beside, V, tuple(scales[part].reshape(-1, _WIDTH) for part in parts)


def _triangles(V: Float[Array, "b w q"], scales: Float[Array, "b w"]) -> Float[Array, "b w w"]:
    """Return `S'`, a lower triangular matrix, of every block of reflections.

    The inverse of `S'` holds the products of the vectors, with 1 / scale on its diagonal. The loop
    inverts it row by row, for all blocks at once. A triangular solve by BLAS can be a hundred times
    slower if the process may use only some of the cores (measured: 8 ms for size 128).
    """
    width = V.shape[1]
    products, columns = dot(V, jnp.swapaxes(V, 1, 2)), jnp.arange(width, dtype=jnp.int32)
    left_of_diagonal = jnp.where(columns[:, None] > columns[None], products, 0)

    def row(i: Int[Array, ""], inverse: Float[Array, "b w w"]) -> Float[Array, "b w w"]:
        products_row = jax.lax.dynamic_index_in_dim(left_of_diagonal, i, 1)
        scale = jax.lax.dynamic_index_in_dim(scales, i, 1)[:, :, None]
        unit = (columns == i).astype(V.dtype)[None, None]
        inverse_row = scale * (unit - dot(products_row, inverse))
        return jax.lax.dynamic_update_slice_in_dim(inverse, inverse_row, i, 1)

    return jax.lax.fori_loop(0, width, row, jnp.zeros_like(products))
