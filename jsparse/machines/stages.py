"""Tuning stages: a method yields one search after the other, and chooses among the outcomes."""

import dataclasses
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._repr import short_repr


class Stage(NamedTuple):
    """One search of a method's tuning, see `Stages`."""

    problem: Any  # `search.problem.Problem`: method, rows and points
    search: Any  # `search.strategies.Search`
    C: Float[np.ndarray, " s"] | None = None  # values of `C` to try; None for `problem.C`
    optional: bool = False  # whether tuning goes on if the stage fails or time is too short for it
    expected_seconds: float = 0.0  # an optional stage is skipped if less time is left
    planned_later: int = 0  # evaluations planned for later stages, for the progress report

    __repr__ = short_repr


class Outcome(NamedTuple):
    """The result of a stage."""

    problem: Any  # the stage's problem, with the points to which the search has moved them
    tuning: Any  # `search.run.Tuning`: the best hyper-parameters and their score
    theta: Float[np.ndarray, " p"]  # the stage's best kernel as a point, see `search.template`
    C: Float[np.ndarray, " s"]  # the values of `C` that were validated together with the best one
    seconds: float = 0.0  # how long the stage took

    __repr__ = short_repr

    def with_theta(self, theta: Float[np.ndarray, " p"]) -> "Outcome":
        """Return the outcome with `tuning.theta`, the kernel's point, taken from another search."""
        return self._replace(tuning=self.tuning._replace(theta=theta))


class Chosen(NamedTuple):
    """The outcome that a method keeps; with several sizes, also the outcome of each size."""

    outcome: Outcome
    sizes: tuple[int, ...] = ()  # the sizes that were tuned, increasing; empty for a single size
    outcomes: tuple[Outcome, ...] = ()  # the outcome of each of the `sizes`
    place: int = 0  # index of `outcome` in `outcomes`
    moved: bool = False  # whether the search moved the points

    __repr__ = short_repr


Stages = Generator[Stage, Outcome | None, Chosen]
"""A generator that yields stages, receives their outcomes, and returns the outcome to keep.

The outcome of an optional stage is None if the stage failed or was skipped.
"""


def single_stage(problem: Any, search: Any, C: Float[np.ndarray, " s"] | None = None) -> Stages:
    """Yield one stage, and return its outcome."""
    outcome = yield Stage(problem, search, C)
    assert outcome is not None
    return Chosen(outcome)


def better_by(first: Outcome, second: Outcome, standard_errors: float) -> bool:
    """Return whether the second score is lower by more than `standard_errors` of the first score.

    An unknown standard error counts as 0.
    """
    margin = standard_errors * np.nan_to_num(first.tuning.standard_error)
    return bool(second.tuning.score < first.tuning.score - margin)


def better_on_folds(first: Outcome, second: Outcome, standard_errors: float) -> bool:
    """Return whether the second score is lower by more than a margin, by paired differences.

    The margin is `standard_errors` times the standard error of the mean difference of both errors
    on the folds. A fold of hard rows is hard for both machines, so this standard error is far
    smaller than the standard error of one score. With only one fold the margin is 0. Both outcomes
    are evaluated once more.
    """
    gains = _fold_errors(first) - _fold_errors(second)
    gains = gains[~np.isnan(gains)]  # a fold without weight has no error
    spread = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(second.tuning.score < first.tuning.score - standard_errors * spread)


def _fold_errors(outcome: Outcome) -> Float[np.ndarray, " v"]:
    """Return the error of each fold, with the outcome's kernel and `C`."""
    problem, dtype = outcome.problem, outcome.problem.dtype
    theta, C = outcome.theta.astype(dtype), np.asarray([outcome.tuning.C], dtype)
    (validation,) = problem.errors(theta[None], C[None], problem.scoring)
    return np.asarray(validation.fold_scores, float)[0, :, 0]


def smallest_within(
    errors: Float[np.ndarray, " k"], standard_errors: Float[np.ndarray, " k"], tolerance: float
) -> int:
    """Return the first index whose error is within `tolerance` standard errors of the smallest.

    A tolerance of 0 takes the smallest error (De Brabanter 2010, Section 5); 1 is the
    one-standard-error rule (Breiman et al. 1984). An unknown standard error counts as 0.
    """
    best = int(np.argmin(errors))
    spread = np.nan_to_num(standard_errors[best], posinf=0.0)
    return int(np.argmax(errors <= errors[best] + tolerance * spread))


GROWTH = 4.0  # factor of a stage's seconds when the number of prototypes doubles
# Sizes up to this fraction of the largest are tuned over the whole range. As the time grows with
# the square or cube of the size, ten kernels for them take less time than one for the largest size.
WHOLE_RANGE = 0.25
# Tuning goes on if the last size is better than the previous size by this many standard errors.
FLAT = 0.1


