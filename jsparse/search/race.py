"""A race: machines that are worse on the first folds, by a margin, skip the remaining folds.

First every `C` is validated on a few folds, one fold alone if it is large. The errors of two
machines are compared fold by fold, as a fold of hard rows is hard for both. The two values of `C`
with the least errors are then validated on the remaining folds too, unless they are clearly worse
than the best machine so far.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from .._repr import short_repr
from ..machines.method import Method
from ..validation.losses import standard_error
from ..validation.validate import Validation
from .scores import Scores, least_of_sizes


class Comparison(NamedTuple):
    """When machines are compared with the best machine, and which of them then leave the race.

    Machines leave if their mean error exceeds the best machine's by more than a margin, the larger
    of `standard_errors` standard errors and `share` of the best machine's error.
    """

    folds: int  # number of folds to compare on, at least; the first ones
    rows: int  # number of rows of these folds together, at least
    standard_errors: float  # number of standard errors of the mean of the paired differences
    share: float
    kept: float = 2  # number of values of `C` that stay at most

    __repr__ = short_repr


Rule = tuple[Comparison, ...]
"""The comparisons of a race, in the order of their numbers of folds."""

# On the first fold, or so many that they have 500 rows. One fold gives no standard error, so the
# margin is wide.
_ON_FEW_FOLDS = Comparison(1, 500, 0.0, 1 / 3, kept=math.inf)
# On nine tables (`python -m benchmarks races`) SCDP, KSP and KMP choose machines of equal score
# with and without a race. With it, SCDP makes 0.24 to 0.53 times as many fits.
CLEARLY_WORSE: Rule = (_ON_FEW_FOLDS, Comparison(2, 100, 2.0, 0.02))
# For a walk, which goes only downhill and must not end at noise. Without a margin it ended at
# machines with a fifth more error; a margin of two standard errors saved nothing.
WORSE: Rule = (_ON_FEW_FOLDS, Comparison(3, 500, 1.0, 0.15))


class BestFolds(NamedTuple):
    """The best machine of a search so far, and the rule of races against it."""

    score: float = math.inf  # infinite if no machine can be trusted yet
    fold_scores: Float[np.ndarray, " v"] = np.zeros(0)  # errors by fold; empty if not known
    rule: Rule = CLEARLY_WORSE

    __repr__ = short_repr


class Round(NamedTuple):
    """A comparison, and the folds on which it is made."""

    comparison: Comparison
    folds: Bool[np.ndarray, " v"]

    __repr__ = short_repr


def rounds(fold_sizes: Int[np.ndarray, " v"], rule: Rule) -> list[Round]:
    """Return the rounds of a race; each has more folds than the one before.

    If rows are few, the last round has all folds. Rows of weight 0 do not count in `fold_sizes`.
    """
    rows, folds = np.cumsum(fold_sizes), np.cumsum(fold_sizes > 0)
    v, all_rounds = len(fold_sizes), []
    for comparison in rule:
        enough = (rows >= comparison.rows) & (folds >= comparison.folds)
        count = int(np.argmax(enough)) + 1 if np.any(enough) else v
        all_rounds.append(Round(comparison, np.arange(v) < count))
    last = all_rounds[-1]
    return [*(one for one in all_rounds if one.folds.sum() < last.folds.sum()), last]


def race(
    method: Method,
    of_rounds: Sequence[Round],
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
        of_rounds: the rounds of the race, see `rounds`.
        first: the kernel's errors on the folds of the first round, and perhaps on others.
        some_errors: returns the errors on the given folds of each `C`, and perhaps on others.
        best: the best machine so far.
    """
    validation = jax.tree.map(np.asarray, first._replace(total=None))
    C_in_race = np.ones(len(validation.scores), bool)
    computed = validation.computed(C_in_race[:, None] & of_rounds[0].folds)

    def scores_with(wanted: Bool[np.ndarray, "s v"]) -> Scores:
        """Validate on the wanted folds that are still missing; return the scores."""
        nonlocal validation, computed
        missing = wanted & ~computed
        if np.any(missing):
            more = some_errors(missing)
            validation, computed = validation.joined(more), computed | more.computed(missing)
        return least_of_sizes(method, validation)

    for one_round in of_rounds:
        scores = scores_with(C_in_race[:, None] & one_round.folds)
        if np.all(computed):
            return validation, scores
        C_in_race = _stays(scores, C_in_race, one_round, best)
    while True:
        scores = scores_with(np.broadcast_to(C_in_race[:, None], computed.shape))
        complete = np.all(computed, axis=1)
        scores = _with_estimates(scores, complete, best)
        least = np.argmin(scores.trusted)
        if complete[least] or not scores.trusted[least] < best.score:
            return validation, scores
        C_in_race = np.arange(len(complete)) == least


def _stays(
    scores: Scores, C_in_race: Bool[np.ndarray, " s"], this: Round, best: BestFolds
) -> Bool[np.ndarray, " s"]:
    """Return, for each `C`, whether its machine is still in the race after this round."""
    trusted = np.where(C_in_race, scores.trusted, np.inf)
    comparison, folds = this
    fold_scores = scores.fold_scores[:, folds]
    rival = fold_scores[np.argmin(trusted)]
    if np.isfinite(best.score) and _mean(best.fold_scores[folds]) <= _mean(rival):
        rival = best.fold_scores[folds]
    mean, error = _mean_difference(fold_scores, rival)
    margin = np.fmax(comparison.standard_errors * error, comparison.share * _mean(rival))
    rank = np.argsort(np.argsort(trusted, kind="stable"))
    return np.isfinite(trusted) & (rank < comparison.kept) & ~(mean > margin)


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
