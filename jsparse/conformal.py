"""Prediction intervals and sets from the held-out errors of a machine.

The methods are split conformal prediction (Papadopoulos et al. 2002), cross-conformal intervals and
sets, CV+ and jackknife+ (Barber et al. 2021; Romano et al. 2020), and conformalised quantile
regression (Romano, Patterson and Candes 2019), in NumPy or JAX. They turn centres or quantiles into
intervals, and scores of classes into sets.

A model keeps some hundred quantiles of the errors instead of one error for each row, see
`kept_errors`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ._arguments import real
from ._blocks import map_row_blocks
from ._numerics import is_concrete
from ._repr import short_repr
from .expansion import KernelExpansion

Guarantee = Literal["held out", "folds", "none"]
Rows = Shaped[np.ndarray, "n ..."] | Shaped[Array, "n ..."]  # of JAX within a JAX program
_ENTRIES = 2**22  # number of pairs of a new row and a stored error in a block


class ConformalScores(eqx.Module):
    """The errors of machines on held-out rows.

    Attributes:
        errors: for numbers the distances between target and value, shape `q` or `q c`; for several
            quantiles of a number the distance from the target to the band between the outermost,
            shape `q`, negative inside; for classes the `margin_deficit` of the row's class, shape
            `q`.
        fold: number of the machine in `machines` that gave the error, shape `q`; None without
            machines.
        machines: one for each fold, as an expansion with a column for each fold and each output of
            the model, fold by fold. Its inputs are scaled like the model's inputs.
        counts: number of rows that each error represents, shape `q`. No such row had a larger
            error. None for one row each.
        held_out: whether the model was fitted without the rows (static).
    """

    errors: Float[Array, " q *c"] | Float[np.ndarray, " q *c"]
    fold: Int[Array, " q"] | Int[np.ndarray, " q"] | None = None
    machines: KernelExpansion | None = None
    counts: Int[Array, " q"] | Int[np.ndarray, " q"] | None = None
    held_out: bool = eqx.field(static=True, default=False)

    __repr__ = short_repr

    @property
    def guarantee(self) -> Guarantee:
        """What the guarantee of intervals and sets rests on.

        - "held out": on rows that the model was not fitted to.
        - "folds": on the machines of the folds, each fitted without its fold.
        - "none": nothing is guaranteed.
        """
        if self.held_out:
            return "held out"
        return "none" if self.machines is None else "folds"

    @property
    def n_rows(self) -> int:
        """The number of rows whose errors are known.

        Raises:
            ValueError: while the model's arrays are traced.
        """
        if self.counts is None:
            return len(self.errors)
        if not is_concrete(self.counts):
            raise ValueError(
                "model: expected a model that the traced function closes over, because the ranks "
                "of errors are whole numbers that depend on its counts; got a traced model"
            )
        return int(np.sum(np.asarray(self.counts)))


def margin_deficit(scores: Rows, xp: Any = np) -> Rows:
    """Return for each class the best score of the other classes less the score of the class.

    It is negative for the predicted class.

    Args:
        scores: shape `n` for two classes, positive for the second, else `n k`.
        xp: `numpy` or `jax.numpy`.
    """
    if scores.ndim == 1:
        return xp.stack([scores, -scores], axis=1)
    first = xp.argmax(scores, axis=1)[:, None]
    best = xp.take_along_axis(scores, first, axis=1)
    is_predicted = xp.arange(scores.shape[1])[None] == first
    second = xp.where(is_predicted, -np.inf, scores).max(axis=1, keepdims=True)
    return xp.where(is_predicted, second, best) - scores


def errors_of_numbers(
    values: Float[np.ndarray, "n ..."], targets: Shaped[np.ndarray, " n *c"]
) -> Float[np.ndarray, " n *c"]:
    """Return the absolute errors of held-out predictions, shape `n *c`.

    For sorted quantiles of one target, values of shape `n l`, return the distance from the target
    to the band between the outermost, negative inside (Romano et al. 2019, eq. 6).
    """
    truth = np.asarray(targets, float)
    low, high = outermost(np.asarray(values, float), truth.ndim)
    return np.maximum(low - truth, truth - high).astype(values.dtype)


def outermost(values: Rows, ndim: int) -> tuple[Rows, Rows]:
    """Return the first and the last quantile if there is an axis of them, else the values twice.

    Args:
        values: `ndim` axes, or one more for quantiles in increasing order.
        ndim: number of axes without the axis of quantiles.
    """
    return (values, values) if values.ndim == ndim else (values[..., 0], values[..., -1])


def errors_of_classes(
    scores: Float[np.ndarray, " n *k"], numbers: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the `margin_deficit` of the true class by held-out scores."""
    return np.take_along_axis(margin_deficit(scores), numbers[:, None], axis=1)[:, 0]


