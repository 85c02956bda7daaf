"""Folds for cross-validation, as a rectangular table of row numbers."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, UInt32

from .._arguments import as_key, labels_of, whole_number
from .._blocks import capacity
from .._numerics import as_array, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, KeyLike


class Folds(NamedTuple):
    """Row numbers of `v` folds, padded to `r` rows in each so that shapes stay static.

    Attributes:
        index: row numbers of each fold, shape `v r`; padding holds row number 0.
        valid: False at padding, shape `v r`.
    """

    index: Int[Array, "v r"] | Int[np.ndarray, "v r"]
    valid: Bool[Array, "v r"] | Bool[np.ndarray, "v r"]

    __repr__ = short_repr

    @classmethod
    def of(cls, parts: Sequence[np.ndarray], rows: int | None = None) -> "Folds":
        """Return folds, as NumPy arrays, from the row numbers of each fold.

        Every fold is padded to `rows` rows, by default to the length of the longest fold.
        """
        rows = max(map(len, parts)) if rows is None else rows
        index, valid = np.zeros((len(parts), rows), np.int32), np.zeros((len(parts), rows), bool)
        for fold, numbers in enumerate(parts):
            index[fold, : len(numbers)], valid[fold, : len(numbers)] = numbers, True
        return cls(index, valid)

    def padded(self, rows: int) -> "Folds":
        """Return these folds, as NumPy arrays, padded to `rows` rows in each."""
        added = ((0, 0), (0, rows - self.index.shape[1]))
        return Folds(np.pad(np.asarray(self.index), added), np.pad(np.asarray(self.valid), added))

    def gather(self, x: Array) -> Array:
        """Return `x (n, ...)` laid out by folds, `(v, r, ...)`."""
        return x[self.index]

    def scatter(self, values: Array, n: int) -> Array:
        """Return values `(v, r, ...)` in row order, `(n, ...)`; rows in no fold get zero."""
        index = jnp.where(self.valid, self.index, n)
        return jnp.zeros((n, *values.shape[2:]), values.dtype).at[index].set(values, mode="drop")

    def check(self, n: int) -> None:
        """Raise a `ValueError` if a row number lies outside 0..n-1; under `jit`, check nothing."""
        rows = np.asarray(self.index) if is_concrete(self.index) else np.zeros(1)
        if not (rows.size and 0 <= rows.min() <= rows.max() < n):
            raise ValueError(f"folds: expected row numbers 0 to {n - 1}, got folds of other data")


def plain_folds(key: KeyLike, n: int, v: int) -> Folds:
    """Return `v` random folds of `n` rows (De Brabanter 2010, Algorithm 3, step 2).

    The sizes of the folds differ by at most one. Raise ValueError unless `v` is from 2 to `n`.
    """
    key, v = as_key(key), _n_folds(n, v)
    return _assign_in_turn(_permutation(key, n), v)


def stratified_folds(key: KeyLike, labels: ArrayLike, v: int) -> Folds:
    """Return `v` random folds, stratified by class.

    Rows are shuffled, sorted by class and assigned to the folds in turn. So any two folds differ in
    size by at most one row, and by at most one row of each class.

    Args:
        key: an integer, or a key of `jax.random`.
        labels: class labels of any type, shape `n`; under `jit`, integers.
        v: number of folds, from 2 to `n`.
    """
    if is_concrete(labels):
        # Use NumPy, as jax.numpy would trace even concrete values inside a caller's jit.
        numbers = np.unique(labels_of("labels", labels), return_inverse=True)[1].astype(np.int32)
    else:
        numbers = as_array(labels)
    n = numbers.shape[0]
    key, v = as_key(key), _n_folds(n, v)
    shuffled = _permutation(key, n)
    if not (isinstance(numbers, np.ndarray) and isinstance(shuffled, np.ndarray)):
        numbers, shuffled = as_array(numbers), as_array(shuffled)
    order = numbers[shuffled].argsort(stable=True)
    return _assign_in_turn(shuffled[order], v)


def folds_from_assignment(assignment: ArrayLike) -> Folds:
    """Return folds from the fold number of every row, shape `n`; not under `jit`.

    Raises:
        ValueError: unless the numbers are 0..v-1 with v >= 2 and every fold has a row.
    """
    numbers = np.asarray(assignment)
    values = np.unique(numbers)
    if numbers.ndim != 1 or len(values) < 2 or not np.array_equal(values, np.arange(len(values))):
        raise ValueError(
            "folds: expected one fold number per row, 0..v-1 with v >= 2 and none missing; got "
            f"shape {numbers.shape} with values {values[:10]}"
        )
    return Folds.of([np.flatnonzero(numbers == fold) for fold in values])


def _permutation(key: Key, n: int) -> Int[Array, " n"] | Int[np.ndarray, " n"]:
    """Return `jax.random.permutation(key, n)`.

    If the key is concrete, sort on the host, so that no program is compiled for every `n`.
    """
    if not is_concrete(key):
        return jax.random.permutation(key, n)
    order = np.arange(n, dtype=np.int32)
    for keys in _sort_keys(key, capacity(n), shuffle_rounds(n)):
        order = order[np.argsort(np.asarray(keys)[:n], kind="stable")]
    return order


def shuffle_rounds(n: int) -> int:
    """Return the number of rounds of sorting in which JAX shuffles `n` rows.

    With this number, hardly any two rows have equal sort keys in every round.
    """
    return math.ceil(3 * math.log(n) / math.log(2**32 - 1))


def folds_of_padded_rows(key: Key, classes: Int[Array, " r"], v: int, rounds: int) -> Folds:
    """Return the folds of `stratified_folds`, or of `plain_folds` if all rows have one class.

    The function is pure in the key and the classes, so that `vmap` divides many tables. Class
    numbers are -1 for padding at the end. `rounds` is `shuffle_rounds(n)` for n rows before it.
    """
    present = classes >= 0
    order = jnp.arange(len(classes), dtype=jnp.int32)
    last = np.uint32(2**32 - 1)
    for keys in _sort_keys(key, len(classes), rounds):  # padding stays at the end
        order = order[jnp.argsort(jnp.where(present, keys, last), stable=True)]
    ranks = jnp.where(present, classes, np.int32(2**31 - 1))[order]
    order = order[jnp.argsort(ranks, stable=True)]
    folds = _assign_in_turn(order, v)
    valid = folds.valid & present[folds.index]
    return Folds(jnp.where(valid, folds.index, 0), valid)


@functools.partial(compiled, quickly=True, static_argnames=("rows", "rounds"))
def _sort_keys(key: Key, rows: int, rounds: int) -> list[UInt32[Array, " r"]]:
    """Return one random integer for every row, for each round of sorting."""
    sort_keys = []
    for _ in range(rounds):
        key, key_now = jax.random.split(key)
        sort_keys.append(jax.random.bits(key_now, (rows,), jnp.uint32))
    return sort_keys


def _assign_in_turn(order: Int[Array, " n"] | Int[np.ndarray, " n"], v: int) -> Folds:
    """Return `v` folds, of which fold `i mod v` holds row number `order[i]`."""
    numpy = np if isinstance(order, np.ndarray) else jnp
    order, n = order.astype(np.int32), order.shape[0]
    rows = -(-n // v)
    index = numpy.pad(order, (0, rows * v - n)).reshape(rows, v).T
    valid = (np.arange(rows * v) < n).reshape(rows, v).T
    return Folds(index, valid)


def _n_folds(n: int, v: int) -> int:
    return whole_number("folds", v, 2, whole_number("n", n, 2), "the number of rows")
