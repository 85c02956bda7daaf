"""Rows in blocks: padding, reshaping and loops over rows.

With blocks the `n x m` kernel matrix never exists, and memory is bounded by `block_rows * m`. On a
CPU a block that stays in the cache is also faster than the whole matrix (measured: 1.3 times the
time of the product `Phi' Phi` alone with blocks of 2048 rows, 1.5 times without blocks).
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ._runtime import on_cpu

T = TypeVar("T")
SYMBOLIC_ROWS = 256  # number of rows in a block; one row takes as long as a block


def default_block_rows() -> int:
    """Return the number of rows that stay in a CPU's cache, or that fill an accelerator."""
    return 2048 if on_cpu() else 32768


def rows_in_block(block_rows: int | None) -> int:
    """Return `block_rows`, or the `default_block_rows` of the device if it is None."""
    return default_block_rows() if block_rows is None else block_rows


def capacity(n: int, least: int = 16) -> int:
    """Return the number of rows to pad `n` rows to, so that similar tables share programs.

    There are 16 to 32 sizes between powers of two, so padding costs 2 % of the work on average and
    at most 6 %. Small tables are padded to a multiple of `least`, a power of two.
    """
    step = max(least, 1 << max((n - 1).bit_length() - 5, 0))
    return -(-n // step) * step


def rounded_down(n: int) -> int:
    """Return the largest `capacity` that is at most `n`; below 16 return `n`.

    Use it for numbers that are derived from the number of rows, but should change rarely.
    """
    step = max(16, 1 << max(n.bit_length() - 5, 0))
    return n if n < step else n // step * step


def padded(a: Shaped[np.ndarray, "n ..."], rows: int, mode: str = "edge") -> np.ndarray:
    """Pad a NumPy array to `rows` rows with its last row, or with zeros by `mode="constant"`."""
    missing = rows - len(a)
    return a if missing == 0 else np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode=mode)  # type: ignore[call-overload]


def batch_capacities() -> tuple[int, ...]:
    """Return the increasing numbers of rows to which batches of NumPy rows are padded.

    There are six, because compiling a program for one takes as long as predicting ten thousand
    rows.
    """
    return tuple(default_block_rows() >> halvings for halvings in (7, 5, 3, 2, 1, 0))


def row_batches(n: int) -> Iterator[tuple[int, int, int]]:
    """Split `n` rows into batches `(start, stop, capacity)`, each padded to one of six capacities.

    All batches but the last one or two are full blocks. The remaining rows take two batches
    instead of one if they save more rows of padding than another call costs.
    """
    capacities = batch_capacities()
    block, call_cost = capacities[-1], capacities[-1] >> 4  # the cost of another call, in rows
    start = n // block * block
    yield from ((first, first + block, block) for first in range(0, start, block))
    rows = n - start
    if rows == 0:
        return
    least = min(c for c in capacities if c >= rows)
    full = max((c for c in capacities if c < rows), default=0)
    second = min(c for c in capacities if c >= rows - full)
    if full > 0 and full + second + call_cost < least:
        yield start, start + full, full
        start, least = start + full, second
    yield start, n, least


def map_row_batches(
    function: Callable[[Float[np.ndarray, "r d"]], Shaped[Array, "r ..."]],
    X: Float[np.ndarray, "n d"],
) -> Shaped[np.ndarray, "n ..."]:
    """Apply a row-wise function to one or more NumPy rows in padded batches, see `row_batches`."""
    # All batches start before the first result is awaited.
    parts = [
        (function(padded(X[start:stop], rows)), stop - start)
        for start, stop, rows in row_batches(len(X))
    ]
    return np.concatenate([np.asarray(values)[:count] for values, count in parts])


def systems_at_once() -> int:
    """Return the number of linear systems to solve in one batch: 1 on a CPU, 64 elsewhere."""
    return 1 if on_cpu() else 64


