"""Prediction intervals and sets from the held-out errors of a machine, in NumPy or JAX.

The methods are split conformal prediction (Papadopoulos et al. 2002), cross-conformal intervals and
sets, CV+ and jackknife+ (Barber et al. 2021; Romano et al. 2020), and conformalised quantile
regression (Romano, Patterson and Candes 2019). They turn centres or quantiles into intervals, and
scores of classes into sets.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .checks import real
from .machine import Machine

_ENTRIES = 2**22  # number of pairs of a new row and a stored error in a block


@dataclasses.dataclass(frozen=True, eq=False)
class ConformalScores:
    """The errors of machines on held-out rows, as `jsparse.conformal.ConformalScores`.

    Attributes:
        errors: for numbers the distances between target and value, shape `q` or `q c`; for several
            quantiles of a number the distance from the target to the band between the outermost,
            shape `q`, negative inside; for classes the `margin_deficit` of the row's class, shape
            `q`.
        counts: number of rows that each error represents, shape `q`.
        fold: index of the fold in `machines` whose machine gave the error, shape `q`; None without
            machines.
        machines: the machines of all folds as one machine of raw inputs. Its outputs are the
            model's outputs for the first fold, then for the second fold, and so on.
        held_out: whether the model was fitted without the rows.
    """

    errors: np.ndarray
    counts: np.ndarray
    fold: np.ndarray | None = None
    machines: Machine | None = None
    held_out: bool = False

    @property
    def n_rows(self) -> int:
        """The number of rows whose errors are known."""
        return int(self.counts.sum())


def margin_deficit(scores: Any, xp: Any = np) -> Any:
    """Return for each class the best score of the other classes less the score of the class.

    The result has shape `n k`. It is at most 0 for the predicted class.

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


def outermost(values: Any, ndim: int) -> tuple[Any, Any]:
    """Return the first and the last of several quantiles; return other values twice.

    Args:
        values: `ndim` axes, or one more for quantiles in increasing order.
        ndim: number of axes without the axis of quantiles.
    """
    return (values, values) if values.ndim == ndim else (values[..., 0], values[..., -1])


def rank_of(coverage: Any, n: int) -> int:
    """Return `ceil(coverage (n + 1))`, the rank of the error among `n` that gives this coverage.

    Raises:
        ValueError: for a coverage that is not between 0 and 1, or that needs more rows.
    """
    coverage = real("coverage", coverage, 0.0, above=True)
    # Without the last factor, a product that rounding lifts above a whole number would add a rank.
    rank = math.ceil(coverage * (n + 1) * (1 - 4 * np.finfo(float).eps))
    if not coverage < 1 or rank > n:
        share = f"; take {coverage / 100:g} for {coverage:g} per cent" if 1 < coverage < 100 else ""
        raise ValueError(
            f"coverage: expected above 0 and at most {n / (n + 1):.6g}, as errors of {n} rows are "
            f"known, got {coverage:g}{share}"
        )
    return rank


def error_at(conformal: ConformalScores, coverage: float) -> np.ndarray:
    """Return the held-out error whose rank gives `coverage`, shape `*c` with an axis for targets.

    It is the half-width of all intervals of a model without machines of the folds, or the largest
    margin deficit of the classes in its prediction sets.

    Raises:
        ValueError: as `rank_of`.
    """
    rank = rank_of(coverage, conformal.n_rows)
    return _quantile(conformal.errors[None], conformal.counts, rank, np)[0, ...]


def in_blocks(function: Callable[[Any], Any], rows: Any, step: int) -> Any:
    """Apply `function` to blocks of `step` rows of a NumPy array; concatenate the results."""
    starts = range(0, max(len(rows), 1), step)
    return np.concatenate([function(rows[start : start + step]) for start in starts])


