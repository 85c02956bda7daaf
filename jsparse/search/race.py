"""A race: machines that are worse on the first folds, by a margin, skip the remaining folds.

First every `C` is validated on a few folds. The errors of two machines are compared fold by fold,
as a fold of hard rows is hard for both. The two values of `C` with the least errors are then
validated on the remaining folds too, unless they are clearly worse than the best machine so far.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from .._repr import short_repr
from ..machines.method import Method
from ..validation.losses import standard_error
from ..validation.validate import Validation
from .scores import Scores, least_of_sizes

KEPT_C = 2  # number of values of `C` that each kernel keeps after the first folds, at most


class Rule(NamedTuple):
    """Which machines leave a race: those whose mean error exceeds the best machine's by a margin.

    Machines are compared on the first folds. The margin is the larger of `standard_errors` standard
    errors and `share` of the best machine's error.
    """

    first_folds: int  # number of first folds, at least
    first_rows: int  # number of rows of the first folds together, at least
    standard_errors: float  # number of standard errors of the mean of the paired differences
    share: float

    __repr__ = short_repr


# On nine tables (`python -m benchmarks races`) SCDP, KSP and KMP choose machines of equal score
# with and without a race. With it, SCDP makes 0.24 to 0.53 times as many fits.
CLEARLY_WORSE = Rule(2, 100, 2.0, 0.02)
# For a walk, which goes only downhill and must not end at noise. Without a margin it ended at
# machines with a fifth more error; a margin of two standard errors saved nothing.
WORSE = Rule(3, 500, 1.0, 0.15)


class BestFolds(NamedTuple):
    """The best machine of a search so far, and the rule of races against it."""

    score: float = math.inf  # infinite if no machine can be trusted yet
    fold_scores: Float[np.ndarray, " v"] = np.zeros(0)  # errors by fold; empty if not known
    rule: Rule = CLEARLY_WORSE

    __repr__ = short_repr


def first_folds(s: int, fold_sizes: Int[np.ndarray, " v"], rule: Rule) -> Bool[np.ndarray, "s v"]:
    """Return the folds with which a race begins, equal for each of `s` values of `C`.

    If rows are few, they are all folds. Rows of weight 0 do not count in `fold_sizes`.
    """
    rows, folds = np.cumsum(fold_sizes), np.cumsum(fold_sizes > 0)
    enough = (rows >= rule.first_rows) & (folds >= rule.first_folds)
    count = int(np.argmax(enough)) + 1 if np.any(enough) else len(fold_sizes)
    return np.broadcast_to(np.arange(len(fold_sizes)) < count, (s, len(fold_sizes)))


def race(
    method: Method,
    first: Validation,
    wanted: Bool[np.ndarray, "s v"],
    some_errors: Callable[[Bool[np.ndarray, "s v"]], Validation],
    best: BestFolds,
) -> tuple[Validation, Scores]:
    """Return the errors of one kernel on the folds that were computed, and its score for every `C`.

    The score of a machine that leaves the race is an estimate: the score of the best machine, and
    the mean difference to it on the folds computed for both. The least score of the kernel is an
    estimate only if the best machine is another kernel's.

    Args:
        method: chooses the size of a machine.
        first: the kernel's errors on the `wanted` folds, and perhaps on others.
        wanted: the folds with which the race begins, see `first_folds`.
        some_errors: returns the errors on the given folds of each `C`, and perhaps on others.
        best: the best machine so far.
    """
    validation = jax.tree.map(np.asarray, first._replace(total=None))
    scores = least_of_sizes(method, validation)
    computed = validation.computed(wanted)
    if np.all(computed):
        return validation, scores
    C_in_race = _stays(scores, np.all(computed, axis=0), best)
    while True:
        missing = C_in_race[:, None] & ~computed
        if np.any(missing):
            more = some_errors(missing)
            validation, computed = validation.joined(more), computed | more.computed(missing)
            scores = least_of_sizes(method, validation)
        complete = np.all(computed, axis=1)
        scores = _with_estimates(scores, complete, best)
        least = np.argmin(scores.trusted)
        if complete[least] or not scores.trusted[least] < best.score:
            return validation, scores
        C_in_race = np.arange(len(complete)) == least


def _stays(
    scores: Scores, folds: Bool[np.ndarray, " v"], best: BestFolds
) -> Bool[np.ndarray, " s"]:
    """Return, for each `C`, whether its machine stays in the race after the given `folds`."""
    trusted = scores.trusted
    fold_scores = scores.fold_scores[:, folds]
    rival = fold_scores[np.argmin(trusted)]
    if np.isfinite(best.score) and _mean(best.fold_scores[folds]) <= _mean(rival):
        rival = best.fold_scores[folds]
    mean, error = _mean_difference(fold_scores, rival)
    margin = np.fmax(best.rule.standard_errors * error, best.rule.share * _mean(rival))
    rank = np.argsort(np.argsort(trusted, kind="stable"))
    return np.isfinite(trusted) & (rank < KEPT_C) & ~(mean > margin)


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
