"""Evaluations and sums of kernels that `InMemory` keeps, so that it need not compute them again."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._repr import short_repr
from ..machines.from_sums import FoldSums
from ..search.problem import Problem
from ..search.scores import least_of_sizes
from ..validation.validate import Scoring, Validation


class Evaluated(NamedTuple):
    """The evaluation of one kernel for several values of `C`, with all predictions."""

    problem: Problem
    scoring: Scoring
    theta: bytes  # the kernel as a point of the template
    C: Float[np.ndarray, " s"]
    validation: Validation
    folds: Bool[np.ndarray, "s v"]  # the folds that were computed

    __repr__ = short_repr

    @property
    def complete(self) -> Bool[np.ndarray, " s"]:
        """For each `C`, whether all folds were computed."""
        return np.all(self.folds, axis=1)

    @property
    def score(self) -> float:
        """The least error of a `C` with all folds; infinite if no error can be trusted.

        It is in the metric in which the search compares kernels.
        """
        compares, validation = self.problem.compares, self.validation
        validation = validation.in_compared_metric() if compares else validation
        trusted = least_of_sizes(self.problem.method, validation).trusted
        return float(np.min(trusted, where=self.complete, initial=np.inf))

    def joined(self, other: "Evaluated") -> "Evaluated | None":
        """Return one evaluation on the folds of both evaluations; None if that is impossible.

        It is possible if both are of the same machines and the same scoring, and no fold was
        computed for one `C` by both.
        """
        same = same_machines(self.problem, other.problem) and np.array_equal(self.C, other.C)
        same = same and (self.scoring, self.theta) == (other.scoring, other.theta)
        if not same or np.any(self.folds & other.folds):
            return None
        validation = self.validation.joined(other.validation)
        return self._replace(validation=validation, folds=self.folds | other.folds)


class SumsAt(NamedTuple):
    """The sums of one kernel over all rows and over each fold."""

    problem: Problem
    theta: bytes  # the kernel as a point of the template
    sums: FoldSums

    __repr__ = short_repr


class KeptEvaluations:
    """The best evaluation of a search, and the unfinished evaluation and sums of the last kernel.

    A race evaluates a kernel some folds at a time. `unfinished` has the last kernel's folds so far.
    """

    def __init__(self) -> None:
        self.best: Evaluated | None = None
        self.unfinished: Evaluated | None = None
        self.sums: SumsAt | None = None

    def known(
        self, problem: Problem, theta: Any, C: Float[Any, " s"], scoring: Scoring
    ) -> Validation | None:
        """Return the errors and predictions on all folds; None unless all `C` have been kept."""
        for kept in (self.best, self.unfinished):
            if kept is None or not same_machines(kept.problem, problem):
                continue
            if (kept.scoring, kept.theta) != (scoring, np.asarray(theta).tobytes()):
                continue
            same = np.asarray(C)[:, None] == kept.C
            if np.all(np.any(same & kept.complete, axis=1)):
                return kept.validation.of_C(np.argmax(same, axis=1))
        return None

    def add(self, evaluated: Evaluated) -> None:
        """Join an evaluation to `unfinished`, and replace `best` by it unless `best` is better.

        The lower score in the same metric is better. Of two kernels with the same score the first
        stays, as it is the result of the search. The joined evaluation becomes `unfinished` while
        folds are missing.
        """
        joined = None if self.unfinished is None else self.unfinished.joined(evaluated)
        evaluated = evaluated if joined is None else joined
        self.unfinished = None if np.all(evaluated.folds) else evaluated
        if not np.any(evaluated.complete):
            return
        best = self.best
        if best is not None and same_machines(best.problem, evaluated.problem):
            in_one_metric = best.problem.compares == evaluated.problem.compares
            wins_tie = best.theta != evaluated.theta and best.score == evaluated.score
            if in_one_metric and (wins_tie or best.score < evaluated.score):
                return
        self.best = evaluated

    def sums_of(self, problem: Problem, theta: Any, compute: Callable[[], FoldSums]) -> FoldSums:
        """Return the kept sums if they are of this kernel; else compute the sums and keep them."""
        point, last = np.asarray(theta).tobytes(), self.sums
        if last is None or last.theta != point or not same_machines(last.problem, problem):
            self.sums = last = None  # before the next sums take memory
            self.sums = last = SumsAt(problem, point, compute())
        return last.sums


def same_machines(first: Problem, second: Problem) -> bool:
    """Return whether two problems have identical objects: method, template, points and key."""
    names = ("method", "template", "points", "key")
    return all(getattr(first, name) is getattr(second, name) for name in names)
