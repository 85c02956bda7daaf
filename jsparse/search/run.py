"""The loop around a search: it evaluates kernels, records them, reports progress, and resumes."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._repr import ShortList, short_repr
from .._status import PRECISION_LOST, NumericalError
from .._types import Key
from ..kernels import Kernel
from ..validation.validate import Scoring
from .descent import Slope
from .history import Evaluation, scored
from .problem import Tunable
from .race import BestFolds, Rule
from .scores import smallest_C
from .strategies import Search
from .template import Template

Stopped = Literal["finished", "seconds", "interrupted"]


class Tuning(NamedTuple):
    """The outcome of a search: the best kernel and `C`, and the history."""

    kernel: Kernel
    C: float
    score: float  # cross-validated error, in the metric that was minimised
    standard_error: float  # of the score, from its spread over the folds
    theta: np.ndarray  # the kernel as a point of the search, see `Template`; shape `p`
    status: int  # stop code of the scored machines, the worst over folds
    history: list[Evaluation]
    stopped: Stopped  # why the search ended

    __repr__ = short_repr

    def sparsest(self, tolerance: float) -> "Tuning":
        """Return the outcome of the best kernel, for the smallest `C` of nearly least error.

        Args:
            tolerance: the most by which the error may exceed the least error, in standard errors of
                the least error.
        """
        best = min(scored(self.history), key=lambda evaluation: evaluation.least)
        if not np.isfinite(best.least):
            return self  # the caller stated the only machine
        errors = np.where(best.is_comparable, best.trusted, np.inf)
        place = smallest_C(best.C, errors, best.standard_errors, tolerance)
        return self._replace(**best.at(place))


Progress = Callable[[int, int, float], None]
"""Called with (evaluations done, evaluations planned, best score), once for each evaluation.

