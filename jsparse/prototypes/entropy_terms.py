"""Density functionals `psi_r = integral f^(r) f` of one column, exactly or from binned counts.

With the bandwidth h the estimate `psi_r(h)` is a double sum over all pairs of rows, the diagonal
`i = j` included. `exact` and `binned` prepare a function of r and h that returns the dimensionless
`h^(r+1) psi_r(h)`, which neither overflows nor underflows: De Brabanter 2010, eq. 14, without the
power of h.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._blocks import block_shape, sum_row_blocks
from .._numerics import dot
from .._types import Scalar, ScalarLike

Functional = Callable[[int, Scalar], Scalar]  # (r, h) -> h^(r+1) psi_r(h), r even

# Number of elements in one block of the double sum.
_BLOCK = 2**20


def phi_derivative(r: int, x: Array) -> Array:
    """Return the r-th derivative of the standard normal density, r in 0, 4, 6."""
    s = x * x
    density = jnp.exp(-s / 2) / float(np.sqrt(2 * np.pi))
    if r == 0:
        return density
    if r == 4:
        return ((s - 6) * s + 3) * density
    if r == 6:
        return (((s - 15) * s + 45) * s - 15) * density
    raise ValueError(f"r: expected 0, 4 or 6, got {r}")


def exact(z: Float[Array, " n"], share: Float[Array, " n"]) -> tuple[Functional, Scalar]:
    """Return `(r, h) -> h^(r+1) psi_r(h)` by sums over all pairs of rows, in `O(n^2)` time a call.

    Args:
        z: the column, of unit scale.
        share: share of each row, 1 / n; 0 for padding.

    Returns:
        The function, and the fraction of ordered pairs of different rows with equal values.
    """
    # The functions are even, so each pair of rows i and i + shift (mod n) counts twice. On a CPU a
    # product sums several times faster than `jnp.sum`, which XLA does not vectorise.
    n = z.shape[0]
    shifts = np.arange(1, n // 2 + 1, dtype=np.int32)
    multiplicity = np.where(2 * shifts == n, 1, 2)

    def pairs(shifts: Array, multiplicity: Array) -> tuple[Array, Array]:
        other = (jnp.arange(n, dtype=jnp.int32)[None] + shifts[:, None]) % n
        return z[other] - z[None], multiplicity[:, None] * share[other]

    blocks, rows = block_shape(max(1, len(shifts)), max(1, _BLOCK // n))
    numbers = jnp.asarray(shifts), jnp.asarray(multiplicity, z.dtype)
    # A single block is kept for all evaluations; several blocks would not fit into memory.
    known = pairs(*numbers) if blocks == 1 else None

    def mean_over_pairs(function: Callable[[Array], Array]) -> Scalar:
        def total(differences: Array, shares: Array) -> Scalar:
            return jnp.sum(dot(shares * function(differences), share))

        zero = jnp.zeros((), z.dtype)
        same_row = function(zero) * dot(share, share)
        if known is not None:
            return same_row + total(*known)
        return same_row + sum_row_blocks(lambda *a: total(*pairs(*a)), numbers, zero, rows)

    ties = mean_over_pairs(lambda difference: (difference == 0).astype(z.dtype)) - jnp.max(share)
    return lambda r, h: mean_over_pairs(lambda difference: phi_derivative(r, difference / h)), ties


def binned(
    z: Float[Array, " n"], share: Float[Array, " n"], grid: int, margin: ScalarLike
) -> tuple[Functional, Scalar, Scalar]:
    """Return `(r, h) -> h^(r+1) psi_r(h)` from linearly binned counts, in `O(grid)` time a call.

    By Parseval, `psi_r(h)` is the integral of `(-1)^(r/2) t^r exp(-h^2 t^2 / 2) |c(t)|^2 / 2 pi`.
    Here c is the characteristic function of the sample; one FFT of the counts gives it on a grid of
    frequencies. All terms have one sign, so nothing cancels in float32, unlike in the sum over lags
    (Wand 1994). Linear binning multiplies c by a squared sinc, which is divided out.

    Args:
        z: the column, of unit scale; padding holds the value of a row.
        share: share of each row, 1 / n; 0 for padding.
        grid: number of bins, a power of two.
        margin: empty space beyond the data. If h is at most a fifth of the margin, the period of
            the FFT has no effect.

    Returns:
        The function, the fraction of pairs of rows that are ties at the resolution of the grid, and
        the width of a bin. The grid resolves an h of at least three widths.
    """
    dtype = z.dtype
    low, high = jnp.min(z), jnp.max(z)
    width = (high - low + margin) / grid
    position = jnp.clip((z - low) / width, 0, grid - 2)
    left = jnp.floor(position)
    right, bins = share * (position - left), left.astype(jnp.int32)
    counts = jnp.zeros(grid, dtype).at[bins].add(share - right).at[bins + 1].add(right)
    # Rows of equal value between two bins are ties too, so neighbouring counts are multiplied.
    ties = jnp.sum(counts * (counts + 2 * jnp.roll(counts, 1))) - jnp.max(share)

    wave = 2 * np.pi * np.arange(grid // 2 + 1) / grid  # frequencies times the width of a bin
    fold = np.where((wave == 0) | (wave == np.pi), 1.0, 2.0)  # negative frequencies
    correction = fold / np.sinc(wave / (2 * np.pi)) ** 4 / grid
    power = jnp.abs(jnp.fft.rfft(counts)) ** 2 * jnp.asarray(correction, dtype)
    frequencies = jnp.asarray(wave, dtype)

    def functional(r: int, h: Scalar) -> Scalar:
        ratio = h / width
        x = ratio * frequencies
        total = ratio * jnp.sum(power * x**r * jnp.exp(-x * x / 2))
        return -total if r % 4 else total

    return functional, ties, width
