"""Sums over rows that determine every least-squares machine, and their accumulation."""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Int

from ._agreement import same_rows
from ._arguments import on_host
from ._blocks import map_folds, padded, rows_in_block, sum_row_blocks
from ._mesh import sum_over_rows
from ._numerics import (
    as_array,
    dot_over_rows,
    is_traced,
    like,
    present_rows,
    present_targets,
    times_power,
)
from ._programs import compiled
from ._repr import short_repr
from ._runtime import check_runtime
from ._types import ScalarLike
from .features import FeatureMap
from .predictor.checks import row_index
from .solvers.ridge import Ridge, ridge

# Rows in a block where only the first rows of each fold are summed: whole blocks are left out.
PART_BLOCK = 512


class NormalEquations(NamedTuple):
    """Weighted sums over rows of the features `Phi` and targets `y`, for `W = diag(w)`.

    They are additive over rows: `+` joins disjoint rows and `-` removes rows. This makes possible
    cross-validation by subtraction (De Brabanter 2010, eq. 20-21), data larger than memory
    (Algorithm 4), several devices and incremental learning. Fields may have leading batch axes,
    such as folds.
    """

    gram: Float[Array, "p p"]  # Phi' W Phi
    cross: Float[Array, " p *c"]  # Phi' W y
    target_square: Float[Array, "*c"]  # y' W y
    feature_sum: Float[Array, " p"]  # Phi' w
    target_sum: Float[Array, "*c"]  # y' w
    weight_sum: Float[Array, ""]  # sum w, of the row weights w

    __repr__ = short_repr

    def __add__(self, other: "NormalEquations") -> "NormalEquations":  # type: ignore[override]
        return (_add if is_traced(self, other) else _added)(self, other)

    def __sub__(self, other: "NormalEquations") -> "NormalEquations":
        return (_subtract if is_traced(self, other) else _subtracted)(self, other)

    @property
    def joined(self) -> "NormalEquations":
        """Return the sum over the leading axis, such as folds or classes."""
        return jax.tree.map(lambda parts: jnp.sum(parts, axis=0), self)

    @property
    def energy(self) -> Float[Array, " p"]:
        """Return the weighted sum of squares of each feature about its mean."""
        squares = jnp.diagonal(self.gram)
        return jnp.maximum(squares - jnp.square(self.feature_sum) / self.weight_sum, 0)

    def solve(
        self,
        C: Float[Array, " s"],
        intercept_penalty: ScalarLike | None = None,
        *,
        refine: bool = True,
    ) -> Ridge:
        """Return the ridge solutions for every `C`: the result of `ridge` for these sums."""
        return ridge(
            self.gram,
            self.cross,
            self.feature_sum,
            self.target_sum,
            self.weight_sum,
            C,
            None if intercept_penalty is None else like(intercept_penalty, self.gram),
            refine=refine,
        )

    def with_outputs(self, outputs: tuple[int, ...]) -> "NormalEquations":
        """Return the sums reshaped for targets of shape `n *outputs`."""
        return self._replace(
            cross=self.cross.reshape(-1, *outputs),
            target_square=self.target_square.reshape(outputs),
            target_sum=self.target_sum.reshape(outputs),
        )

    def targets_times(self, exponent: Int[Array, " 1"]) -> "NormalEquations":
        """Return the sums for targets that are multiplied by `2^exponent`."""
        return self._replace(
            cross=times_power(self.cross[None], exponent)[0],
            target_square=times_power(self.target_square[None], 2 * exponent)[0],
            target_sum=times_power(self.target_sum[None], exponent)[0],
        )


def _add(a: NormalEquations, b: NormalEquations) -> NormalEquations:
    return jax.tree.map(jnp.add, a, b)


def _subtract(a: NormalEquations, b: NormalEquations) -> NormalEquations:
    return jax.tree.map(jnp.subtract, a, b)


# One program serves the six sums, instead of one program for each shape.
_added, _subtracted = (compiled(function, quickly=True) for function in (_add, _subtract))