def capacities(most: int, eighths: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return the increasing sizes up to `most` to which linear systems of traced size are padded.

    `eighths` are the sizes in eighths of `most`, increasing; the last is 8. Sizes below `least`
    would save no time. `of_capacity` selects a size when the program runs. An accelerator has one
    size, because all branches are computed if systems are solved together.
    """
    if systems_at_once() > 1:
        return (most,)
    return tuple(size for part in eighths if (size := -(-most * part // 8)) >= least or part == 8)


def of_capacity(count: Int[Array, ""], sizes: tuple[int, ...], function: Callable[[int], T]) -> T:
    """Return `function(size)` for the smallest size that is at least `count`, or the largest."""
    larger = jnp.sum(count > np.asarray(sizes[:-1], np.int32), dtype=jnp.int32)
    return jax.lax.switch(larger, [functools.partial(function, size) for size in sizes])


def map_systems(function: Callable[[Any], T], systems: Any, at_least: int = 1) -> T:
    """Apply `function` along the leading axis, in batches of `at_least` or more linear systems."""
    at_once = max(at_least, systems_at_once())
    # A loop over systems compiles faster than a loop over batches of one system.
    return jax.lax.map(function, systems, batch_size=None if at_once == 1 else at_once)


def map_folds(function: Callable[[Any], T], folds: Any, at_once: int) -> T:
    """Apply `function` to every fold: to all folds at once up to `at_once` rows, else in a loop.

    The first leaf of the pytree `folds` has the leading axes `v r` of folds and rows.
    """
    v, r = jax.tree.leaves(folds)[0].shape[:2]
    return jax.vmap(function)(folds) if v * r <= at_once else jax.lax.map(function, folds)


def block_shape(n: Any, block_rows: int) -> tuple[Any, Any]:
    """Return how many equal blocks cover `n` rows, and the rows of each, with the least padding.

    A symbolic number of rows, as in `jax.export`, gets blocks of `SYMBOLIC_ROWS` rows, of which at
    most one is unnecessary.
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
    function: Callable[[Float[Array, " r *d"]], Shaped[Array, " r *c"]],
    X: Float[Array, " n *d"],
    block_rows: int,
) -> Shaped[Array, " n *c"]:
    """Apply a row-wise function one block of rows at a time."""
    n = X.shape[0]
    blocks, rows = block_shape(n, block_rows)
    if blocks == 1:
        return function(X)
    # Padding copies a row, because a user's function may not be finite at zero.
    values = jax.lax.map(function, to_blocks(X, blocks, rows, mode="edge"))
    return values.reshape(blocks * rows, *values.shape[2:])[:n]


def sum_row_blocks(
    function: Callable[..., T],
    arrays: tuple[Array, ...],
    zero: T,
    block_rows: int,
    first_rows: Int[Array, ""] | None = None,
) -> T:
    """Sum over row blocks of `function(*block)`, a pytree like `zero`.

    The sum is compensated: what rounding adds to the total is subtracted from the next block
    (Kahan 1965). So only the errors of the blocks themselves remain.

    The last array holds weights, which are padded with 0. The others are padded with copies of
    their last row, because a user's kernel may not be finite at zero.

    With `first_rows`, rows after the first `first_rows` must have weight 0, and blocks of such rows
    take no time.
    """
    blocks, rows = block_shape(arrays[0].shape[0], block_rows)
    if blocks == 1:
        return function(*arrays)

    def step(sums: tuple[T, T], block: tuple[Array, ...]) -> tuple[tuple[T, T], None]:
        """Add a block to the total; return the total and its excess by rounding."""
        total, excess = sums
        corrected = jax.tree.map(jnp.subtract, function(*block), excess)
        new_total = jax.tree.map(jnp.add, total, corrected)
        excess = jax.tree.map(
            # A total that overflows stays infinite.
            lambda new, old, added: jnp.where(jnp.isfinite(new), (new - old) - added, 0),
            new_total, total, corrected,
        )  # fmt: skip
        return (new_total, excess), None

    *rest, weights = arrays
    padded = (to_blocks(a, blocks, rows, mode="edge") for a in rest)
    in_blocks = (*padded, to_blocks(weights, blocks, rows))
    if first_rows is None:
        return jax.lax.scan(step, (zero, zero), in_blocks)[0][0]

    def step_if_first(sums: tuple[T, T], block: tuple[Array, tuple[Array, ...]]) -> Any:
        start, arrays = block
        is_first = start < first_rows
        return jax.lax.cond(is_first, step, lambda sums, _: (sums, None), sums, arrays)

    starts = jnp.arange(blocks, dtype=jnp.int32) * rows
    return jax.lax.scan(step_if_first, (zero, zero), (starts, in_blocks))[0][0]