def size_stages(
    sizes: tuple[int, ...], tolerance: float, stop_when_flat: bool, problem: Any, search: Any
) -> Stages:
    """Tune machines of several sizes, and choose one (De Brabanter 2010, Section 5).

    The smallest size, and every size up to a quarter of the largest, is tuned over the whole range.
    Each larger size is tuned by a local search from the best kernel of the previous size, as the
    best kernel changes little.

    Args:
        sizes: numbers of prototypes, increasing.
        tolerance: chooses the size, see `smallest_within`.
        stop_when_flat: stop once a size is not better than the previous size by a tenth of a
            standard error, or once the next size would take longer than the time left.
        problem: the tuning problem, with the points of all sizes.
        search: the user's search.
    """
    planned = search.planned(problem)
    outcomes: list[Outcome] = []
    for place, size in enumerate(sizes):
        if stop_when_flat and place > 1 and not better_by(outcomes[-2], outcomes[-1], FLAT):
            break
        size_search, expected = search, 0.0
        if outcomes and size > WHOLE_RANGE * sizes[-1]:
            size_search = dataclasses.replace(search, start=outcomes[-1].tuning)
        if outcomes and stop_when_flat:
            expected = GROWTH * outcomes[-1].seconds
        size_problem = problem.at_size(size)
        outcome = yield from stages_within(
            size_problem.method.stages_of_one_size(size_problem, size_search),
            optional=bool(outcomes),
            expected_seconds=expected,
            planned_later=(len(sizes) - place - 1) * planned,
        )
        if outcome is None:
            break
        outcomes.append(outcome)
    errors = np.array([outcome.tuning.score for outcome in outcomes])
    standard_errors = np.array([outcome.tuning.standard_error for outcome in outcomes])
    place = smallest_within(errors, standard_errors, tolerance)
    return Chosen(outcomes[place], sizes[: len(outcomes)], tuple(outcomes), place)


def stages_within(
    stages: Stages,
    *,
    planned_later: int,
    optional: bool = False,
    expected_seconds: float = 0.0,
) -> Generator[Stage, Outcome | None, Outcome | None]:
    """Run the stages of a part of the tuning, such as one of several sizes.

    Return their outcome, with their total seconds; None if a stage that is required within the part
    failed or was skipped. Other arguments are fields of `Stage`, which every stage gets.
    """
    seconds, outcome = 0.0, None
    while True:
        try:
            stage = stages.send(outcome)
        except StopIteration as end:
            return end.value.outcome._replace(seconds=seconds)
        outcome = yield stage._replace(
            optional=optional or stage.optional,
            expected_seconds=max(stage.expected_seconds, expected_seconds),
            planned_later=stage.planned_later + planned_later,
        )
        if outcome is None and not stage.optional:
            return None
        seconds += 0.0 if outcome is None else outcome.seconds


def surrogate_stages(surrogate: Any, problem: Any, search: Any) -> Stages:
    """Tune the kernel for a cheaper method, then `C` for the problem's method.

    `surrogate` is the tuning problem of the cheaper method. If the user fixed the kernel, its stage
    is skipped.
    """
    if not search.tune_kernel:
        return (yield from single_stage(problem, search))
    first = yield Stage(surrogate, search, surrogate.method.default_C, planned_later=1)
    assert first is not None
    last = yield Stage(problem.with_kernel(first.tuning.kernel), search.of_C_alone())
    assert last is not None
    return Chosen(last.with_theta(first.tuning.theta))


def nearby_stages(
    surrogate: Any,
    problem: Any,
    search: Any,
    *,
    refine_kernel: bool = False,
) -> Stages:
    """Tune kernel and `C` for a cheaper problem, then few values near them for the problem itself.

    This suits problems where one `C` takes far less time than several.

    Args:
        surrogate: the cheaper tuning problem, of another method. If the user fixed the kernel and
            `C`, its stage is skipped.
        problem: the tuning problem.
        search: the user's search.
        refine_kernel: whether the second stage also tries kernels near the surrogate's best one.
    """
    if not search.tune_kernel and len(problem.C) == 1:
        return (yield from single_stage(problem, search))
    later = search.nearby(None).planned(problem)
    first = yield Stage(surrogate, search, surrogate.method.default_C, planned_later=later)
    assert first is not None
    if refine_kernel:
        return (yield from single_stage(problem, search.nearby(first.tuning)))
    fixed = problem.with_kernel(first.tuning.kernel)
    last = yield Stage(fixed, search.nearby(first.tuning._replace(theta=np.zeros(0))))
    assert last is not None
    return Chosen(last.with_theta(first.tuning.theta))
