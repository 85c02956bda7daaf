"""Tune a kernel and `C` by cross-validation: run one search, or the stages of a method."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import get_args

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arguments import as_key, numbers, real
from .._repr import ShortList
from .._status import NumericalError
from .._types import Key, KeyLike
from ..machines.method import Metric
from ..machines.stages import Chosen, Outcome, Stage
from ..multiclass import Decoding
from ..validation.validate import Scoring
from .history import Evaluation, scored
from .problem import Tunable
from .run import Progress, Run, Stopped, Tuning, hand_over
from .strategies import Profile, Search, check_search

Record = Callable[[Callable[[], list[Evaluation]]], None]
"""Called for each evaluation with a function that returns all evaluations so far."""


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
        problem: the rows, method and kernel, see `tuning_problem`.
        key: random seed; the same key, problem and arguments give the same result.
        metric: the error to minimise, see `cross_validate`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        decoding: see `multiclass.distances`.
        search: `Profile`, `Annealing`, `Gradient` or `Recursive`. With a `start` the search is
            local: it begins at the kernel of `start`. A local `Profile` of one parameter moves by
            the smallest step of a search without `start`, until both neighbours of the best kernel
            are worse. For several parameters, and in a local `Annealing`, the simplex runs without
            annealing. A local `Gradient` makes gradient steps without a profile before them.
        max_seconds: time limit; no evaluation starts later, and the best result so far is returned.
        progress: called as `progress(done, planned, best_score)` for each evaluation, see
            `Progress`.

    Ctrl-C stops the search and keeps the best result so far. If an error ends the search, such as
    an error raised by `progress`, its attribute `history` holds the evaluations made so far.

    Raises:
        ValueError: for bounds or a budget out of range, or the history of another problem.
        NumericalError: if no evaluation gave an error that can be trusted.
    """
    scoring = Scoring(metric, decoding)
    grid = check_settings(scoring, C, search, max_seconds, progress)
    low, high, p = numbers("low", low), numbers("high", high), problem.template.size
    if not low.shape == high.shape == (p,) or not np.all(
        (low < high) & np.isfinite(low) & np.isfinite(high)
    ):
        raise ValueError(f"low, high: expected {p} bounds each, low < high; got {low} and {high}")
    deadline, history = time.perf_counter() + max_seconds, search.history or ()
    run = Run(problem, search, scoring, as_key(key), grid, (low, high), deadline, progress, history)
    try:
        return run.finish()
    except Exception as error:
        hand_over(error, run.done)
        raise


def tune_stages(
    stages: Generator[Stage, Outcome | None, Chosen],
    *,
    key: KeyLike,
    history: Sequence[Evaluation] | None = None,
    same_run: bool = False,
    max_seconds: float = math.inf,
    progress: Progress | None = None,
    record: Record | None = None,
) -> Chosen:
    """Run the stages in which a method is tuned, and return the outcome that the method chooses.

    All stages share one time limit, one report of progress and one history, from which a stopped
    run resumes. The history of the outcome has the evaluations of every stage.

    Ctrl-C ends the current stage with its best result so far. Later optional stages then do not
    run, and other stages have one evaluation. If an error, or Ctrl-C before the first result, ends
    the run, the exception's attribute `history` holds the evaluations of all stages.

    Args:
        stages: yields one search after another, and receives their outcomes; see `Method.stages`.
        key: random seed of every search.
        history: evaluations of a stopped run to resume.
        same_run: whether the history is known to be of a run with the same arguments and rows, so
            that no evaluation is repeated as a check.
        max_seconds: time limit of all stages together; no evaluation starts later.
        progress: called as `progress(done, planned, best_score)` for each evaluation, see
            `Progress`.
        record: called for each evaluation with a function that returns all evaluations so far.

    Raises:
        ValueError: if the history is of another problem.
        NumericalError: if a stage that is not optional gave no error that can be trusted, unless
            the caller stated the only machine; see `run.best_of`.
    """
    runs = _StageRuns(as_key(key), history or (), same_run, max_seconds, progress, record)
    outcome: Outcome | None = None
    try:
        for number in itertools.count():
            try:
                stage = stages.send(outcome)
            except StopIteration as end:
                chosen: Chosen = end.value
                break
            outcome = runs.run(stage, number)
    except BaseException as error:
        hand_over(error, runs.known_history)
        raise
    evaluations = runs.evaluations if runs.stopped == "finished" else runs.known_history
    tuning = chosen.outcome.tuning._replace(history=ShortList(evaluations), stopped=runs.stopped)
    return chosen._replace(outcome=chosen.outcome._replace(tuning=tuning))


