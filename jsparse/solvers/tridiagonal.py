"""Shifted symmetric systems from one reduction to tridiagonal form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot

_WIDTH = 64  # reflections applied at a time, by products


class Tridiagonal(NamedTuple):
    """`A = Q T Q'` for a symmetric positive semi-definite `A`, with `T` tridiagonal.

    `(A + shift I)^(-1) b` is a product with `Q'`, a tridiagonal solve for each shift, and a product
    with `Q` (Elden 1977): all that an eigendecomposition is used for in a ridge system. `Q` is the
    product of blocks of reflections `I - V' S V` (Schreiber and Van Loan 1989).
    """

    matrix: Float[Array, "p p"]
    diagonal: Float[Array, " p"]  # of T
    below: Float[Array, " p"]  # T[i, i-1], and 0 for i = 0
    V: Float[Array, "b w p"]  # a reflection's vector in each row
    S: Float[Array, "b w w"]  # upper triangular

    def apply_inverse(
        self, rhs: Float[Array, "s k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """`(A + shift_s I)^(-1) rhs_s` for every shift; vectors are rows."""
        s, k, p = rhs.shape
        turned = self._turn(rhs.reshape(s * k, p), transpose=True).reshape(s, k, p)
        diagonals = (self.below[None], self.diagonal[None] + shifts[:, None], self._above[None])
        solved = jax.lax.linalg.tridiagonal_solve(
            *(jnp.broadcast_to(a, (s, p)) for a in diagonals), jnp.swapaxes(turned, 1, 2)
        )
        back = jnp.swapaxes(solved, 1, 2).reshape(s * k, p)
        return self._turn(back, transpose=False).reshape(s, k, p)

    def _turn(self, rows: Float[Array, "k p"], *, transpose: bool) -> Float[Array, "k p"]:
        """`Q x` or `Q' x` for every row."""

        def block(x: Float[Array, "k p"], reflections: tuple[Array, Array]) -> tuple[Array, None]:
            V, S = reflections
            return x - dot(dot(dot(x, V.T), S if transpose else S.T), V), None

        return jax.lax.scan(block, rows, (self.V, self.S), reverse=not transpose)[0]

    @property
    def _above(self) -> Float[Array, " p"]:
        """`T[i, i+1]`, and 0 for the last."""
        return jnp.roll(self.below, -1)

    @property
    def largest(self) -> Float[Array, ""]:
        """The largest eigenvalue, from below and to a few per cent, by the power method."""
        # |T| has the same eigenvalues, and its first vector no signs: the start cannot miss it.
        diagonal, below, above = (jnp.abs(a) for a in (self.diagonal, self.below, self._above))

        def product(x: Float[Array, " p"]) -> Float[Array, " p"]:
            return diagonal * x + below * jnp.roll(x, 1) + above * jnp.roll(x, -1)

        def step(_: Int[Array, ""], x: Float[Array, " p"]) -> Float[Array, " p"]:
            image = product(x)
            size = jnp.max(image)
            return jnp.where(size > 0, image / jnp.where(size > 0, size, 1), x)

        x = jax.lax.fori_loop(0, 16, step, jnp.ones_like(diagonal))
        quotient = jnp.sum(x * product(x)) / jnp.sum(jnp.square(x))
        return jnp.maximum(quotient, jnp.max(diagonal))

    def count_above(self, bound: Float[Array, ""]) -> Int[Array, ""]:
        """How many eigenvalues exceed a bound: as many as `T - bound I` has positive pivots."""
        return jnp.sum(self._pivots(-bound[None]) > 0, dtype=jnp.int32)

    def degrees_of_freedom(self, shifts: Float[Array, " s"]) -> Float[Array, " s"]:
        """`tr(A (A + shift I)^(-1))` for every shift.

        `T + shift I = L D L'` gives the diagonal of its inverse from the last entry to the first,
        by sums of positive numbers, and what lies beside it, that times `-L`.
        """
        above, pivots = self._above[:, None], self._pivots(shifts)
        L = above / pivots

        def step(after: Float[Array, " s"], row: tuple[Array, Array]) -> tuple[Array, Array]:
            pivot, below = row
            inverse = 1 / pivot + below * below * after
            return inverse, inverse

        none = jnp.zeros_like(shifts)
        inverse = jax.lax.scan(step, none, (pivots, L), reverse=True)[1]
        after = jnp.concatenate([inverse[1:], none[None]])
        return jnp.sum(self.diagonal[:, None] * inverse - 2 * above * L * after, axis=0)

    def _pivots(self, shifts: Float[Array, " s"]) -> Float[Array, "p s"]:
        """Pivots `D` of `T + shift I = L D L'`."""
        tiny = jnp.finfo(shifts.dtype).tiny

        def step(before: Float[Array, " s"], row: tuple[Array, Array]) -> tuple[Array, Array]:
            diagonal, below = row
            pivot = diagonal + shifts - below / before * below
            pivot = jnp.where(pivot == 0, tiny, pivot)
            return pivot, pivot

        return jax.lax.scan(step, jnp.ones_like(shifts), (self.diagonal, self.below))[1]


def tridiagonal(matrix: Float[Array, "p p"]) -> Tridiagonal:
    """Reduce a symmetric positive semi-definite matrix by reflections (LAPACK `sytrd`).

    CPU and GPU only. Of the result only `matrix` has derivatives, from which `resolvent` takes its
    own.
    """
    p, dtype = matrix.shape[0], matrix.dtype
    fixed = jax.lax.stop_gradient(matrix)
    reduced, diagonal, below, scales = jax.lax.linalg.tridiagonal(fixed)
    # Reflection i is I - scale v v', with v zero up to entry i and 1 at entry i + 1. There are
    # p - 1, some with a scale of 0; the others are made up to whole blocks by v = 0.
    width = min(_WIDTH, p)
    blocks = -(-p // width)
    scales = jnp.pad(scales, (0, blocks * width - (p - 1)))
    v = (jnp.tril(reduced, -2) + jnp.eye(p, k=-1, dtype=dtype)).T
    v = jnp.pad(v, ((0, blocks * width - p), (0, 0)))
    V = jnp.where(scales[:, None] > 0, v, 0).reshape(blocks, width, p)
    # S^(-1) has the vectors' products above its diagonal, and 1 / scale on it.
    inverse = jnp.where(scales > 0, 1 / jnp.where(scales > 0, scales, 1), 1)
    one = jnp.broadcast_to(jnp.eye(width, dtype=dtype), (blocks, width, width))
    products = jnp.triu(dot(V, jnp.swapaxes(V, 1, 2)), 1)
    S = jax.scipy.linalg.solve_triangular(
        products + inverse.reshape(blocks, width, 1) * one, one, lower=False
    )
    return Tridiagonal(matrix, diagonal, jnp.pad(below, (1, 0)), V, S)
