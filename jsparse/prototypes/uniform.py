"""Random prototypes: any rows, or a share for each class."""

import functools
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arguments import as_key, labels_of, whole_number
from .._blocks import padded
from .._numerics import is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, KeyLike
from ._validate import check_count, positive_weights


def uniform(
    key: KeyLike, n: int, n_prototypes: int, weights: Float[Array, " n"] | None = None
) -> Int[Array, " m"]:
    """Return the numbers of `m` random rows out of `n`, all different, shape `m`, in random order.

    All sets of rows are equally likely. With `weights` the rows are drawn one after another with
    probability proportional to their weights. Rows of weight 0 are drawn only if fewer than m rows
    have weight.

    Pure in `key` and `weights`; `vmap` over keys gives independent draws.

    Raises:
        ValueError: unless 1 <= m <= n.
    """
    key = as_key(key)
    m = check_count(n_prototypes, whole_number("n", n, 1))
    return draw(key, n, m, np.int32(n), weights)


def stratified(
    key: KeyLike, labels: ArrayLike, n_prototypes: int, weights: ArrayLike | None = None
) -> Int[Array, " m"]:
    """Return the numbers of `m` different random rows, of which each class gets its share.

    Rows of a class are equally likely. `allocate` computes the shares. Pure in `key`; `vmap` over
    keys gives independent draws.

    Args:
        key: random key of the draw.
        labels: class of every row, of any type, shape `n`, not traced.
        n_prototypes: number of rows `m`.
        weights: row weights, shape `n`, not traced. A class then gets its share of the weight, and
            its rows are drawn as in `uniform`.

    Returns:
        Row numbers, shape `m`, class after class in the sorted order of the labels.

    Raises:
        ValueError: if `labels` is traced or not of shape `n`, m exceeds the number of rows with
            weight, or m is less than the number of classes.
    """
    key, codes = as_key(key), encode(labels)
    n = len(codes)
    m = check_count(n_prototypes, n)
    w = None if weights is None else positive_weights(weights, n)
    return first_draw(key, draws_of(codes, m, n, w, stratify=True), m)


def interleaved(
    key: KeyLike, n_prototypes: int, labels: ArrayLike | None = None
) -> Int[np.ndarray, " m"]:
    """Return an order of `m` rows whose first k rows are a random choice, for every k.

    With labels the classes are spread evenly: the first k rows hold the share of each class, up to
    one row. If k is at least the number of classes, they hold a row of every class.

    Args:
        key: random key of the order.
        n_prototypes: number of rows `m`.
        labels: class of every row, of any type, shape `m`, not traced.

    Raises:
        ValueError: if m is not positive, or `labels` is traced or not of shape `m`.
    """
    key = as_key(key)
    m = whole_number("n_prototypes", n_prototypes, 1)
    order = np.asarray(_permutation(key, m))
    if labels is None:
        return order
    codes = encode(labels)
    if len(codes) != m:
        raise ValueError(f"labels: expected {m}, one for each row, got {len(codes)}")
    position = np.empty(m)
    for code, count in enumerate(np.bincount(codes)):
        position[order[codes[order] == code]] = np.arange(count) / count
    return np.argsort(position, kind="stable")


@functools.partial(compiled, quickly=True, static_argnames="m")
def _permutation(key: Key, m: int) -> Int[Array, " m"]:
    return jax.random.permutation(key, m)


def encode(labels: ArrayLike) -> Int[np.ndarray, " n"]:
    """Return the class number of each row; the sorted labels have the numbers 0..c-1."""
    if not is_concrete(labels):
        raise ValueError(
            "labels: expected an array of values, got a traced one; each class's number of "
            "prototypes is computed outside jit and vmap"
        )
    labels = labels_of("labels", labels)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"labels: expected shape (n,) with at least one row, got {labels.shape}")
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def allocate(
    counts: Int[np.ndarray, " c"], m: int, mass: Float[np.ndarray, " c"] | None = None
) -> Int[np.ndarray, " c"]:
    """Return how many of `m` rows each class gets: its share by its number of rows, at least one.

    `counts` are the numbers of rows of the classes, and the most that they get. With `mass`, the
    shares are in proportion to `mass`, the weights of the classes.

    The method is largest remainders. Each class gets the whole part of `m counts / n`, or one row
    if the whole part is zero. The remaining rows go to the largest remainders. If the minimum of
    one row takes too many, the classes furthest above their quota give rows up. Raise ValueError if
    m > n, or if m is less than the number of classes.

    Example:
        >>> import numpy as np
        >>> allocate(np.array([90, 9, 1]), 10).tolist()
        [8, 1, 1]
    """
    counts = np.asarray(counts)
    n, classes = int(counts.sum()), len(counts)
    check_count(m, n)
    if m < classes:
        raise ValueError(
            f"n_prototypes: expected at least one for each of {classes} classes, got {m}"
        )
    fractions = [Fraction(float(part)) for part in (counts if mass is None else mass)]
    quotas = [m * part / sum(fractions) for part in fractions]  # exact rational numbers
    shares = [min(max(1, int(q)), int(c)) for q, c in zip(quotas, counts, strict=True)]
    while sum(shares) != m:
        gaps = [quota - share for quota, share in zip(quotas, shares, strict=True)]
        if sum(shares) < m:
            candidates = [i for i, count in enumerate(counts) if shares[i] < count]
            shares[max(candidates, key=lambda i: gaps[i])] += 1
        else:
            candidates = [i for i, share in enumerate(shares) if share > 1]
            shares[min(candidates, key=lambda i: gaps[i])] -= 1
    return np.asarray(shares, np.int32)


