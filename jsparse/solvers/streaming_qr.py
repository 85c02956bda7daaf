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
    """Return the upper triangular `R` with `R'R = start'start + sum of rows'rows`.

    All transformations are orthogonal, so the error grows with the condition number of the rows,
    not with its square as in a Cholesky factorisation of the sum. Memory holds one block of rows.

    Args:
        rows_of: a function of one block of each of `arrays` that returns a block of the tall
            matrix. Rows of zeros in all arrays must give rows of zeros.
        arrays: arrays with equal numbers of rows.
        start: rows placed above all others, such as an earlier factor.
        block_rows: number of rows in memory at a time (static).
    """
    q = start.shape[1]
    first = jnp.concatenate([start, jnp.zeros((max(0, q - len(start)), q), start.dtype)])

    def step(R: Float[Array, "q q"], block: tuple[Array, ...]) -> tuple[Array, None]:
        stacked = jnp.concatenate([R, rows_of(*block)])
        return jnp.linalg.qr(stacked, mode="r"), None

    n_blocks, rows = block_shape(arrays[0].shape[0], block_rows)
    blocks_of_arrays = tuple(to_blocks(a, n_blocks, rows) for a in arrays)
    return jax.lax.scan(step, jnp.linalg.qr(first, mode="r"), blocks_of_arrays)[0]
