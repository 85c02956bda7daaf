"""Tuning a kernel and `C` by cross-validation: the profile search and the paper's CSA + simplex."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arguments import as_key, numbers, real
from .._files import ModelFileError, PathLike, load_state, named, save_state, shown
from .._repr import ShortList, short_repr
from .._status import PRECISION_LOST, NumericalError
from .._types import KeyLike
from ..kernels import Kernel
from ..machines.method import Metric
from ..multiclass import Decoding
from .gradient import Slope, gradient_search, settled
from .problem import Problem, Scoring, Tunable, kernel_at, start_of
from .strategies import (
    Annealing,
    Gradient,
    Profile,
    Rescaling,
    Search,
    annealing_search,
    check_search,
    line_search,
    local_line_search,
    rescaling_search,
    rounds,
    simplex_search,
)

NO_SLOPE = np.zeros(0)


class Evaluation(NamedTuple):
    """One kernel's cross-validation, for a vector of `C`."""

    theta: np.ndarray  # logs of the tuned leaves, shape `p`
    C: np.ndarray  # shape `s`
    scores: np.ndarray  # shape `s`
    standard_errors: np.ndarray  # of the scores, from their spread over the folds, shape `s`
    status: np.ndarray  # shape `s`
    seconds: float  # since the search began
    # Of a step of `Gradient`: log of the error with the prior, watched error, gradient in theta
    # and log C; `C` and `scores`, the error, are then one number. Else empty.
    slope: np.ndarray = NO_SLOPE

    __repr__ = short_repr


class Tuning(NamedTuple):
    """The outcome of a search: the best kernel and `C`, and all that was evaluated."""

    kernel: Kernel
    C: float
    score: float
    standard_error: float  # of the score, from its spread over the folds
    theta: np.ndarray  # logs of the kernel's tuned leaves
    status: int  # stop code of what the score is of, the worst over folds
    history: list[Evaluation]
    stopped: Literal["finished", "seconds", "interrupted"]

    __repr__ = short_repr


Progress = Callable[[int, int, float], None]
"""Called with (evaluations done, evaluations planned, best score) after each evaluation."""


def tune(
    problem: Tunable,
    *,
    key: KeyLike,
    metric: Metric,
    low: Float[np.ndarray, " p"],
    high: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    decoding: Decoding = "loss",
    search: Search = Profile(),
    max_seconds: float = math.inf,
    progress: Progress | None = None,
) -> Tuning:
    """Minimise the cross-validated error over the kernel and `C`.

    Args:
        problem: see `tuning_problem`.
        key: decides the search; the same key, problem and arguments give the same result.
        metric: see `cross_validate`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        decoding: see `multiclass.distances`.
        search: `Profile`, `Annealing` or `Gradient`. With a `start`, one parameter: by the smallest
            steps the search would have ended with, until the best kernel lies between two others
            (mostly three or four evaluations instead of ten). Several: the simplex alone, or the
            steps of the gradient.
        max_seconds: no evaluation starts later; what was found until then is returned.
        progress: called as `progress(done, planned, best_score)`.

    Ctrl-C stops the search and keeps the best so far. An error within it, such as one of
    `progress`, comes out as it is, with the evaluations done until then as its attribute `history`.

    Raises:
        ValueError: if the bounds or the budget make no sense, or the history is of another problem.
        NumericalError: if no evaluation gave an error that can be trusted.
    """
    key, scoring = as_key(key), Scoring(metric, decoding)
    grid = check_settings(scoring, C, search, max_seconds, progress)
    low, high = numbers("low", low), numbers("high", high)
    p = low.size
    if not low.shape == high.shape == start_of(problem).shape or not np.all(
        (low < high) & np.isfinite(low) & np.isfinite(high)
    ):
        raise ValueError(
            f"low, high: expected {start_of(problem).size} bounds each, low < high; got {low} and "
            f"{high}"
        )
    if isinstance(search, Gradient) and p > 0:
        if not isinstance(problem, Problem):
            raise ValueError(
                f"problem: expected a Problem for a Gradient, got {type(problem).__name__}"
            )
        search = settled(problem, search)
    profile = not isinstance(search, Annealing)
    budget, start = sum(rounds(search, p)), search.start
    run = _Run(problem, scoring, budget, max_seconds, progress, search.history)
    lows, highs = low, high
    begin = None
    if start is not None:
        begin = start.theta if profile else np.append(start.theta, np.log(start.C))
        if start.theta.shape != low.shape:
            raise ValueError(f"start: expected one of {p} parameters, got theta {start.theta}")
    if not profile:
        lows, highs = np.append(low, np.log(grid.min())), np.append(high, np.log(grid.max()))

    def scores(points: np.ndarray) -> np.ndarray:
        if profile:
            return run.scores(points, grid[None])
        return run.scores(points[:, :-1], np.exp(points[:, -1:]))

    def go() -> None:
        if isinstance(search, Gradient) and p > 0:
            assert isinstance(problem, Problem)
            gradient_search(problem, key, low, high, grid, search, run, (_Stop,))
        elif isinstance(search, Rescaling) and p > 0:
            rescaling_search(start_of(problem).astype(float), search.ratio, budget, scores)
        elif profile and p == 0:
            scores(np.zeros((1, 0)))
        elif profile and p == 1:
            if begin is None:
                line_search(low[0], high[0], budget, problem.dtype, scores)
            else:
                local_line_search(low[0], high[0], np.clip(begin, low, high), budget, scores)
        elif begin is None:
            annealing_search(key, lows, highs, budget, problem.dtype, scores)
        else:
            simplex_search(lows, highs, begin, budget, problem.dtype, scores)

    return run.finish(go)


