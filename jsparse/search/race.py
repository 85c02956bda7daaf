"""A race: machines that are worse on the first folds, by a margin, skip the remaining folds.

Every `C` is validated on the first folds that have 500 rows together, often one fold, and the
machines that err far more than the best one leave the race. The others are compared on two or three
folds. At most two values of `C`, those with the least errors, are then validated on all folds,
unless they are clearly worse than the best machine so far. Errors are compared fold by fold, as a
fold of hard rows is hard for all machines.
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
from .scores import Scores, least_of_sizes


class Comparison(NamedTuple):
    """A comparison of machines on the first folds, after which some of them leave the race.

    The rival is the best machine on these folds. A machine leaves if its mean error exceeds the
    rival's by more than a margin, the larger of `standard_errors` standard errors and `share` of
    the rival's error, or if it cannot be trusted.
    """

    min_folds: int
    min_rows: int  # least number of rows of the folds together
    standard_errors: float  # number of standard errors of the mean of the paired differences
    share: float
    most_C: int | None  # how many values of `C` stay at most; None for no limit

    __repr__ = short_repr


Rule = tuple[Comparison, ...]
"""The comparisons of a race, in their order."""

# One fold gives no standard error, so the margin is wide.
_FAR_WORSE = Comparison(min_folds=1, min_rows=500, standard_errors=0.0, share=1 / 3, most_C=None)
# For a search over a whole range. `python -m benchmarks races` compares it with validation on all
# folds.
RULE: Rule = (_FAR_WORSE, Comparison(2, 100, standard_errors=2.0, share=0.02, most_C=2))
# For a walk, which goes only downhill and must not end at noise. Without a margin it ended at
# machines with a fifth more error; a margin of two standard errors saved nothing.
RULE_OF_WALKS: Rule = (_FAR_WORSE, Comparison(3, 500, standard_errors=1.0, share=0.15, most_C=2))


class BestFolds(NamedTuple):
    """The best machine of a search so far, and the rule of races against it."""

    score: float = math.inf  # infinite if no machine can be trusted yet
    fold_scores: Float[np.ndarray, " v"] = np.zeros(0)  # errors by fold; empty if not known
    rule: Rule = RULE

    __repr__ = short_repr


class Round(NamedTuple):
    """A comparison, and the folds on which it is made."""

    comparison: Comparison
    folds: Bool[np.ndarray, " v"]  # True for the first folds

    __repr__ = short_repr


def rounds(fold_sizes: Int[np.ndarray, " v"], rule: Rule, metric: Metric = "mse") -> list[Round]:
    """Return the rounds of a race; each has more folds than the one before.

    A comparison that needs no fewer folds than a later one is left out. So is one without standard
    errors if the metric counts wrong classes: few errors on a fold differ by a third by chance. If
    rows are few, the last round has all folds. Rows of weight 0 do not count in `fold_sizes`.
    """
    rows, folds = np.cumsum(fold_sizes), np.cumsum(fold_sizes > 0)
    v = count = len(fold_sizes)
    kept: list[Round] = []
    for comparison in reversed(rule):
        enough = (rows >= comparison.min_rows) & (folds >= comparison.min_folds)
        needed = int(np.argmax(enough)) + 1 if np.any(enough) else v
        by_chance = metric == "misclassification" and comparison.standard_errors == 0
        if not kept or (needed < count and not by_chance):
            count = needed
            kept.append(Round(comparison, np.arange(v) < count))
    return kept[::-1]


def race(
    method: Method,
    race_rounds: Sequence[Round],
    first: Validation,
    some_errors: Callable[[Bool[np.ndarray, "s v"]], Validation],
    best: BestFolds,
) -> tuple[Validation, Scores]:
    """Return the errors of one kernel on the folds that were computed, and its score for every `C`.

    The score of a machine that leaves the race is an estimate: the score of the best machine, and
    the mean difference to it on the folds computed for both. The least score of the kernel is an
    estimate only if the best machine is another kernel's.

    Args:
        method: chooses the size of a machine.
        race_rounds: the rounds of the race, see `rounds`.
        first: the kernel's errors on the folds of the first round, and perhaps on others.
        some_errors: returns the errors on the given folds of each `C`, and perhaps on others.
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
        C_in_race = _stays(scores, C_in_race, comparison, folds, best)
    while True:
        scores = validate(np.broadcast_to(C_in_race[:, None], computed.shape))
        complete = np.all(computed, axis=1)
        scores = _with_estimates(scores, complete, best)
        least = np.argmin(scores.trusted)
        if complete[least] or not scores.trusted[least] < best.score:
            return validation, scores
        C_in_race = np.arange(len(complete)) == least


def _stays(
    scores: Scores,
    C_in_race: Bool[np.ndarray, " s"],
    comparison: Comparison,
    folds: Bool[np.ndarray, " v"],
    best: BestFolds,
) -> Bool[np.ndarray, " s"]:
    """Return, for each `C`, whether its machine stays in the race after a comparison."""
    trusted = np.where(C_in_race, scores.trusted, np.inf)
    fold_scores = scores.fold_scores[:, folds]
    rival = fold_scores[np.argmin(trusted)]
    if np.isfinite(best.score) and _mean(best.fold_scores[folds]) <= _mean(rival):
        rival = best.fold_scores[folds]
    mean, error = _mean_difference(fold_scores, rival)
    margin = np.fmax(comparison.standard_errors * error, comparison.share * _mean(rival))
    rank = np.argsort(np.argsort(trusted, kind="stable"))
    most_C = len(rank) if comparison.most_C is None else comparison.most_C
    return np.isfinite(trusted) & (rank < most_C) & ~(mean > margin)


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
