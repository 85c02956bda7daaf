"""The host side of a search: it evaluates, records, reports, and ends in good order."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from .._repr import ShortList, short_repr
from .._status import NumericalError
from .._types import Key
from ..kernels import Kernel
from ..validation.validate import Scoring
from .descent import Slope
from .history import Evaluation
from .problem import Tunable
from .strategies import Search

Stopped = Literal["finished", "seconds", "interrupted"]


class Tuning(NamedTuple):
    """The outcome of a search: the best kernel and `C`, and all that was evaluated."""

    kernel: Kernel
    C: float
    score: float
    standard_error: float  # of the score, from its spread over the folds
    theta: np.ndarray  # logs of the kernel's tuned leaves
    status: int  # stop code of what the score is of, the worst over folds
    history: list[Evaluation]
    stopped: Stopped

    __repr__ = short_repr

    def sparsest(self, tolerance: float) -> "Tuning":
        """Return the outcome with the smallest `C` whose error is within the tolerance.

        Args:
            tolerance: in standard errors of the least error of the best kernel.
        """
        scored = [e for e in self.history if not e.slope.size]
        best = min(scored, key=lambda e: float(np.min(e.trusted)))
        bound = self.score + tolerance * np.nan_to_num(self.standard_error)
        j = min(np.flatnonzero(best.trusted <= bound), key=lambda j: best.C[j])
        return self._replace(
            C=float(best.C[j]),
            score=float(best.scores[j]),
            standard_error=float(best.standard_errors[j]),
            status=int(best.status[j]),
        )


Progress = Callable[[int, int, float], None]
"""Called with (evaluations done, evaluations planned, best score) after each evaluation."""


def hand_over(error: BaseException, history: Sequence[Evaluation]) -> None:
    """Give the evaluations to an error that ends a search, unless it has a `history` already."""
    if history and not hasattr(error, "history"):
        with contextlib.suppress(AttributeError):  # of a class with slots
            error.history = ShortList(history)  # type: ignore[attr-defined]
            error.add_note(
                f"jsparse: the {len(history)} evaluations done until then are in the attribute "
                "`history` of this error"
            )


class _Stop(Exception):
    """The time is up."""


class Run:
    """The host side of a search: evaluates, records, reports, and ends in good order.

    An `Evaluator`; a search that moves the points replaces `problem`.
    """

    def __init__(
        self,
        problem: Tunable,
        search: Search,
        scoring: Scoring,
        key: Key,
        grid: Float[np.ndarray, " s"],
        bounds: tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]],
        seconds: float,
        progress: Progress | None,
        history: Sequence[Evaluation],
        stage: int = 0,
    ) -> None:
        self.problem, self.search, self.scoring, self.key = problem, search, scoring, key
        self.grid, (self.low, self.high) = grid, bounds
        self.template = problem.template
        self.planned = search.planned(self.template, problem.rows_scored)
        self.seconds, self.progress, self.stage = seconds, progress, stage
        self.known = {self._name(e.theta, e.C, e.slope): e for e in history}
        self.unused = dict(self.known)
        self.history: list[Evaluation] = []
        self.goes_on = False  # whether anything was evaluated that is not in the history given
        self.start = time.perf_counter()
        self.deadline = self.start + seconds
        self.at_once = min(self.planned, problem.kernels_at_once)
        self.stops = (_Stop,)
        if search.start is not None and search.start.theta.shape != self.low.shape:
            raise ValueError(
                f"start: expected one of {self.low.size} parameters, got theta {search.start.theta}"
            )

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the computations."""
        return self.problem.dtype

    @property
    def done(self) -> list[Evaluation]:
        """All evaluations that are known, done or not come to again."""
        return [*self.history, *self.unused.values()]

    def scores(self, thetas: np.ndarray, C: np.ndarray | None = None) -> Float[np.ndarray, " q"]:
        """Return the best trustworthy score of each kernel over its row of `C`."""
        C = self.grid[None] if C is None else C
        C = np.broadcast_to(C, (len(thetas), C.shape[1]))
        return np.concatenate(
            [
                self._some(thetas[i : i + self.at_once], C[i : i + self.at_once])
                for i in range(0, len(thetas), self.at_once)
            ]
        )

    def slope(self, theta: np.ndarray, C: float, evaluate: Callable[[], Slope]) -> Slope:
        """Return a step of a gradient, evaluated or as it is known."""
        first = self.history[0]
        every_C, nothing = np.full_like(first.C, C), np.zeros(len(first.C))
        name = self._name(theta, every_C, np.zeros(1))
        step = self.known.get(name)
        if step is None:
            # What the steps find is to be scored, in the time that there is.
            spent = time.perf_counter() - self.start
            scored = [e.seconds for e in self.history if not e.slope.size]
            if spent + 2 * min(np.diff([0.0, *scored])) > self.seconds:
                raise _Stop
            at, self.goes_on = evaluate(), True
            step = Evaluation(
                theta, every_C, nothing + at.error, nothing + np.nan, nothing.astype(np.int32),
                time.perf_counter() - self.start,
                np.array([at.value, at.validation_error, *at.gradient]), self.stage,
            )  # fmt: skip
        self.unused.pop(name, None)
        self._add([step])
        value, validation_error, *gradient = step.slope.tolist()
        return Slope(value, np.array(gradient), float(step.scores[0]), validation_error)

    def best_C(self, theta: np.ndarray) -> float:
        """Return the `C` of the best score of a kernel that was scored."""
        (scored, *_) = [e for e in self._scored if np.array_equal(e.theta, theta)]
        return float(scored.C[np.argmin(scored.trusted)])

    def finish(self) -> Tuning:
        """Run the search to its end, its time or Ctrl-C."""
        stopped: Stopped = "finished"
        try:
            self.search.run(self)
        except _Stop:
            stopped = "seconds"
        except KeyboardInterrupt:
            if not self.history and not self.known:
                raise
            stopped = "interrupted"
        if stopped != "finished":
            # What was not come to again is not lost.
            self.history += self.unused.values()
        self.unused.clear()
        best, j = self._best()
        return Tuning(
            kernel=self.template.at(best.theta.astype(self.dtype)),
            C=float(best.C[j]),
            score=float(best.scores[j]),
            standard_error=float(best.standard_errors[j]),
            theta=best.theta,
            status=int(best.status[j]),
            history=ShortList(self.history),
            stopped=stopped,
        )

    def _some(self, thetas: np.ndarray, C: np.ndarray) -> np.ndarray:
        names = [self._name(*point) for point in zip(thetas, C, strict=True)]
        if self.known and not self.history:
            self._check_history(names[0])
        new = [i for i, name in enumerate(names) if name not in self.known]
        evaluations = {i: self.known[name] for i, name in enumerate(names) if i not in new}
        if new:
            if self.history and time.perf_counter() - self.start > self.seconds:
                raise _Stop
            found, self.goes_on = self._evaluate(thetas[new], C[new]), True
            evaluations |= dict(zip(new, found, strict=True))
        for name in names:
            self.unused.pop(name, None)
        in_order = [evaluations[i] for i in range(len(names))]
        self._add(in_order)
        return np.array([np.min(e.trusted) for e in in_order])

    @property
    def _scored(self) -> list[Evaluation]:
        """All evaluations but the steps of a gradient."""
        return [e for e in self.history if not e.slope.size]

    def _add(self, evaluations: list[Evaluation]) -> None:
        self.history += evaluations
        if self.progress is not None:
            best = min(float(np.min(e.trusted)) for e in self._scored)
            self.progress(len(self.history), self.planned, best)

    def _evaluate(self, thetas: np.ndarray, C: np.ndarray) -> list[Evaluation]:
        t, c = thetas.astype(self.dtype), np.asarray(C, self.dtype)
        scores, errors, status = self.problem.scores(t, c, self.scoring)
        seconds = time.perf_counter() - self.start
        rows = zip(thetas, C, scores, errors, status, strict=True)
        return [Evaluation(*row, seconds, stage=self.stage) for row in rows]

    def _name(self, theta: np.ndarray, C: np.ndarray, slope: np.ndarray | None = None) -> bytes:
        """Return a point as the device sees it, and whether it is a step of a gradient."""
        point = np.concatenate([theta, C]).astype(self.problem.dtype).tobytes()
        return point + b"slope" * bool(slope is not None and slope.size)

    def _check_history(self, first: bytes) -> None:
        """Raise unless the known evaluations are of this problem and of a search that begins so."""
        scored = [e for e in self.known.values() if not e.slope.size]
        old = min(scored, key=lambda e: float(np.min(e.trusted)))
        if old.theta.shape != self.low.shape:
            raise ValueError(
                f"history: expected evaluations of {self.low.shape} parameters, got "
                f"{old.theta.shape}"
            )
        new = self._evaluate(old.theta[None], old.C[None])[0]
        # Another device rounds otherwise, which may turn a row or two.
        rows = 2 / self.problem.rows_scored if self.scoring.metric == "misclassification" else 0
        if not np.allclose(new.trusted, old.trusted, rtol=1e-3, atol=rows):
            raise ValueError(
                "history: expected evaluations of the same problem; the best score of its best "
                f"kernel is {old.trusted.min():.6g}, here it is {new.trusted.min():.6g}"
            )
        if first not in self.known:
            raise ValueError(
                "history: expected evaluations of a search with the same method, bounds, C and "
                "key; the first one of this search is not among them"
            )

    def _best(self) -> tuple[Evaluation, int]:
        """Return the best evaluation that can be trusted, and the place of its best `C`."""
        values = [e.trusted for e in self._scored]
        i = int(np.argmin([v.min() for v in values]))
        j = int(np.argmin(values[i]))
        if not np.isfinite(values[i][j]):
            raise NumericalError(
                "tuning: no kernel and C gave a cross-validation error that can be trusted in "
                f"{self.problem.dtype}; use float64 or other bounds"
            )
        return self._scored[i], j