def zeros(
    n_features: int, outputs: tuple[int, ...] = (), dtype: jnp.dtype | None = None
) -> NormalEquations:
    """Return sums over no rows, for `n_features` features and targets of shape `n *outputs`."""
    p = n_features
    return NormalEquations(
        gram=jnp.zeros((p, p), dtype),
        cross=jnp.zeros((p, *outputs), dtype),
        target_square=jnp.zeros(outputs, dtype),
        feature_sum=jnp.zeros(p, dtype),
        target_sum=jnp.zeros(outputs, dtype),
        weight_sum=jnp.zeros((), dtype),
    )


def _zeros_from_host(
    n_features: int, outputs: tuple[int, ...], dtype: jnp.dtype, n_folds: int | None
) -> NormalEquations:
    """Return `zeros` without compiling a program; `n_folds` adds a leading axis unless None."""
    sums = jax.eval_shape(lambda: zeros(n_features, outputs, dtype))
    folds = () if n_folds is None else (n_folds,)
    return jax.tree.map(lambda a: as_array(np.zeros((*folds, *a.shape), a.dtype)), sums)


@same_rows
@functools.partial(compiled, static_argnames=("mesh", "block_rows"))
def accumulate(
    feature_map: FeatureMap,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> NormalEquations:
    """Sum the normal equations over the rows of `X`, one block of rows at a time.

    Args:
        feature_map: gives the features of a block of rows.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0. Rows of weight 0 are ignored.
        mesh: devices that share the rows (static). With several processes `X`, `y` and `weights`
            are global arrays, or equal arrays in every process. `n` is arbitrary.
        block_rows: number of rows in memory at a time on a device (static). The default depends on
            the device.

    Differentiable in the feature map, `X`, `y` and `weights`, in both modes. The derivative in a
    weight of zero is exact, unless the row's numbers are huge or not finite.

    Raises:
        ValueError: if the mesh has axes of type Explicit, or (outside `jit`) its processes have
            different arrays.
    """
    w = jnp.ones(X.shape[0], X.dtype) if weights is None else weights

    def local(feature_map: FeatureMap, w: Array, X: Array, y: Array) -> NormalEquations:
        gram = _gram(feature_map, X, y, w, block_rows=block_rows)
        return _unpacked(gram, feature_map.n_features, y.shape[1:])

    return sum_over_rows(mesh, local, feature_map, w, X, y)


def accumulate_folds(
    feature_map: FeatureMap,
    X: Float[Array, "v r d"],
    y: Float[Array, "v r *c"],
    weights: Float[Array, "v r"],
    *,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
    first_rows: Int[Array, ""] | None = None,
) -> NormalEquations:
    """Sum the `r` rows of each of `v` folds; `validation.folds` makes this layout of the rows.

    The sums have a leading axis of folds. The training sums of a fold are the sum over this axis
    less the sums of the fold (De Brabanter 2010, eq. 20-21). On a mesh every device has a part of
    every fold.

    With `first_rows`, only so many rows of each fold are summed, from its first. In a loop over
    blocks the other rows take no time, so that one program serves parts of any size. A `mesh` then
    raises a `ValueError`.
    """
    if first_rows is not None:
        if mesh is not None:
            raise ValueError("first_rows: expected None on a mesh, whose devices share each fold")
        is_first = jnp.arange(X.shape[1], dtype=jnp.int32) < first_rows
        weights = jnp.where(is_first, weights, 0)
        block_rows = min(rows_in_block(block_rows), PART_BLOCK)

    def local(feature_map: FeatureMap, w: Array, X: Array, y: Array) -> NormalEquations:
        def one_fold(fold: tuple[Array, Array, Array]) -> Float[Array, "q q"]:
            return _gram(feature_map, *fold, block_rows=block_rows, first_rows=first_rows)

        grams = map_folds(one_fold, (X, y, w), rows_in_block(block_rows))
        return _unpacked(grams, feature_map.n_features, y.shape[2:])

    return sum_over_rows(mesh, local, feature_map, weights, X, y, axis=1)


@functools.partial(compiled, static_argnames=("n_groups", "block_rows"))
def accumulate_groups(
    feature_map: FeatureMap,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"],
    group: Int[Array, " n"],
    *,
    n_groups: int,
    block_rows: int | None = None,
) -> NormalEquations:
    """Return the sums of each group of rows, in one pass; the leading axis is `n_groups`.

    Rows are sorted by group and cut into blocks of one group each. Groups of any size cost half a
    block each more than `accumulate`.

    Args:
        feature_map: gives the features of a block of rows.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`.
        group: number of the group of every row, shape `n`. Rows with another number than
            0..n_groups-1 are left out.
        n_groups: number of groups (static).
        block_rows: number of rows in memory at a time (static).
    """
    n = X.shape[0]
    # A quarter of the mean group size limits the padding; below 64 rows products are slow.
    rows = max(64, min(rows_in_block(block_rows), n // (4 * n_groups)))
    group = jnp.where((group >= 0) & (group < n_groups), group, n_groups)
    order = jnp.argsort(group, stable=True)
    counts = jnp.zeros(n_groups, jnp.int32).at[group].add(1, mode="drop")
    blocks = -(-counts // rows)
    last_block, last_row = jnp.cumsum(blocks), jnp.cumsum(counts)

    def step(total: NormalEquations, block: Int[Array, ""]) -> tuple[NormalEquations, None]:
        """Add the block of rows with the number `block` to the sums of its group."""
        g = jnp.searchsorted(last_block, block, side="right").astype(jnp.int32)
        g_safe = jnp.minimum(g, n_groups - 1)
        first = last_row[g_safe] - counts[g_safe]
        place = first + (block - last_block[g_safe] + blocks[g_safe]) * rows
        places = place + jnp.arange(rows, dtype=jnp.int32)
        valid = (g < n_groups) & (places < last_row[g_safe])
        in_block = order[jnp.clip(places, 0, n - 1)]
        w = jnp.where(valid, weights[in_block], 0)
        gram = _block_gram(feature_map, X[in_block], y[in_block], w)
        sums = _unpacked(gram, feature_map.n_features, y.shape[1:])
        return jax.tree.map(lambda t, s: t.at[g_safe].add(s), total, sums), None

    zero = zeros(feature_map.n_features, y.shape[1:], X.dtype)
    zero = jax.tree.map(lambda a: jnp.zeros((n_groups, *a.shape), a.dtype), zero)
    bound = n // rows + n_groups
    return jax.lax.scan(step, zero, jnp.arange(bound, dtype=jnp.int32))[0]


def accumulate_batches(
    feature_map: FeatureMap,
    batches: Iterable[tuple[ArrayLike, ...]],
    *,
    n_folds: int | None = None,
    block_rows: int | None = None,
) -> NormalEquations:
    """Sum the normal equations over an iterator of row batches (De Brabanter 2010, Algorithm 4).

    Batches are padded with rows of weight 0 to the size of the largest batch so far. Thus JAX
    compiles again only when a batch is larger than all batches before. Memory holds one batch.

    Args:
        feature_map: gives the features of a block of rows.
        batches: yields `(X, y)` or `(X, y, weights)`, in any array type.
        n_folds: number of folds; None for one total. Row `r` of the whole stream belongs to fold
            `r mod n_folds`, and the sums have a leading axis of folds, so one pass serves
            cross-validation. The rows must not be in a periodic order.
        block_rows: number of rows of a batch whose features are in memory at a time.

    Raises:
        ValueError: if there is no batch; if the columns of a batch differ from the columns of the
            first; if X, y and weights of a batch differ in length; or if a value is not finite. The
            message names the rows. Also if `n_folds` is below 2.
    """
    check_runtime()
    total: NormalEquations | None = None
    capacity = start = 0
    expected: tuple[tuple[int, ...], ...] = ()
    if n_folds is not None and n_folds < 2:
        raise ValueError(f"n_folds: expected at least 2, got {n_folds}")
    for batch in batches:
        X, y, *rest = (_floating(a) for a in batch)
        y = y.astype(X.dtype)
        w = rest[0] if rest else np.ones(len(X), X.dtype)
        n = len(X)
        where = f"row indices {start} to {start + n - 1}"
        if not n == len(y) == len(w):
            raise ValueError(f"{where}: {n} rows of X, {len(y)} of y and {len(w)} weights")
        if total is None:
            capacity, expected = n, (X.shape[1:], y.shape[1:])
            dtype = jax.dtypes.canonicalize_dtype(X.dtype)
            total = _zeros_from_host(feature_map.n_features, y.shape[1:], dtype, n_folds)
        if (X.shape[1:], y.shape[1:]) != expected:
            raise ValueError(
                f"{where}: expected columns of X and y {expected} as before, got "
                f"{(X.shape[1:], y.shape[1:])}"
            )
        for name, a in (("X", X), ("y", y), ("weights", w)):
            if not np.isfinite(a).all():
                row = start + int(np.argwhere(~np.isfinite(a))[0][0])
                raise ValueError(f"{where}: {name} is not finite at {row_index(row)}")
        capacity = max(capacity, n)
        if n == 0:
            continue
        # Pad with the last row: a user's kernel may not be finite at zero.
        v = 1 if n_folds is None else n_folds
        size = -(-capacity // v) * v
        rows = padded(X, size), padded(y, size), padded(w.astype(X.dtype), size, "constant")
        if n_folds is None:
            total = total + accumulate(feature_map, *rows, block_rows=block_rows)
        else:
            # Round robin: position i of a batch is row start + i of the stream.
            per_fold = [_round_robin(a, start, v) for a in rows]
            total = total + _accumulate_folds_jit(feature_map, *per_fold, block_rows=block_rows)
        start += n
    if total is None:
        raise ValueError("batches: expected at least one batch of rows, got none")
    return total


_accumulate_folds_jit = compiled(accumulate_folds, static_argnames="block_rows")


def _gram(
    feature_map: FeatureMap,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    *,
    block_rows: int | None,
    first_rows: Int[Array, ""] | None = None,
) -> Float[Array, "q q"]:
    """Return `[Phi y 1]' W [Phi y 1]`, which holds all sums, by blocks of rows.

    With `first_rows`, blocks of later rows are left out.
    """
    size = feature_map.n_features + math.prod(y.shape[1:]) + 1
    return sum_row_blocks(
        lambda *block: _block_gram(feature_map, *block),
        (X, y, w),
        jnp.zeros((size, size), X.dtype),
        rows_in_block(block_rows),
        first_rows,
    )


def _block_gram(
    feature_map: FeatureMap,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
) -> Float[Array, "q q"]:
    """Return the terms of `_gram` for one block of rows."""
    X, y = present_rows(X, w, apart=True), present_targets(y, w)
    # One product gives all sums, and reads the features once.
    targets = y.reshape(y.shape[0], -1)
    extended = jnp.concatenate([feature_map(X), targets, jnp.ones_like(w)[:, None]], axis=1)
    return dot_over_rows(extended, extended * w[:, None])


def _unpacked(gram: Float[Array, "*v q q"], p: int, outputs: tuple[int, ...]) -> NormalEquations:
    """Return the sums that `_gram` holds, for `p` features and targets of shape `n *outputs`."""
    lead = gram.shape[:-2]
    target_squares = jnp.diagonal(gram[..., p:-1, p:-1], axis1=-2, axis2=-1)
    return NormalEquations(
        gram=gram[..., :p, :p],
        cross=gram[..., :p, p:-1].reshape(*lead, p, *outputs),
        target_square=target_squares.reshape(*lead, *outputs),
        feature_sum=gram[..., :p, -1],
        target_sum=gram[..., p:-1, -1].reshape(*lead, *outputs),
        weight_sum=gram[..., -1, -1],
    )


def _floating(a: ArrayLike) -> np.ndarray:
    a = on_host("batches", a)
    return a if a.dtype.kind == "f" else a.astype(np.dtype(jnp.result_type(float)))


def _round_robin(a: np.ndarray, start: int, n_folds: int) -> np.ndarray:
    """Return the rows of each fold, shape `(n_folds, rows, ...)`.

    Row `i` of the stream is in fold `i mod n_folds`; `start` is the number of the first row of `a`.
    """
    by_fold = np.swapaxes(a.reshape(-1, n_folds, *a.shape[1:]), 0, 1)
    return np.roll(by_fold, start % n_folds, axis=0)
