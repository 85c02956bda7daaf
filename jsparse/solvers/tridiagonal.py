"""Shifted symmetric systems from one reduction to tridiagonal form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, each_alone

# Reflections go by blocks, by products: not too few in one, not too many to write out.
_WIDTH, _BLOCKS = 64, 8


class Tridiagonal(NamedTuple):
    """`A = Q T Q'` for a symmetric positive semi-definite `A`, with `T` tridiagonal.

    `(A + shift I)^(-1) b` is a product with `Q'`, a tridiagonal solve for each shift, and a product
    with `Q` (Elden 1977): all that an eigendecomposition is used for in a ridge system. `Q` is the
    product of blocks of reflections `I - V' S V` (Schreiber and Van Loan 1989), entries from the
    last to the first, then zeros up to whole blocks. Those of a block leave alone what comes after
    its vectors end.
    """

    matrix: Float[Array, "p p"]
    diagonal: Float[Array, " p"]  # of T
    below: Float[Array, " p"]  # T[i, i-1], and 0 for i = 0
    V: tuple[Float[Array, "_ _"], ...]  # a reflection's vector in each row
    S_t: Float[Array, "b w w"]  # S', lower triangular

    def apply_inverse(
        self, rhs: Float[Array, "t k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """`(A + shift_s I)^(-1) rhs_s` for every shift, of one `rhs` or of each its own."""
        (_, k, p), s = rhs.shape, len(shifts)
        turned = self._turn(rhs.reshape(-1, p), transpose=True).reshape(rhs.shape)

        # T + shift I = L D L', an entry of all systems at a time.
        def forward(before: tuple[Array, Array], row: tuple[Array, Array, Array]) -> tuple:
            (pivot, x), (diagonal, below, b) = before, row
            after = self._next_pivot(pivot, diagonal, below, shifts)
            x = b - (below / pivot)[:, None] * x
            return (after, x), (after, x)

        def backward(x: Float[Array, "s k"], row: tuple[Array, Array, Array]) -> tuple:
            pivot, above, b = row
            x = (b - above * x) / pivot[:, None]
            return x, x

        rows = (self.diagonal, self.below, jnp.moveaxis(turned, 2, 0))
        none = jnp.zeros((s, k), rhs.dtype)
        _, (pivots, halfway) = jax.lax.scan(forward, (jnp.ones_like(shifts), none), rows)
        rows = (pivots, self._above, halfway)
        solved = jnp.moveaxis(jax.lax.scan(backward, none, rows, reverse=True)[1], 0, 2)
        return self._turn(solved.reshape(s * k, p), transpose=False).reshape(s, k, p)

    def _turn(self, rows: Float[Array, "k p"], *, transpose: bool) -> Float[Array, "k p"]:
        """`Q x` or `Q' x` for every row."""
        p = rows.shape[1]
        rows = jnp.pad(rows[:, ::-1], ((0, 0), (0, self.V[-1].shape[1] - p)))
        blocks = list(zip(self.V, self.S_t, strict=True))
        for V, S_t in blocks[::-1] if transpose else blocks:
            end = V.shape[1]
            inner = dot(dot(rows[:, :end], V.T), S_t if transpose else S_t.T)
            rows = rows.at[:, :end].add(-dot(inner, V))
        return rows[:, :p][:, ::-1]

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
    """Reduce a symmetric positive semi-definite matrix by reflections (LAPACK `sytrd`).

    CPU and GPU only. Of the result only `matrix` has derivatives, from which `resolvent` takes its
    own.
    """
    dtype = matrix.dtype
    # From the first column on: Nystroem features come largest first, and what is small keeps its
    # digits only if the large ones go before it. Backwards, as LAPACK is faster from the last one.
    backward = jax.lax.stop_gradient(matrix).T[::-1, ::-1]
    diagonal, beside, V, scales = _reduce(backward)
    width = V[0].shape[0]
    # S^(-1) has the vectors' products above its diagonal, and 1 / scale on it.
    inverse = jnp.where(scales > 0, 1 / jnp.where(scales > 0, scales, 1), 1)
    products = jnp.tril(jnp.stack([dot(v, v.T) for v in V]), -1)
    S_t = jax.vmap(_inverse)(products + inverse[:, :, None] * jnp.eye(width, dtype=dtype)[None])
    return Tridiagonal(matrix, diagonal[::-1], jnp.pad(beside[::-1], (1, 0)), V, S_t)


@each_alone
def _reduce(matrix: Float[Array, "p p"]) -> tuple[Array, Array, tuple[Array, ...], Array]:
    """LAPACK's reduction to tridiagonal form from the last column on, reflections by blocks."""
    p, dtype = matrix.shape[0], matrix.dtype
    reduced, diagonal, beside, scales = jax.lax.linalg.tridiagonal(matrix, lower=False)
    # Q' is a product of p - 1 reflections I - scale_i v v', with v, in column i + 1, 1 at entry i
    # and zero after it; here made up to whole blocks by v = 0. LAPACK may set scales to 0.
    # A power of two: halved by `_inverse`, and rows are whole cache lines, without which a product
    # takes up to three times as long on a CPU (measured).
    width = 1 << (max(min(p, _WIDTH), -(-p // _BLOCKS)) - 1).bit_length()
    blocks = -(-p // width)
    scales = jnp.pad(scales, (0, blocks * width - (p - 1)))
    V = []
    for start in range(0, p, width):
        end = start + width
        vectors = reduced.T[start + 1 : end + 1, :end]
        row = start + jnp.arange(len(vectors), dtype=jnp.int32)[:, None]
        column = jnp.arange(vectors.shape[1], dtype=jnp.int32)[None]
        v = jnp.where(column < row, vectors, (column == row).astype(dtype))
        v = jnp.where(scales[start : start + len(v), None] > 0, v, 0)
        V.append(jnp.pad(v, ((0, width - v.shape[0]), (0, end - v.shape[1]))))
    return diagonal, beside, tuple(V), scales.reshape(blocks, width)


def _inverse(lower: Float[Array, "w w"]) -> Float[Array, "w w"]:
    """Of a lower triangular matrix, from blocks on its diagonal to blocks twice as large.

    As fast as LAPACK's for many small ones, and no call that waits for others.
    """
    width = lower.shape[0]
    found, h = (1 / jnp.diagonal(lower)).reshape(width, 1, 1), 1
    while h < width:
        pairs = width // (2 * h)
        tiles = lower.reshape(pairs, 2 * h, pairs, 2 * h)
        below = jnp.moveaxis(jnp.diagonal(tiles, axis1=0, axis2=2), -1, 0)[:, h:, :h]
        first, last = jnp.moveaxis(found.reshape(pairs, 2, h, h), 1, 0)
        corner = -dot(dot(last, below), first)
        found = jnp.block([[first, jnp.zeros_like(first)], [corner, last]])
        h *= 2
    return found[0]