def intervals(
    centres: Any, conformal: Any, coverage: float, xp: Any = np, map_blocks: Any = in_blocks
) -> Any:
    """Return the lower and upper ends of prediction intervals, shape `t *c 2`.

    The upper end is the `ceil(coverage (n + 1))`-th smallest value of centre plus error (Barber et
    al. 2021, eq. 6 and Section 3). The lower end is its mirror image. For several quantiles, the
    centre of the upper end is the last quantile, and the centre of the lower end the first (Romano
    et al. 2019, eq. 7). The errors of quantiles may be negative, so the ends are sorted.

    Args:
        centres: values at `t` rows by the machines of `v` folds, shape `t v *c`; or sorted
            quantiles of one target, shape `t v l`. Without machines of the folds, `v` is 1 and the
            values are the model's.
        conformal: the errors on held-out rows.
        coverage: share of new rows whose target is inside their interval.
        xp: `numpy` or `jax.numpy`.
        map_blocks: `in_blocks`, or a function like it for JAX.

    Raises:
        ValueError: if the coverage is not between 0 and 1, or too high for the number of rows.
    """
    rank = rank_of(coverage, conformal.n_rows)
    errors, counts = xp.asarray(conformal.errors), _counts(conformal, xp)
    if conformal.fold is None:
        error = _quantile(errors[None], counts, rank, xp)
        low, high = outermost(centres[:, 0], errors.ndim)
        return xp.sort(xp.stack([low - error, high + error], axis=-1), axis=-1)
    fold = xp.asarray(conformal.fold)

    def interval_ends(values: Any) -> Any:
        low, high = outermost(values[:, fold], errors.ndim + 1)
        low = -_quantile(errors[None] - low, counts, rank, xp)
        high = _quantile(high + errors[None], counts, rank, xp)
        return xp.sort(xp.stack([low, high], axis=-1), axis=-1)

    return map_blocks(interval_ends, centres, max(1, _ENTRIES // errors.size))


def sets(
    deficits: Any, conformal: Any, coverage: float, xp: Any = np, map_blocks: Any = in_blocks
) -> Any:
    """Return whether each class is in the prediction set, shape `t k` (Romano et al. 2020, eq. 9).

    Args:
        deficits: `margin_deficit` of the scores of `t` rows and `k` classes by the machines of `v`
            folds, shape `t v k`. Without machines of the folds, `v` is 1 and the scores are the
            model's.
        conformal: the errors on held-out rows.
        coverage: share of new rows whose class is in their prediction set.
        xp: `numpy` or `jax.numpy`.
        map_blocks: `in_blocks`, or a function like it for JAX.

    Raises:
        ValueError: if the coverage is not between 0 and 1, or too high for the number of rows.
    """
    rank = rank_of(coverage, conformal.n_rows)
    errors, counts = xp.asarray(conformal.errors), _counts(conformal, xp)
    if conformal.fold is None:
        return deficits[:, 0] <= _quantile(errors[None], counts, rank, xp)[:, None]
    fold = xp.asarray(conformal.fold)

    def in_set(values: Any) -> Any:
        is_smaller = errors[None, :, None] < values[:, fold]
        return xp.sum(xp.where(is_smaller, counts[None, :, None], 0), axis=1) < rank

    return map_blocks(in_set, deficits, max(1, _ENTRIES // (len(errors) * deficits.shape[2])))


def _counts(conformal: Any, xp: Any) -> Any:
    """Return the number of rows that each error represents, 1 unless stated."""
    if conformal.counts is None:
        return xp.ones(len(conformal.errors), "int32")
    return xp.asarray(conformal.counts)


def _quantile(values: Any, counts: Any, rank: int, xp: Any) -> Any:
    """Return the `rank`-th smallest of values `(t, q, *c)` along axis 1, shape `t *c`.

    The value number `i` along the axis occurs `counts[i]` times.
    """
    order = xp.argsort(values, axis=1)
    reached = xp.cumsum(counts[order], axis=1) >= rank
    index = xp.take_along_axis(order, xp.argmax(reached, axis=1)[:, None], axis=1)
    return xp.take_along_axis(values, index, axis=1)[:, 0]
