"""Tuning a kernel and `C` by cross-validation: one search, or the stages of a method."""

import itertools
import math
import time
from collections.abc import Generator, Sequence
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
from .history import Evaluation
from .problem import Problem, Tunable
from .run import Progress, Run, Stopped, Tuning, hand_over
from .strategies import Profile, Search, check_search


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
        max_seconds: no evaluation starts later; the best until then is returned.
        progress: called as `progress(done, planned, best_score)`.

    Ctrl-C stops the search and keeps the best so far. An error within it, such as one of
    `progress`, comes out as it is, with the evaluations done until then as its attribute `history`.

    Raises:
        ValueError: if the bounds or the budget make no sense, or the history is of another problem.
        NumericalError: if no evaluation gave an error that can be trusted.
    """
    scoring = Scoring(metric, decoding)
    grid = check_settings(scoring, C, search, max_seconds, progress)
    low, high, p = numbers("low", low), numbers("high", high), problem.template.size
    if not low.shape == high.shape == (p,) or not np.all(
        (low < high) & np.isfinite(low) & np.isfinite(high)
    ):
        raise ValueError(f"low, high: expected {p} bounds each, low < high; got {low} and {high}")
    run = Run(
        problem, search, scoring, as_key(key), grid, (low, high), max_seconds, progress,
        search.history or (),
    )  # fmt: skip
    return run.finish()


def tune_stages(
    stages: Generator[Stage, Outcome | None, Chosen],
    *,
    key: KeyLike,
    history: Sequence[Evaluation] | None = None,
    max_seconds: float = math.inf,
    progress: Progress | None = None,
) -> Chosen:
    """Run the stages in which a method is tuned, and return the outcome that it keeps.

    All stages share one time limit, one report of progress and one history, by which a stopped run
    goes on: the evaluations of the outcome's tuning are those of every stage.

    Args:
        stages: from `Method.stages`.
        key: decides the searches.
        history: evaluations of a stopped run with the same arguments.
        max_seconds: no evaluation starts later.
        progress: called as `progress(done, planned, best_score)`.

    Ctrl-C ends the stage; its best so far counts, and optional stages after it are left out.

    Raises:
        ValueError: if the history is of another problem.
        NumericalError: if a stage that is not optional found no error that can be trusted.
    """
    begin, key = time.perf_counter(), as_key(key)
    evaluations: list[Evaluation] = []
    known = list(history or ())
    stopped: Stopped = "finished"
    outcome: Outcome | None = None
    for number in itertools.count():
        try:
            stage = next(stages) if number == 0 else stages.send(outcome)
        except StopIteration as end:
            chosen = end.value
            break
        began, outcome = time.perf_counter(), None
        left = max_seconds - (began - begin)
        if stage.optional and stopped == "finished" and left <= stage.expected_seconds:
            stopped = "seconds"
        if stage.optional and stopped != "finished":
            continue
        try:
            run = _run_of(stage, number, key, left, progress, known, len(evaluations))
            tuning = run.finish()
        except NumericalError:
            if not stage.optional:
                raise
            continue
        except KeyboardInterrupt as error:
            if not stage.optional:
                error.history = evaluations  # type: ignore[attr-defined]
                raise
            stopped = "interrupted"
            continue
        except Exception as error:
            hand_over(error, [*evaluations, *run.done])
            raise
        evaluations += tuning.history
        if stopped == "finished":
            stopped = tuning.stopped
        spent = time.perf_counter() - began
        outcome = Outcome(run.problem, tuning, tuning.theta, run.grid, spent)
    history = ShortList(evaluations)
    tuning = chosen.outcome.tuning._replace(history=history, stopped=stopped)
    return chosen._replace(outcome=chosen.outcome._replace(tuning=tuning))


def _run_of(
    stage: Stage,
    number: int,
    key: Key,
    seconds: float,
    progress: Progress | None,
    known: Sequence[Evaluation],
    done: int,
) -> Run:
    problem: Problem = stage.problem
    C = problem.C if stage.C is None else stage.C
    run = Run(
        problem, stage.search, problem.scoring, key, C, problem.bounds, max(0.0, seconds), None,
        [e for e in known if e.stage == number], number,
    )  # fmt: skip
    if progress is not None:
        later = done + stage.planned_later
        run.progress = lambda now, planned, best: progress(done + now, later + planned, best)
    return run


def check_settings(
    scoring: Scoring,
    C: ArrayLike,
    search: Search,
    max_seconds: float,
    progress: Progress | None,
) -> Float[np.ndarray, " s"]:
    """Return the values of `C`; raise a `ValueError` for settings of `tune` that make no sense."""
    for name, known in (("metric", get_args(Metric)), ("decoding", get_args(Decoding))):
        value = getattr(scoring, name)
        if value not in known:
            raise ValueError(f"{name}: expected one of {known}, got {value!r}")
    check_search(search)
    grid = numbers("C", C)
    if grid.ndim != 1 or grid.size == 0 or not np.all(np.isfinite(grid) & (grid > 0)):
        raise ValueError(f"C: expected a vector of positive numbers, got {C}")
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