@functools.cache
def kept_ranks(n: int) -> tuple[int, ...]:
    """Return the increasing ranks of the n sorted errors to keep, at most `90 log10(n) + 90`.

    They are the last rank, and the ranks that `rank_of` gives for each coverage whose complement `1
    - coverage` has two significant digits (0.99, .., 0.10, 0.099, .., 0.010, 0.0099, ..).
    """
    ranks, scale = {n}, 100
    while 99 * (n + 1) >= scale:
        ranks |= {n + 1 - digits * (n + 1) // scale for digits in range(10, 100)}
        scale *= 10
    return tuple(sorted(rank for rank in ranks if 1 <= rank <= n))


def kept_errors(
    errors: Float[np.ndarray, " n *c"],
    fold: Int[np.ndarray, " n"] | None = None,
    machines: KernelExpansion | None = None,
    *,
    held_out: bool = False,
) -> ConformalScores:
    """Keep a few hundred quantiles of the errors, separately for each fold's machine.

    The next larger quantile replaces each other error. So intervals and sets are never smaller than
    with all errors, and the guarantee still holds. Up to 99 rows, of each fold if there are
    machines, all errors are kept.

    Args:
        errors: errors of all rows.
        fold: number of the machine that gave the error of a row; None without machines.
        machines: see `ConformalScores`.
        held_out: see `ConformalScores`.
    """
    machine_numbers = np.zeros(len(errors), np.int32) if fold is None else fold
    order = np.argsort(machine_numbers, kind="stable")
    numbers, starts = np.unique(machine_numbers[order], return_index=True)
    parts, counts = [], []
    for part in np.split(errors[order], starts[1:]):
        ranks = np.array(kept_ranks(len(part)), np.int32)
        parts.append(np.sort(part, axis=0)[ranks - 1])
        counts.append(np.diff(ranks, prepend=np.int32(0)))
    quantile_fold = np.repeat(numbers, [len(part) for part in parts]).astype(np.int32)
    quantiles, represented = np.concatenate(parts), np.concatenate(counts)
    return ConformalScores(
        quantiles, None if fold is None else quantile_fold, machines, represented, held_out
    )


def rank_of(coverage: Any, n: int) -> int:
    """Return `ceil(coverage (n + 1))`, the rank of the error that gives this coverage.

    Raises:
        ValueError: for a coverage that is not between 0 and 1, or that needs more rows.
    """
    coverage = real("coverage", coverage, 0.0, above=True)
    rank = math.ceil(coverage * (n + 1) * (1 - 4 * np.finfo(float).eps))  # 0.9 times 10 is 9
    if not coverage < 1 or rank > n:
        raise ValueError(
            f"coverage: expected above 0 and at most {n / (n + 1):.6g}, as errors of {n} rows are "
            f"known, got {coverage:g}"
        )
    return rank


def intervals(centres: Rows, conformal: ConformalScores, coverage: float, xp: Any = np) -> Rows:
    """Return lower and upper ends, shape `t *c 2`.

    The upper end is the `ceil(coverage (n + 1))`-th smallest value of centre plus error (Barber et
    al. 2021, eq. 6 and Section 3). The lower end is its mirror image. With quantiles the last is
    the centre of the upper end, and the first of the lower (Romano et al. 2019, eq. 7). As the
    errors of quantiles may be negative, the ends are sorted.

    Args:
        centres: values at `t` rows, shape `t v *c`, by the machines of `v` folds; by the model,
            with `v = 1`, if there are no such machines. Or sorted quantiles of one target, shape `t
            v l`.
        conformal: the errors.
        coverage: share of new rows whose target is inside their interval.
        xp: `numpy` or `jax.numpy`.

    Raises:
        ValueError: as `rank_of` for the coverage, and as `ConformalScores.n_rows`.
    """
    rank = rank_of(coverage, conformal.n_rows)
    errors, counts = xp.asarray(conformal.errors), _counts(conformal, xp)
    if conformal.fold is None:
        error = _quantile(errors[None], counts, rank, xp)
        low, high = outermost(centres[:, 0], errors.ndim)
        return xp.sort(xp.stack([low - error, high + error], axis=-1), axis=-1)
    fold = xp.asarray(conformal.fold)

    def interval_ends(values: Rows) -> Rows:
        low, high = outermost(values[:, fold], errors.ndim + 1)
        low = -_quantile(errors[None] - low, counts, rank, xp)
        high = _quantile(high + errors[None], counts, rank, xp)
        return xp.sort(xp.stack([low, high], axis=-1), axis=-1)

    return _in_blocks(interval_ends, centres, errors.size, xp)


def sets(apart: Rows, conformal: ConformalScores, coverage: float, xp: Any = np) -> Rows:
    """Return whether each class is in the prediction set, shape `t k` (Romano et al. 2020, eq. 9).

    Args:
        apart: `margin_deficit` of the scores of `t` rows and `k` classes, shape `t v k`, by the
            machines of `v` folds; by the model, with `v = 1`, if there are no such machines.
        conformal: the errors.
        coverage: share of new rows whose class is in their prediction set.
        xp: `numpy` or `jax.numpy`.

    Raises:
        ValueError: as `rank_of` for the coverage, and as `ConformalScores.n_rows`.
    """
    rank = rank_of(coverage, conformal.n_rows)
    errors, counts = xp.asarray(conformal.errors), _counts(conformal, xp)
    if conformal.fold is None:
        return apart[:, 0] <= _quantile(errors[None], counts, rank, xp)[:, None]
    fold = xp.asarray(conformal.fold)

    def in_set(values: Rows) -> Rows:
        is_smaller = errors[None, :, None] < values[:, fold]
        return xp.sum(xp.where(is_smaller, counts[None, :, None], 0), axis=1) < rank

    return _in_blocks(in_set, apart, len(errors) * apart.shape[2], xp)


def _counts(conformal: ConformalScores, xp: Any) -> Any:
    if conformal.counts is None:
        return xp.ones(len(conformal.errors), "int32")
    return xp.asarray(conformal.counts)


def _quantile(values: Rows, counts: Any, rank: int, xp: Any) -> Rows:
    """Return the `rank`-th smallest value along axis 1, where each value has a count."""
    order = xp.argsort(values, axis=1)
    reached = xp.cumsum(counts[order], axis=1) >= rank
    place = xp.take_along_axis(order, xp.argmax(reached, axis=1)[:, None], axis=1)
    return xp.take_along_axis(values, place, axis=1)[:, 0]


def _in_blocks(function: Callable[[Any], Any], rows: Any, entries_per_row: int, xp: Any) -> Rows:
    """Apply `function` to blocks of rows with `entries_per_row` entries each."""
    step = max(1, _ENTRIES // entries_per_row)
    if xp is not np:
        return map_row_blocks(function, rows, step)
    starts = range(0, max(len(rows), 1), step)
    return np.concatenate([function(rows[start : start + step]) for start in starts])
