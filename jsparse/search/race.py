"""A race: machines that are worse on the first folds, by a margin, skip the remaining folds.

The machines of a kernel, one for each `C`, are compared on the first folds that have 500 rows
together, often one fold, and those that err far more than the best machine so far leave the race
(not if the metric is "misclassification"). The others are compared on a few more folds. At most two
machines of each kernel are then validated on all folds, and so is any other machine that the search
would choose by its estimated error. Errors are compared fold by fold, as a fold of hard rows is
hard for all machines.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from .._repr import short_repr
from ..machines.method import Method, Metric
from ..validation.losses import standard_error
from ..validation.validate import Validation
from .scores import Scores, least_of_sizes, smallest_C


class Comparison(NamedTuple):
    """A comparison of machines on the first folds, after which some of them leave the race.

    The rival is the better, on these folds, of the kernel's best machine and the best machine of
    the search. A machine leaves if its mean error exceeds the rival's by more than a margin, if
    `max_C` machines of its kernel are better, or if its error cannot be trusted. The margin is the
    larger of `standard_errors` standard errors and `relative_margin` of the rival's error.
    """

    min_folds: int
    min_rows: int  # least number of rows of the folds together
    standard_errors: float  # number of standard errors of the mean of the paired differences
    relative_margin: float
    max_C: float  # largest number of values of `C` that stay; infinite for no limit

    __repr__ = short_repr


Rule = tuple[Comparison, ...]
"""The comparisons of a race, in their order."""

# Often on one fold, which gives no standard error. So the margin is wide.
_FAR_WORSE = Comparison(1, 500, standard_errors=0.0, relative_margin=1 / 3, max_C=math.inf)
# For a search over a whole range. `python -m benchmarks races` compares it with validation on all
# folds.
RULE: Rule = (
    _FAR_WORSE,
    Comparison(2, 100, standard_errors=2.0, relative_margin=0.02, max_C=2),
)
# A walk stops where no neighbour seems better, so noise must not drop a neighbour. Without a
# relative margin walks ended at machines with a fifth more error; with a margin of two standard
# errors they skipped no folds.
RULE_OF_WALKS: Rule = (
    _FAR_WORSE,
    Comparison(3, 500, standard_errors=1.0, relative_margin=0.15, max_C=2),
)


class BestFolds(NamedTuple):
    """What a race takes from the search: its rule, and the best machine so far, if any."""

    score: float = math.inf  # infinite if no machine can be trusted yet
    fold_scores: Float[np.ndarray, " v"] = np.zeros(0)  # errors by fold; empty if not known
    rule: Rule = RULE

    __repr__ = short_repr


class Round(NamedTuple):
    """A comparison, and the folds on which it is made."""

    comparison: Comparison
    folds: Bool[np.ndarray, " v"]  # True for the first folds

    __repr__ = short_repr


def rounds(fold_sizes: Int[np.ndarray, " v"], rule: Rule, metric: Metric) -> list[Round]:
    """Return the rounds of a race; each has more folds than the one before.

    A comparison is left out if a later one needs no more folds. If the metric is
    "misclassification", so is each comparison without standard errors, except the last: by chance,
    the numbers of wrong rows on one fold may differ by a third. If rows are few, the last round has
    all folds.

    Args:
        fold_sizes: number of rows of positive weight in each fold.
        rule: the comparisons.
        metric: the metric of the errors.
    """
    v, n_rows, n_folds = len(fold_sizes), np.cumsum(fold_sizes), np.cumsum(fold_sizes > 0)
    from_last: list[Round] = []
    limit = v + 1
    for comparison in reversed(rule):
        too_few = (n_rows < comparison.min_rows) | (n_folds < comparison.min_folds)
        needed = min(v, int(np.sum(too_few)) + 1)
        by_chance = metric == "misclassification" and comparison.standard_errors == 0
        if needed < limit and not (by_chance and from_last):
            from_last.append(Round(comparison, np.arange(v) < needed))
            limit = needed
    return from_last[::-1]


def race(
    method: Method,
    C: Float[np.ndarray, " s"],
    race_rounds: Sequence[Round],
    first: Validation,
    some_errors: Callable[[Bool[np.ndarray, "s v"]], Validation],
    best: BestFolds,
) -> tuple[Validation, Scores]:
    """Return the errors of one kernel on the folds that were computed, and its score for every `C`.

    The score of a machine that leaves the race is an estimate: the score of the best machine, plus
    the mean difference to it on the folds computed for both. If no machine can be trusted on all
    folds, it is the mean over the computed folds. If the best machine is another kernel's, all
    scores may be estimates. Else the least score and the score of the chosen `C` are of all folds,
    see `Method.C_tolerance`.

    Args:
        method: chooses the size of a machine, and `C`.
        C: the values of `C`.
        race_rounds: the rounds of the race, see `rounds`.
        first: the kernel's errors on the folds of the first round, and perhaps on other folds.
        some_errors: returns the errors on the given folds of each `C`, and perhaps on other folds.
        best: the best machine so far.
    """
    validation = jax.tree.map(np.asarray, first._replace(total=None))
    C_in_race = np.ones(len(validation.scores), bool)
    computed = validation.computed(C_in_race[:, None] & race_rounds[0].folds)

    def validate(wanted: Bool[np.ndarray, "s v"]) -> Scores:
        """Validate on the wanted folds that are still missing; return all scores so far."""
        nonlocal validation, computed
        missing = wanted & ~computed
        if np.any(missing):
            more = some_errors(missing)
            validation, computed = validation.joined(more), computed | more.computed(missing)
        return least_of_sizes(method, validation)

    for comparison, folds in race_rounds:
        scores = validate(C_in_race[:, None] & folds)
        if np.all(computed):
            return validation, scores
        C_in_race = _remaining_C(scores, C_in_race, comparison, folds, best)
    while True:
        scores = validate(np.broadcast_to(C_in_race[:, None], computed.shape))
        complete = np.all(computed, axis=1)
        scores = _with_estimates(scores, complete, best)
        place = np.argmin(scores.trusted)
        if not scores.trusted[place] < best.score:
            return validation, scores
        if complete[place] and method.C_tolerance is not None:
            errors = scores.trusted, scores.standard_errors
            place = smallest_C(C, *errors, method.C_tolerance)
        if complete[place]:
            return validation, scores
        C_in_race = np.arange(len(complete)) == place


def _remaining_C(
    scores: Scores,
    C_in_race: Bool[np.ndarray, " s"],
    comparison: Comparison,
    folds: Bool[np.ndarray, " v"],
    best: BestFolds,
) -> Bool[np.ndarray, " s"]:
    """Return which values of `C` remain in the race after a comparison."""
    trusted = np.where(C_in_race, scores.trusted, np.inf)
    fold_scores = scores.fold_scores[:, folds]
    rival = fold_scores[np.argmin(trusted)]
    if np.isfinite(best.score) and _mean(best.fold_scores[folds]) <= _mean(rival):
        rival = best.fold_scores[folds]
    mean, error = _mean_difference(fold_scores, rival)
    margin = np.fmax(comparison.standard_errors * error, comparison.relative_margin * _mean(rival))
    rank = np.argsort(np.argsort(trusted, kind="stable"))
    return np.isfinite(trusted) & (rank < comparison.max_C) & ~(mean > margin)


def _mean(fold_scores: Float[np.ndarray, "*s v"]) -> Float[np.ndarray, "*s"]:
    """Return the mean over the folds that have a score; NaN if none has."""
    has_score = ~np.isnan(fold_scores)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sum(fold_scores, axis=-1, where=has_score) / has_score.sum(axis=-1))


def _mean_difference(
    fold_scores: Float[np.ndarray, "s v"], rival: Float[np.ndarray, " v"]
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """Return, for each `C`, the mean of its fold scores less the rival's, and the standard error.

    Only folds with both scores count. Without such folds the mean is NaN; with fewer than two the
    standard error is NaN.
    """
    with np.errstate(invalid="ignore"):
        gaps = fold_scores - rival
    return _mean(gaps), standard_error(gaps)


def _with_estimates(scores: Scores, complete: Bool[np.ndarray, " s"], best: BestFolds) -> Scores:
    """Return the scores, with estimates for each `C` that lacks folds, so is not `complete`."""
    of_all_folds = np.where(complete, scores.trusted, np.inf)
    place = np.argmin(of_all_folds)
    if of_all_folds[place] < best.score:
        best = best._replace(score=of_all_folds[place], fold_scores=scores.fold_scores[place])
    if not np.isfinite(best.score):
        return scores
    estimates = best.score + _mean_difference(scores.fold_scores, best.fold_scores)[0]
    joined = np.where(complete | np.isnan(estimates), scores.scores, estimates)
    return scores._replace(scores=joined.astype(scores.scores.dtype))