class Places(NamedTuple):
    """The class of each prototype, and its rank in the random order of the rows of the class."""

    classes: Int[np.ndarray, " c"] | Int[Array, " c"]  # the numbers of all classes
    of_prototype: Int[np.ndarray, " m"] | Int[Array, " m"]  # the class, class after class
    rank: Int[np.ndarray, " m"] | Int[Array, " m"]  # the rank within the class, from 0

    __repr__ = short_repr


def places_in_strata(shares: Int[np.ndarray, " c"]) -> Places:
    """Return the class and the rank of each prototype, of which class `c` gets `shares[c]`.

    NumPy computes them: in the program that draws they would take half of the compile time.
    """
    classes = np.arange(len(shares), dtype=np.int32)
    rank = np.concatenate([np.arange(share, dtype=np.int32) for share in shares])
    return Places(classes, np.repeat(classes, shares), rank)


class Draws(NamedTuple):
    """The rows that prototypes are drawn from, padded to `n` rows; arrays of NumPy or JAX."""

    n_rows: Any  # number of rows that are not padding
    codes: Any  # class of each row, shape `n`; -1 for padding, all 0 without classes
    places: Places | None  # None to draw from all rows alike
    mass: Any  # row weights, shape `n`; 0 for padding, None if all are equal
    cumulative: Any  # share of the weight up to each row, shape `n`; None if all are equal

    __repr__ = short_repr


def draws_of(
    codes: Int[np.ndarray, " n"],
    m: int,
    rows: int,
    weights: Float[np.ndarray, " n"] | None,
    *,
    stratify: bool,
) -> Draws:
    """Return the rows to draw `m` prototypes from, as NumPy arrays.

    Args:
        codes: the class of each row; all 0 without classes.
        m: number of prototypes.
        rows: number of rows to pad to.
        weights: row weights; None if all are equal.
        stratify: whether each class gets its share of the prototypes.
    """
    n = len(codes)
    with_padding = padded(codes, rows)
    with_padding[n:] = -1  # padding belongs to no class
    if weights is None:
        places = places_in_strata(allocate(np.bincount(codes), m)) if stratify else None
        return Draws(np.int32(n), with_padding, places, None, None)
    class_weights = np.bincount(codes, weights)
    class_rows = np.bincount(codes[weights > 0], minlength=len(class_weights))
    places = places_in_strata(allocate(class_rows, m, class_weights))
    cumulative = padded((np.cumsum(weights) / np.sum(weights)).astype(np.float32), rows)
    mass = padded(weights.astype(np.float32), rows, "constant")
    return Draws(np.int32(n), with_padding, places, mass, cumulative)


def first_draw(key: Key, draws: Draws, m: int) -> Int[Array, " m"]:
    """Return the numbers of `m` random rows, from all rows alike or class by class."""
    if draws.places is None:
        return draw(key, draws.codes.shape[0], m, draws.n_rows)
    return draw_strata(key, draws.codes, draws.places, draws.mass)


@functools.partial(compiled, quickly=True)
def draw_strata(
    key: Key,
    codes: Int[Array, " n"],
    places: Places,
    weights: Float[Array, " n"] | None = None,
) -> Int[Array, " m"]:
    """Return the numbers of different random rows for all prototypes, class after class.

    A row whose code belongs to no class is never drawn.
    """
    priority = _priorities(key, codes.shape[0], weights)
    m = places.rank.shape[0]

    def of_class(code: Int[Array, ""]) -> Int[Array, " m"]:
        return jax.lax.top_k(jnp.where(codes == code, priority, -jnp.inf), m)[1]

    return jax.lax.map(of_class, places.classes)[places.of_prototype, places.rank]


@functools.partial(compiled, quickly=True, static_argnames=("rows", "m"))
def draw(
    key: Key, rows: int, m: int, n: Int[Array, ""], weights: Float[Array, " n"] | None = None
) -> Int[Array, " m"]:
    """Return the numbers of `m` different random rows of the first `n`; `rows` includes padding."""
    priority = _priorities(key, rows, weights)
    present = jnp.arange(rows, dtype=jnp.int32) < n
    return jax.lax.top_k(jnp.where(present, priority, -jnp.inf), m)[1]


def _priorities(key: Key, n: int, weights: Float[Array, " n"] | None = None) -> Float[Array, " n"]:
    """Return random numbers whose m largest mark a sample without replacement.

    With weights they are `log(u) / w` (Efraimidis and Spirakis 2006). The k-th row with a weight
    above 0 has the k-th number u, so rows of weight 0 do not change the draw. Without weights they
    are positive float32 numbers in uniformly random order, with 2^30 different values.

    Finding the largest m floats is a hundred times faster on a CPU than the sort in
    `jax.random.permutation` (2 ms against 0.2 s for 500,000). Bit patterns keep their order when
    they are read as floats. Adding the smallest normal number avoids subnormal numbers. Uniform
    floats would have only 2^23 values.
    """
    if weights is not None:
        w = weights.astype(jnp.float32)
        rank = jnp.maximum(jnp.cumsum(w > 0, dtype=jnp.int32) - 1, 0)
        exponential = jax.random.exponential(key, (n,), jnp.float32)[rank]
        return jnp.where(w > 0, -exponential / jnp.where(w > 0, w, 1), -jnp.finfo(w.dtype).max)
    bits = (jax.random.bits(key, (n,), jnp.uint32) >> 2) + jnp.uint32(0x00800000)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