def check_settings(
    scoring: Scoring,
    C: ArrayLike,
    search: Search,
    max_seconds: float,
    progress: Progress | None,
) -> Float[np.ndarray, " s"]:
    """The values of `C`; raises a `ValueError` for settings of `tune` that make no sense."""
    for name, known in (("metric", get_args(Metric)), ("decoding", get_args(Decoding))):
        value = getattr(scoring, name)
        if value not in known:
            raise ValueError(f"{name}: expected one of {known}, got {value!r}")
    check_search(search)
    grid = numbers("C", C)
    if grid.ndim != 1 or grid.size == 0 or not np.all(np.isfinite(grid) & (grid > 0)):
        raise ValueError(f"C: expected a vector of positive numbers, got {C}")
    if isinstance(search, Annealing) and not grid.min() < grid.max():
        raise ValueError(
            f"C: expected a range for Annealing, at least two different values, got {C}"
        )
    real("max_seconds", max_seconds, 0.0, finite=False)
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function or None, got {progress!r}")
    known, start = search.history or [], search.start
    if not (isinstance(known, Sequence) and all(isinstance(e, Evaluation) for e in known)):
        raise ValueError(
            f"history: expected a list of evaluations or None, got {type(search.history).__name__}"
        )
    if start is not None and not isinstance(start, Tuning):
        raise ValueError(f"start: expected what `tune` returns or None, got {start!r}")
    return grid


class _Stop(Exception):
    """The time is up."""