Evaluations of one batch are reported one after another when all of them are done.
"""


def hand_over(error: BaseException, history: Sequence[Evaluation]) -> None:
    """Attach the evaluations to an error that ends a search, unless it has a `history` already."""
    if history and not hasattr(error, "history"):
        with contextlib.suppress(AttributeError):  # the error's class may have slots
            error.history = ShortList(history)  # type: ignore[attr-defined]
            error.add_note(
                f"jsparse: the {len(history)} evaluations done before this error are in its "
                "attribute `history`"
            )


def best_of(
    template: Template,
    dtype: jnp.dtype,
    history: list[Evaluation],
    stopped: Stopped,
    *,
    is_stated: bool = False,
) -> Tuning:
    """Return the kernel and `C` of the lowest trusted score, with the whole history.

    If the caller stated the only machine (`is_stated`), there is nothing to choose, and its score
    may have the stop code PRECISION_LOST, which `Tuning.status` then has.

    Raises:
        NumericalError: if no score can be trusted.
    """
    best = min(scored(history), key=lambda e: e.least)
    place = np.argmin(best.trusted)
    is_lost = best.status[place] == PRECISION_LOST and np.isfinite(best.scores[place])
    if not (np.isfinite(best.least) or (is_stated and is_lost)):
        raise NumericalError(
            "tuning: no kernel and C gave a cross-validation error that can be trusted in "
            f"{dtype}; use float64 or other bounds"
        )
    return Tuning(
        kernel=template.at(best.theta.astype(dtype)),
        theta=best.theta,
        history=ShortList(history),
        stopped=stopped,
        **best.at(place),
    )


class _Stop(Exception):
    """Raised when the time limit has passed."""


class Run:
    """The `Evaluator` of one search: it evaluates, records, reports progress, and resumes.

    A search that moves the points replaces `problem`.

    Args:
        problem: the tuning problem.
        search: the search to run.
        scoring: the metric and the decoding.
        key: PRNG key of the search.
        grid: values of `C`, shape `s`.
        bounds: lower and upper bounds of theta.
        deadline: no evaluation starts later, in seconds of `time.perf_counter`.
        progress: called after each evaluation, if given.
        history: evaluations of a stopped run, which are not computed again.
        stage: number of the stage.
        same_run: whether the history is known to be of a run with the same arguments.
    """

    def __init__(
        self,
        problem: Tunable,
        search: Search,
        scoring: Scoring,
        key: Key,
        grid: Float[np.ndarray, " s"],
        bounds: tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]],
        deadline: float,
        progress: Progress | None,
        history: Sequence[Evaluation],
        stage: int = 0,
        same_run: bool = False,
    ) -> None:
        self.problem, self.search, self.scoring, self.key = problem, search, scoring, key
        self.template, self.dtype = problem.template, problem.dtype
        self.grid, (self.low, self.high) = grid, bounds
        self.planned = search.planned(problem)
        self.progress, self.stage, self.checked = progress, stage, same_run
        self.slopes: Counter[bytes] = Counter()  # number of slopes at each point
        self.known = {
            (self._slope_name if len(e.slope) > 0 else self._name)(e.theta, e.C): e for e in history
        }
        self.slopes.clear()
        # Evaluations that are not in the history yet, either given or made in the current batch.
        self.unused = dict(self.known)
        self.history: list[Evaluation] = []
        self.has_new_evaluations = False  # whether any was not in the given history
        self.start, self.deadline = time.perf_counter(), deadline
        self.seconds_each = math.inf  # least time that the scores of a kernel have taken
        self.stops: tuple[type[BaseException], ...] = (_Stop,)
        if search.start is not None and search.start.theta.shape != self.low.shape:
            raise ValueError(
                "start: expected the result of a search over kernel parameters of shape "
                f"{self.low.shape}, got parameters of shape {search.start.theta.shape}"
            )

    @property
    def done(self) -> list[Evaluation]:
        """All evaluations, whether they are in the history or not yet."""
        return [*self.history, *self.unused.values()]

    def scores(self, thetas: np.ndarray, C: np.ndarray | None = None) -> Float[np.ndarray, " q"]:
        """See `Evaluator.scores`."""
        C = self.grid[None] if C is None else C
        C = np.broadcast_to(C, (len(thetas), C.shape[1]))
        at_once = min(self.planned, self.problem.kernels_at_once)
        for i in range(0, len(thetas), at_once):
            self._evaluate_batch(thetas[i : i + at_once], C[i : i + at_once])
        return np.array([e.least for e in self.history[len(self.history) - len(thetas) :]])

    def slope(self, theta: np.ndarray, C: float, evaluate: Callable[[], Slope]) -> Slope:
        """See `Evaluator.slope`."""
        every_C = np.full_like(self.history[0].C, C)
        name = self._slope_name(theta, every_C)
        step = self.known.get(name)
        if step is None:
            # Leave time to score the kernel at the end of the steps.
            if time.perf_counter() + self.seconds_each > self.deadline:
                raise _Stop
            slope, self.has_new_evaluations = evaluate(), True
            zeros = np.zeros(len(every_C))
            step = Evaluation(
                theta, every_C, zeros + slope.error, zeros + np.nan, zeros.astype(np.int32),
                time.perf_counter() - self.start,
                np.array([slope.value, *slope.gradient]), self.stage,
            )  # fmt: skip
        self._record([name], [step])
        value, *gradient = step.slope.tolist()
        return Slope(value, np.array(gradient), float(step.scores[0]))

    def best_C(self, theta: np.ndarray) -> float:
        """See `Evaluator.best_C`."""
        evaluation = next(e for e in scored(self.history) if np.array_equal(e.theta, theta))
        return float(evaluation.C[np.argmin(evaluation.trusted)])

    def finish(self, *, is_stated: bool = False) -> Tuning:
        """Run the search until it ends, its time is up, or Ctrl-C; return the best trusted outcome.

        Raises:
            NumericalError: if no score can be trusted, see `best_of`.
            KeyboardInterrupt: if there is no evaluation yet.
        """
        stopped: Stopped = "finished"
        try:
            self.search.run(self)
        except _Stop:
            stopped = "seconds"
        except KeyboardInterrupt:
            if not self.done:
                raise
            stopped = "interrupted"
        if stopped != "finished":  # so that a later run can resume from all known evaluations
            self.history = self.done
        self.unused.clear()
        return best_of(self.template, self.dtype, self.history, stopped, is_stated=is_stated)

    def _evaluate_batch(self, thetas: np.ndarray, C: np.ndarray) -> None:
        """Record the evaluations of some kernels; compute the missing ones."""
        names = [self._name(*point) for point in zip(thetas, C, strict=True)]
        if self.known and not self.history and not self.checked:
            self._check_history(names[0])
        new = [i for i, name in enumerate(names) if name not in self.known]
        evaluations = {i: self.known[name] for i, name in enumerate(names) if i not in new}
        if new:
            if self.history and time.perf_counter() > self.deadline:
                raise _Stop
            rule = self.search.race
            best = None if rule is None else self._best_folds(rule)
            evaluated, self.has_new_evaluations = self._evaluate(thetas[new], C[new], best), True
            evaluations |= dict(zip(new, evaluated, strict=True))
        self._record(names, [evaluations[i] for i in range(len(names))])

    def _record(self, names: list[bytes], evaluations: list[Evaluation]) -> None:
        """Append evaluations to the history one by one, and report progress after each.

        Evaluations that are not appended yet are in `unused`, so an error in a report loses none.
        """
        self.unused |= dict(zip(names, evaluations, strict=True))
        for name, evaluation in zip(names, evaluations, strict=True):
            self.history.append(evaluation)
            self.unused.pop(name, None)
            if self.progress is not None:
                best = min(e.least for e in scored(self.history))
                self.progress(len(self.history), self.planned, best)

    def _evaluate(
        self, thetas: np.ndarray, C: np.ndarray, best: BestFolds | None
    ) -> list[Evaluation]:
        """Compute the scores of some kernels, in a race against the `best` machine, if any."""
        begin = time.perf_counter()
        points = thetas.astype(self.dtype), C.astype(self.dtype)
        results = self.problem.scores(*points, self.scoring, best)
        end = time.perf_counter()
        self.seconds_each = min(self.seconds_each, (end - begin) / len(thetas))
        seconds = end - self.start
        return [
            Evaluation(
                theta, C, scores, errors, status, seconds, stage=self.stage, fold_scores=folds
            )
            for theta, C, scores, errors, status, folds in zip(thetas, C, *results, strict=True)
        ]

    def _best_folds(self, rule: Rule) -> BestFolds:
        """Return the errors of the best machine so far, for a race by this rule."""
        best = min(scored(self.history), key=lambda e: e.least, default=None)
        if best is None or not np.isfinite(best.least):
            return BestFolds(rule=rule)
        return BestFolds(best.least, best.fold_scores[np.argmin(best.trusted)], rule)

    def _name(self, theta: np.ndarray, C: np.ndarray) -> bytes:
        """Return a dictionary key for scores at `theta` and `C`, rounded to the device's dtype."""
        return np.concatenate([theta, C]).astype(self.dtype).tobytes()

    def _slope_name(self, theta: np.ndarray, C: np.ndarray) -> bytes:
        """Return a dictionary key for the next slope at theta and `C`, and count this slope.

        Descents with other rows or prototypes may go through the same point. Their order is the
        same in every run, so the keys count the slopes of a point.
        """
        point = self._name(theta, C)
        self.slopes[point] += 1
        return point + b"slope %d" % self.slopes[point]

    def _check_history(self, first: bytes) -> None:
        """Raise a `ValueError` unless the given history is of this problem and this search.

        Args:
            first: dictionary key of the first point of this search.
        """
        old = min(scored(list(self.known.values())), key=lambda e: e.least)
        if old.theta.shape != self.low.shape:
            raise ValueError(
                f"history: expected evaluations of {self.low.shape} parameters, got "
                f"{old.theta.shape}"
            )
        new, place = self._evaluate(old.theta[None], old.C[None], None)[0], np.argmin(old.trusted)
        # Another device rounds differently, which may change the predicted class of a row or two.
        rows = 2 / self.problem.rows_scored if self.scoring.metric == "misclassification" else 0
        # Scores above the least one may be estimates.
        if not np.isclose(new.trusted[place], old.least, rtol=1e-3, atol=rows):
            raise ValueError(
                "history: expected evaluations of the same problem; the best score in the history "
                f"is {old.least:.6g}, on this problem the same kernel has {new.trusted[place]:.6g}"
            )
        if first not in self.known:
            raise ValueError(
                "history: expected evaluations of a search with the same method, bounds, C and "
                "key; the first one of this search is not among them"
            )
