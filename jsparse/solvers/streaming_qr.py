"""The triangular factor of a tall matrix, one block of rows at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._blocks import block_shape, to_blocks


def streaming_qr(
    rows_of: Callable[..., Float[Array, "r q"]],
    arrays: tuple[Array, ...],
    start: Float[Array, "s q"],
    block_rows: int,
) -> Float[Array, "q q"]:
    """Upper triangular `R` with `R'R = start'start + sum of rows'rows`, without that sum.

    By orthogonal transformations only, so that in any precision it errs by the condition of the
    rows, where the Cholesky factor of the sum errs by its square. Memory holds one block.

    Args:
        rows_of: gives a block of the tall matrix from the same block of each of `arrays`; rows of
            zeros in all of them must give rows of zeros.
        arrays: with the same number of rows.
        start: rows that come before.
        block_rows: in memory at a time (static).
    """
    q = start.shape[1]
    first = jnp.concatenate([start, jnp.zeros((max(0, q - len(start)), q), start.dtype)])

    def step(R: Float[Array, "q q"], block: tuple[Array, ...]) -> tuple[Array, None]:
        stacked = jnp.concatenate([R, rows_of(*block)])
        return jnp.linalg.qr(stacked, mode="r"), None

    blocks, rows = block_shape(arrays[0].shape[0], block_rows)
    each = tuple(to_blocks(a, blocks, rows) for a in arrays)
    return jax.lax.scan(step, jnp.linalg.qr(first, mode="r"), each)[0]
