"""Rows in blocks: the one place that pads, reshapes and loops over rows.

Blocks keep an `n x m` kernel block from ever existing: memory is bounded by `block_rows * m`, and
on a CPU a block that stays in cache is faster than the whole (measured: 1.3 times the bare product
`Phi' Phi` at 2048 rows against 1.5 for the whole).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

T = TypeVar("T")
SYMBOLIC_ROWS = 256  # of a block; one row takes the time of so many


def default_block_rows() -> int:
    """Rows in a block: what stays in a CPU's cache, and what fills an accelerator."""
    return 2048 if jax.default_backend() == "cpu" else 32768


def rows_in_block(block_rows: int | None) -> int:
    """Return the rows of a block: the caller's number, or the number that suits the device."""
    return default_block_rows() if block_rows is None else block_rows


def capacity(n: int) -> int:
    """Return the number of rows to pad `n` rows to, so that similar tables share programs.

    Of 16 to 32 sizes between powers of two, which costs 2 % of the work on average and 6 % at most;
    small tables are padded to a multiple of 16.
    """
    step = max(16, 1 << max((n - 1).bit_length() - 5, 0))
    return -(-n // step) * step


def rounded_down(n: int) -> int:
    """Return the largest `capacity` that is at most `n`; below 16 return `n`.

    For numbers that are chosen from the number of rows, and should not differ with every one.
    """
    step = max(16, 1 << max(n.bit_length() - 5, 0))
    return n if n < step else n // step * step


def padded(a: Shaped[np.ndarray, "n ..."], rows: int, mode: str = "edge") -> np.ndarray:
    """Pad an array on the host to `rows` rows with copies of its last row, or with zeros."""
    missing = rows - len(a)
    return a if missing == 0 else np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode=mode)  # type: ignore[call-overload]


def batch_capacities() -> tuple[int, ...]:
    """Return the numbers of rows, increasing, for which programs of host rows are compiled.

    There are six, because compiling one takes as long as predicting ten thousand rows.
    """
    return tuple(default_block_rows() >> halvings for halvings in (7, 5, 3, 2, 1, 0))


def row_batches(n: int) -> Iterator[tuple[int, int, int]]:
    """Split `n` rows into batches `(start, stop, capacity)`, each padded to one of six capacities.

    All batches but the last one or two are full blocks. The remaining rows take two batches
    instead of one if that saves more rows of padding than another call costs.
    """
    capacities = batch_capacities()
    block, call = capacities[-1], capacities[-1] >> 4  # the fixed cost of a call, in rows
    start = n // block * block
    yield from ((first, first + block, block) for first in range(0, start, block))
    rows = n - start
    if rows == 0:
        return
    least = min(c for c in capacities if c >= rows)
    full = max((c for c in capacities if c < rows), default=0)
    second = min(c for c in capacities if c >= rows - full)
    if full > 0 and full + second + call < least:
        yield start, start + full, full
        start, least = start + full, second
    yield start, n, least


def map_row_batches(
    function: Callable[[Float[np.ndarray, "r d"]], Shaped[Array, "r ..."]],
    X: Float[np.ndarray, "n d"],
) -> Shaped[np.ndarray, "n ..."]:
    """Apply a row-wise function to rows on the host, at least one, by `row_batches`."""
    # Start all batches before waiting for the first.
    parts = [
        (function(padded(X[start:stop], rows)), stop - start)
        for start, stop, rows in row_batches(len(X))
    ]
    return np.concatenate([np.asarray(values)[:count] for values, count in parts])


def systems_at_once() -> int:
    """Return how many small systems are decomposed together: one on a CPU, many elsewhere."""
    return 1 if jax.default_backend() == "cpu" else 64


def capacities(most: int, eighths: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return the sizes for which code for a system of a traced size is compiled; see `of_capacity`.

    Args:
        most: the largest.
        eighths: the sizes, in eighths of `most`, increasing; the last is 8.
        least: size below which a smaller system saves nothing.

    An accelerator has one size: if several systems are solved together, all branches are computed.
    """
    if systems_at_once() > 1:
        return (most,)
    return tuple(size for part in eighths if (size := -(-most * part // 8)) >= least or part == 8)


def of_capacity(count: Int[Array, ""], sizes: tuple[int, ...], function: Callable[[int], T]) -> T:
    """Return `function(size)` for the smallest size that is at least `n`, or for the largest."""
    larger = jnp.sum(count > np.asarray(sizes[:-1], np.int32), dtype=jnp.int32)
    return jax.lax.switch(larger, [functools.partial(function, size) for size in sizes])


def map_systems(function: Callable[[Any], T], systems: Any, at_least: int = 1) -> T:
    """Apply `function` to every system of the leading axis, in batches that suit the device."""
    at_once = max(at_least, systems_at_once())
    # A loop over single systems compiles faster than one over batches of one.
    return jax.lax.map(function, systems, batch_size=None if at_once == 1 else at_once)


def block_shape(n: Any, block_rows: int) -> tuple[Any, Any]:
    """Return `(blocks, rows)` that cover `n` rows by equal blocks with the least padding.

    A symbolic number of rows, as in `jax.export`, gets blocks of `SYMBOLIC_ROWS` rows, at most one
    block more than necessary.
    """
    if block_rows < 1:
        raise ValueError(f"block_rows: expected at least 1, got {block_rows}")
    if not isinstance(n, int):
        rows = min(SYMBOLIC_ROWS, block_rows)
        return n // rows + 1, rows
    blocks = max(1, -(-n // block_rows))
    return blocks, -(-n // blocks)


def to_blocks(x: Array, blocks: Any, rows: Any, *, mode: str = "constant") -> Array:
    """Return `x (n, ...)` as `(blocks, rows, ...)`, padded with zeros or by `mode` at the end."""
    padding = [(0, blocks * rows - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding, mode=mode).reshape(blocks, rows, *x.shape[1:])


def map_row_blocks(
    function: Callable[[Float[Array, "r *d"]], Shaped[Array, "r *c"]],
    X: Float[Array, "n *d"],
    block_rows: int,
) -> Shaped[Array, "n *c"]:
    """Apply a row-wise function one block of rows at a time."""
    n = X.shape[0]
    blocks, rows = block_shape(n, block_rows)
    if blocks == 1:
        return function(X)
    # Pad with copies of a row: a user's function may not be finite at zero.
    values = jax.lax.map(function, to_blocks(X, blocks, rows, mode="edge"))
    return values.reshape(blocks * rows, *values.shape[2:])[:n]


def sum_row_blocks(
    function: Callable[..., T], arrays: tuple[Array, ...], zero: T, block_rows: int
) -> T:
    """Sum over row blocks of `function(*block)`, a pytree like `zero`.

    The last array holds weights, which are padded with 0. The others are padded with copies of
    their last row, because a user's kernel may not be finite at zero.
    """
    blocks, rows = block_shape(arrays[0].shape[0], block_rows)
    if blocks == 1:
        return function(*arrays)

    def step(total: T, block: tuple[Array, ...]) -> tuple[T, None]:
        return jax.tree.map(jnp.add, total, function(*block)), None

    *rest, weights = arrays
    padded = (to_blocks(a, blocks, rows, mode="edge") for a in rest)
    return jax.lax.scan(step, zero, (*padded, to_blocks(weights, blocks, rows)))[0]