class _Run:
    """The host side of a search: evaluates, records, reports, and ends in good order."""

    def __init__(
        self,
        problem: Tunable,
        scoring: Scoring,
        planned: int,
        seconds: float,
        progress: Progress | None,
        history: Sequence[Evaluation] | None,
    ) -> None:
        self.problem, self.scoring = problem, scoring
        self.planned, self.seconds, self.progress = planned, seconds, progress
        self.known = {self._name(e.theta, e.C, e.slope): e for e in history or []}
        self.unused = dict(self.known)
        self.history: list[Evaluation] = []
        self.start = time.perf_counter()
        self.at_once = min(planned, problem.kernels_at_once)

    def scores(self, thetas: np.ndarray, C: np.ndarray) -> Float[np.ndarray, " q"]:
        """Best trustworthy score of each kernel (row of `thetas`) over its row of `C`."""
        C = np.broadcast_to(C, (len(thetas), C.shape[1]))
        return np.concatenate(
            [
                self._some(thetas[i : i + self.at_once], C[i : i + self.at_once])
                for i in range(0, len(thetas), self.at_once)
            ]
        )

    def _some(self, thetas: np.ndarray, C: np.ndarray) -> np.ndarray:
        names = [self._name(*point) for point in zip(thetas, C, strict=True)]
        if self.known and not self.history and names[0] not in self.known:
            raise ValueError(
                "history: expected evaluations of a search with the same method, bounds, C and "
                "key; the first one of this search is not among them"
            )
        if all(name in self.known for name in names):
            found = [self.known[name] for name in names]
            for name in names:
                self.unused.pop(name, None)
        else:
            if self.history and time.perf_counter() - self.start > self.seconds:
                raise _Stop
            found = self._evaluate(thetas, C)
        self._add(found)
        return np.array([np.min(_trusted(e)) for e in found])

    def slope(self, theta: np.ndarray, C: float, of: Callable[[], Slope]) -> Slope:
        """A step of a gradient, evaluated or as it is known; see `gradient.Run`."""
        first = self.history[0]
        many, nothing = np.full_like(first.C, C), np.zeros(len(first.C))
        name = self._name(theta, many, np.zeros(1))
        found = self.known.get(name)
        if found is None:
            # What the steps find is to be scored, in the time that there is.
            spent = time.perf_counter() - self.start
            scored = [e.seconds for e in self.history if not e.slope.size]
            if spent + 2 * min(np.diff([0.0, *scored])) > self.seconds:
                raise _Stop
            at = of()
            found = Evaluation(
                theta, many, nothing + at.error, nothing + np.nan, nothing.astype(np.int32),
                time.perf_counter() - self.start,
                np.array([at.value, at.watched, *at.gradient]),
            )  # fmt: skip
        self.unused.pop(name, None)
        self._add([found])
        value, watched, *gradient = found.slope.tolist()
        return Slope(value, np.array(gradient), float(found.scores[0]), watched)

    def best_C(self, theta: np.ndarray) -> float:
        """That of the best score of a kernel that was scored."""
        (found, *_) = [e for e in self._scored if np.array_equal(e.theta, theta)]
        return float(found.C[np.argmin(_trusted(found))])

    @property
    def _scored(self) -> list[Evaluation]:
        """All but the steps of a gradient."""
        return [e for e in self.history if not e.slope.size]

    def _add(self, found: list[Evaluation]) -> None:
        self.history += found
        if self.progress is not None:
            best = min(float(np.min(_trusted(e))) for e in self._scored)
            self.progress(len(self.history), self.planned, best)

    def _evaluate(self, thetas: np.ndarray, C: np.ndarray) -> list[Evaluation]:
        dtype = self.problem.dtype
        t, c = thetas.astype(dtype), np.asarray(C, dtype)
        scores, errors, status = self.problem.scores(t, c, self.scoring)
        seconds = time.perf_counter() - self.start
        rows = zip(thetas, C, scores, errors, status, strict=True)
        return [Evaluation(*row, seconds) for row in rows]

    def _name(self, theta: np.ndarray, C: np.ndarray, slope: np.ndarray = NO_SLOPE) -> bytes:
        """A point as the device sees it, and whether it is a step of a gradient."""
        point = np.concatenate([theta, C]).astype(self.problem.dtype).tobytes()
        return point + b"slope" * bool(slope.size)

    def _check_history(self) -> None:
        scored = [e for e in self.known.values() if not e.slope.size]
        old = min(scored, key=lambda e: float(np.min(_trusted(e))))
        shape = start_of(self.problem).shape
        if old.theta.shape != shape:
            raise ValueError(
                f"history: expected evaluations of {shape} parameters, got {old.theta.shape}"
            )
        new = self._evaluate(old.theta[None], old.C[None])[0]
        ours, theirs = _trusted(new), _trusted(old)
        # Another device rounds otherwise, which may turn a row or two.
        rows = 2 / self.problem.rows_scored if self.scoring.metric == "misclassification" else 0
        if not np.allclose(ours, theirs, rtol=1e-3, atol=rows):
            raise ValueError(
                "history: expected evaluations of the same problem; the best score of its best "
                f"kernel is {theirs.min():.6g}, here it is {ours.min():.6g}"
            )

    def best(self) -> tuple[Evaluation, int]:
        """The best evaluation that can be trusted, and the place of its best `C`."""
        values = [_trusted(e) for e in self._scored]
        i = int(np.argmin([v.min() for v in values]))
        j = int(np.argmin(values[i]))
        if not np.isfinite(values[i][j]):
            raise NumericalError(
                "tuning: no kernel and C gave a cross-validation error that can be trusted in "
                f"{self.problem.dtype}; use float64 or other bounds"
            )
        return self._scored[i], j

    def _hand_over(self, error: Exception) -> None:
        """Give what was evaluated to an error that ends the search, of a callback or a stream."""
        history = [*self.history, *self.unused.values()]
        if history and not hasattr(error, "history"):
            with contextlib.suppress(AttributeError):  # of a class with slots
                error.history = history  # type: ignore[attr-defined]
                error.add_note(
                    f"jsparse: the {len(history)} evaluations done until then are in the attribute "
                    "`history` of this error"
                )

    def finish(self, search: Callable[[], None]) -> Tuning:
        """Run a search to its end, its time or Ctrl-C."""
        stopped: Literal["finished", "seconds", "interrupted"] = "finished"
        try:
            if self.known:
                self._check_history()
            search()
        except _Stop:
            stopped = "seconds"
        except KeyboardInterrupt:
            if not self.history and not self.known:
                raise
            stopped = "interrupted"
        except Exception as error:
            self._hand_over(error)
            raise
        if stopped != "finished":
            # What was not come to again is not lost.
            self.history += self.unused.values()
        best, j = self.best()
        return Tuning(
            kernel=kernel_at(self.problem, best.theta.astype(self.problem.dtype)),
            C=float(best.C[j]),
            score=float(best.scores[j]),
            standard_error=float(best.standard_errors[j]),
            theta=best.theta,
            status=int(best.status[j]),
            history=ShortList(self.history),
            stopped=stopped,
        )


