"""The stages in which a method is tuned: each is one search, and the method says what follows."""

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._repr import short_repr


class Stage(NamedTuple):
    """One search.

    A method yields its stages one after the other, knowing how the earlier ones ended: the method,
    not the loop that runs the stages, says which result stays.
    """

    problem: Any  # `search.problem.Problem`: what is fitted, to which rows, from which points
    search: Any  # `search.strategies.Search`
    C: Float[np.ndarray, " s"] | None = None  # values of `C`; None for those that were asked for
    optional: bool = False  # whether the result so far stands if this stage fails or has no time
    expected_seconds: float = 0.0  # an optional stage is not begun if less time is left
    planned_later: int = 0  # evaluations that are known to come in later stages

    __repr__ = short_repr


class Outcome(NamedTuple):
    """The result of a stage."""

    problem: Any  # of the stage, or with the points that its search moved
    tuning: Any  # `search.run.Tuning`
    theta: Float[np.ndarray, " p"]  # the best point of the stage's own search
    C: Float[np.ndarray, " s"]  # the values of `C` that it looked at
    seconds: float = 0.0

    __repr__ = short_repr

    def with_theta(self, theta: Float[np.ndarray, " p"]) -> "Outcome":
        """Return the outcome with the point of another search as the tuned one."""
        return self._replace(tuning=self.tuning._replace(theta=theta))


class Chosen(NamedTuple):
    """The outcome that is kept."""

    outcome: Outcome
    sizes: tuple[Outcome, ...] = ()  # of every size that was tuned by itself, increasing
    place: int = 0  # of the outcome among them
    moved: bool = False  # whether the points are no longer those that were chosen

    __repr__ = short_repr


def better_by(first: Outcome, second: Outcome, standard_errors: float) -> bool:
    """Whether the second score is lower by so many standard errors of the first."""
    margin = standard_errors * np.nan_to_num(first.tuning.standard_error)
    return bool(second.tuning.score < first.tuning.score - margin)


def smallest_within(
    errors: Float[np.ndarray, " k"], standard_errors: Float[np.ndarray, " k"], tolerance: float
) -> int:
    """Return the first place whose error exceeds the least by at most `tolerance` standard errors.

    0 takes the least error (De Brabanter 2010, Section 5), 1 is the one-standard-error rule
    (Breiman et al. 1984).
    """
    best = int(np.argmin(errors))
    return int(np.argmax(errors <= errors[best] + tolerance * standard_errors[best]))


GROWTH = 4.0  # of the seconds from one number of prototypes to its double
# Sizes up to this part of the largest are tuned over the whole range: at the cube (square) of the
# size, ten kernels for them cost less than one for the largest.
WHOLE_RANGE = 0.25
FLAT = 0.1  # standard errors by which a larger machine must be better for a next one to be tried


def size_stages(
    sizes: tuple[int, ...], tolerance: float, stop_when_flat: bool, problem: Any, search: Any
) -> Generator[Stage, Outcome | None, Chosen]:
    """Tune machines of several sizes, and choose one (De Brabanter 2010, Section 5).

    Each size has the first of the problem's points. The smallest size, and all up to a quarter of
    the largest, are tuned over the whole range; each further one by a local search from the best
    kernel of the one before, which moves little from one to the next. The size is chosen by
    `smallest_within`. With `stop_when_flat` the sizes end where one is no better than the one
    before, by a tenth of its standard error, or would take longer than is left.
    """
    planned = search.planned(problem.template, problem.rows_scored)
    outcomes: list[Outcome] = []
    for place, size in enumerate(sizes):
        if stop_when_flat and place > 1 and not better_by(outcomes[-2], outcomes[-1], FLAT):
            break
        of_size, expected = search, 0.0
        if outcomes and size > WHOLE_RANGE * sizes[-1]:
            of_size = search.started_from(outcomes[-1].tuning)
        if outcomes and stop_when_flat:
            expected = GROWTH * outcomes[-1].seconds
        outcome = yield Stage(
            problem.with_first_points(size), of_size, optional=bool(outcomes),
            expected_seconds=expected,
            planned_later=(len(sizes) - place - 1) * planned,
        )  # fmt: skip
        if outcome is None:
            break
        outcomes.append(outcome)
    errors = np.array([outcome.tuning.score for outcome in outcomes])
    standard_errors = np.array([outcome.tuning.standard_error for outcome in outcomes])
    place = smallest_within(errors, standard_errors, tolerance)
    return Chosen(outcomes[place], tuple(outcomes), place)


def surrogate_stages(
    surrogate: Any, problem: Any, search: Any, *, points_only: bool = False
) -> Generator[Stage, Outcome | None, Chosen]:
    """Tune the kernel for a cheaper method, the surrogate, then `C` for the problem's own method.

    With `points_only` the surrogate is fitted to the rows that are points alone, and each of them
    carries it.
    """
    if not search.tune_kernel:
        outcome = yield Stage(problem, search)
        assert outcome is not None
        return Chosen(outcome)
    easier = problem.on_its_points() if points_only else problem
    first = yield Stage(easier.with_method(surrogate), search, surrogate.default_C, planned_later=1)
    assert first is not None
    last = yield Stage(problem.with_kernel(first.tuning.kernel), search.of_C_alone())
    assert last is not None
    return Chosen(last.with_theta(first.tuning.theta))