class _StageRuns:
    """The runs of all stages: one history, one time limit and one report of progress."""

    def __init__(
        self,
        key: Key,
        history: Sequence[Evaluation],
        same_run: bool,
        seconds: float,
        progress: Progress | None,
        record: Record | None,
    ) -> None:
        self.key, self.progress, self.record, self.same_run = key, progress, record, same_run
        self.current: Run | None = None
        self.deadline = time.perf_counter() + seconds
        self.stopped: Stopped = "finished"
        self.evaluations: list[Evaluation] = []
        self.known = list(history)  # given evaluations of stages that have not run yet
        self.best = math.inf  # best score since the last stage that was not optional

    @property
    def known_history(self) -> list[Evaluation]:
        """The evaluations of all stages so far, and the given ones of later stages."""
        current = [] if self.current is None else self.current.done
        return sorted([*self.evaluations, *current, *self.known], key=lambda e: e.stage)

    def run(self, stage: Stage, number: int) -> Outcome | None:
        """Run a stage; return its outcome, or None if it is optional and was skipped or failed."""
        begin = time.perf_counter()
        if not stage.optional:
            self.best = math.inf
        elif self.stopped == "finished" and begin + stage.expected_seconds >= self.deadline:
            self.stopped = "seconds"
        if stage.optional and self.stopped != "finished":
            return None
        known = [e for e in self.known if e.stage == number]
        self.known = [e for e in self.known if e.stage != number]
        problem, search, C = stage.problem, stage.search, stage.C
        # Once a stage was stopped, a later stage that is not optional has one evaluation.
        deadline = self.deadline if self.stopped == "finished" else begin
        run = Run(
            problem, search, problem.scoring, self.key, problem.C if C is None else C,
            problem.bounds, deadline, self._report(stage),
            # A search that moves the points may move them elsewhere in this run, so the old errors
            # of moved points are not reused.
            () if search.moves_points else known, number, self.same_run,
        )  # fmt: skip
        self.current = run
        try:
            tuning = run.finish(is_stated=number == 0 and _is_stated(stage))
        except (NumericalError, KeyboardInterrupt) as error:
            if not stage.optional:
                raise
            if isinstance(error, KeyboardInterrupt):
                self.stopped = "interrupted"
            return None
        finally:
            self.current = None
            self.evaluations += run.done
            if run.has_new_evaluations:  # the known later stages followed another outcome
                self.known = []
        if self.stopped == "finished":
            self.stopped = tuning.stopped
        self.best = min(self.best, tuning.score)
        C = min(scored(run.history), key=lambda evaluation: evaluation.least).C
        return Outcome(run.problem, tuning, tuning.theta, C, time.perf_counter() - begin)

    def _report(self, stage: Stage) -> Progress:
        """Return the progress callback of a stage, which counts the evaluations of all stages."""
        count, best = len(self.evaluations), self.best

        def report(now: int, planned: int, score: float) -> None:
            if self.record is not None:
                self.record(lambda: self.known_history)
            if self.progress is not None:
                planned_now = count + planned + stage.planned_later
                self.progress(count + now, planned_now, min(score, best))

        return report


def _is_stated(stage: Stage) -> bool:
    """Return whether the caller stated kernel, `C` and size, if this is the only stage."""
    problem, C = stage.problem, stage.problem.C if stage.C is None else stage.C
    has_choice = problem.template.size > 0 or len(C) > 1 or problem.method.fit_sizes
    return not (has_choice or stage.planned_later)


def check_settings(
    scoring: Scoring,
    C: ArrayLike,
    search: Search,
    max_seconds: float,
    progress: Progress | None,
) -> Float[np.ndarray, " s"]:
    """Return `C` as an array; raise a `ValueError` for settings of `tune` out of range."""
    for name, values in (("metric", get_args(Metric)), ("decoding", get_args(Decoding))):
        if (value := getattr(scoring, name)) not in values:
            raise ValueError(f"{name}: expected one of {values}, got {value!r}")
    check_search(search)
    grid = np.atleast_1d(numbers("C", C))
    if grid.ndim != 1 or grid.size == 0 or not np.all(np.isfinite(grid) & (grid > 0)):
        raise ValueError(f"C: expected a positive number, or several, got {C}")
    search.check_C(grid)
    real("max_seconds", max_seconds, 0.0, finite=False)
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function or None, got {progress!r}")
    history, start = search.history or [], search.start
    if not (isinstance(history, Sequence) and all(isinstance(e, Evaluation) for e in history)):
        raise ValueError(
            f"history: expected a list of evaluations or None, got {type(search.history).__name__}"
        )
    if start is not None and not isinstance(start, Tuning):
        raise ValueError(f"start: expected what `tune` returns or None, got {start!r}")
    return grid