def _trusted(evaluation: Evaluation) -> Float[np.ndarray, " s"]:
    # The error of a machine whose steps ran out is the error of that machine; `Tuning.status` says
    # so of the best.
    ok = (evaluation.status < PRECISION_LOST) & np.isfinite(evaluation.scores)
    return np.where(ok, evaluation.scores, np.inf)


def save_history(path: PathLike, history: list[Evaluation]) -> None:
    """Write the evaluations of a search to a file, for `load_history` and `tune` to go on from.

    Raises:
        ValueError: if there are none, or they are not of one search.
        OutputError: if the file cannot be written.
    """
    if not history or len({(e.theta.shape, e.C.shape) for e in history}) > 1:
        raise ValueError("history: expected the evaluations of one search, at least one")
    columns = dict(zip(Evaluation._fields, zip(*history, strict=True), strict=True))
    slopes = columns.pop("slope")
    arrays = {name: np.stack(column) for name, column in columns.items()}
    widest = max(slope.size for slope in slopes)
    if widest > 0:
        arrays["slope"] = np.stack([s if s.size else np.full(widest, np.nan) for s in slopes])
    save_state(path, arrays, {}, kind=_HISTORY)


def load_history(path: PathLike) -> list[Evaluation]:
    """The evaluations in a file of `save_history`.

    Raises:
        ModelFileError: if the file is damaged, cut short, or not one of `save_history`.
    """
    arrays, _ = load_state(path, kind=_HISTORY)
    found = {name: (array.dtype.kind, array.shape) for name, array in arrays.items()}
    theta, C = (found.get(name, ("", ())) for name in ("theta", "C"))
    n, s = len(arrays.get("C", ())) if C[1] else 0, C[1][-1:]
    numbers = dict.fromkeys(("C", "scores", "standard_errors"), ("f", (n, *s)))
    wanted = {**numbers, "theta": ("f", (n, *theta[1][-1:])), "status": ("i", (n, *s))}
    if "slope" in found and len(theta[1]) == 2:  # of a search by gradient
        wanted["slope"] = ("f", (n, theta[1][1] + 3))
    if n == 0 or found != {**wanted, "seconds": ("f", (n,))}:
        raise ModelFileError(
            f"{named(path)}: expected {', '.join(Evaluation._fields)} of n evaluations, n at least "
            f"1; got {shown(found)}"
        )
    if not (
        np.all(np.isfinite(arrays["theta"])) and np.all((arrays["C"] > 0) & (arrays["C"] < np.inf))
    ):
        raise ModelFileError(f"{named(path)}: expected finite theta and positive C")
    slopes = arrays.get("slope", np.zeros((n, 0)))
    columns = (arrays[name] for name in Evaluation._fields if name != "slope")
    return ShortList(
        Evaluation(*row, slope=slope[~np.isnan(slope)])
        for *row, slope in zip(*columns, slopes, strict=True)
    )


_HISTORY = "tuning history 3"  # 1 and 2 had other stop codes
