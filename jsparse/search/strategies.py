"""Searches without gradients: along a line, by annealing and by the simplex."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._arguments import whole_number
from .._numerics import as_array, epsilon
from .._repr import short_repr
from .._status import RUNNING
from .._types import Key
from . import annealing, simplex
from .template import Template

LINE_EVALUATIONS = 10
ANNEALING_EVALUATIONS = 160
RESCALING_EVALUATIONS = 5


@runtime_checkable
class Evaluator(Protocol):
    """What a search asks of the loop that runs it."""

    problem: Any  # `search.problem.Problem`, or another `Tunable`
    template: Template
    dtype: jnp.dtype
    key: Key
    grid: Float[np.ndarray, " s"]  # values of `C`
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    planned: int  # evaluations
    deadline: float  # of `time.perf_counter`
    stops: tuple[type[BaseException], ...]  # raised when the time is up

    def scores(self, thetas: np.ndarray, C: np.ndarray | None = None) -> Float[np.ndarray, " q"]:
        """Return the best score of each kernel over its row of `C`, or over the grid; recorded."""
        ...

    def best_C(self, theta: np.ndarray) -> float:
        """Return the `C` of the best score of a kernel that was scored."""
        ...

    def slope(self, theta: np.ndarray, C: float, evaluate: Callable[[], Any]) -> Any:
        """Return the `descent.Slope` of `evaluate()`, recorded or as it is known."""
        ...


@dataclasses.dataclass(frozen=True, repr=False)
class Search(abc.ABC):
    """The settings that every search has.

    Args:
        max_evaluations: budget; None for the default of the search.
        tune_kernel: False to take the kernel as it is and tune `C` only.
        history: evaluations of a stopped search (`Tuning.history`, or `load_history` of a file).
            With the same arguments the search resumes where it stopped, with the same result as
            without the stop. The best evaluation of each stage is checked against a new one.
        start: the outcome of a search for a similar problem, such as yesterday's rows: a warm start
            of a local search.
    """

    # What some searches vary, see `Gradient`.
    per_column: ClassVar[bool] = False
    rank: ClassVar[int | None] = None
    move_prototypes: ClassVar[bool] = False
    moves_points: ClassVar[bool] = False  # whether a run evaluates the problem at other points
    runs_on_mesh: ClassVar[bool] = True

    max_evaluations: int | None = None
    tune_kernel: bool = True
    history: Sequence[Any] | None = None
    start: Any = None

    __repr__ = short_repr

    @property
    def varied(self) -> dict[str, bool]:
        """The leaves of a kernel that it varies, as arguments of `template.split_kernel`."""
        return {"tune_kernel": self.tune_kernel}

    def check(self) -> None:
        """Raise unless the budget is a whole number."""
        if self.max_evaluations is not None:
            whole_number("max_evaluations", self.max_evaluations, 1)

    def check_C(self, grid: Float[np.ndarray, " s"]) -> None:
        """Raise a `ValueError` for values of `C` that the search cannot use."""
        return

    def resolve(self, n_rows: int, *, on_mesh: bool) -> "Search":
        """Return the search for so many rows, on one device or on the devices of a mesh."""
        return self

    @abc.abstractmethod
    def rounds(self, p: int) -> list[int]:
        """Return the most kernels of `p` parameters that it asks for, round by round."""

    def planned(self, template: Template, n_rows: int) -> int:
        """Return the most evaluations, for errors that are means over so many rows."""
        return sum(self.rounds(template.size))

    @abc.abstractmethod
    def run(self, run: Evaluator) -> None:
        """Ask for the scores of kernels until the budget is spent; `run` keeps the best."""

    def without_rank(self) -> "Search":
        """Return the search of a kernel that has its matrix already."""
        return self

    def started_from(self, tuning: Any) -> "Search":
        """Return the local search from the outcome of another."""
        return dataclasses.replace(self, start=tuning)

    def of_C_alone(self) -> "Search":
        """Return the search for `C` with the kernel as it is."""
        return Profile(tune_kernel=False)

    def rescaling(self) -> "Search":
        """Return the search for one common factor of a kernel that was tuned."""
        return Rescaling()


@dataclasses.dataclass(frozen=True, repr=False)
class Profile(Search):
    """A search over the kernel, each with the best of all `C`.

    Once a kernel's folds are decomposed every `C` is nearly free, so each evaluation takes a kernel
    and the whole vector `C`. One parameter: six tenths of the evaluations on an even grid over its
    range, the others between the best and its neighbours, halving; 10 evaluations by default.
    Several: as `Annealing`, 160 evaluations.
    """

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        if p == 0:
            return [1]
        if p == 1:
            return line_rounds(self.max_evaluations or LINE_EVALUATIONS)
        return annealing_rounds(self.max_evaluations or ANNEALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        p, low, high = run.template.size, run.low, run.high
        start = None if self.start is None else self.start.theta
        if p == 0:
            run.scores(np.zeros((1, 0)))
        elif p > 1:
            annealing_search(run, low, high, start, run.scores)
        elif start is None:
            line_search(low[0], high[0], run.planned, run.dtype, run.scores)
        else:
            begin = np.clip(start, low, high)
            local_line_search(low[0], high[0], begin, run.planned, run.scores)


@dataclasses.dataclass(frozen=True, repr=False)
class Annealing(Search):
    """The search of De Brabanter 2010, Sections 6.3 and 8.2.

    90 parts of the evaluations by coupled simulated annealing with five members over kernel and `C`
    together, 70 parts by the simplex from its best point; 160 evaluations by default. Of the vector
    `C` only the range counts.
    """

    def check_C(self, grid: Float[np.ndarray, " s"]) -> None:
        """See `Search.check_C`."""
        if not grid.min() < grid.max():
            raise ValueError(
                f"C: expected a range for Annealing, at least two different values, got {grid}"
            )

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        return annealing_rounds(self.max_evaluations or ANNEALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`; of a point the last element is the log of `C`."""
        low = np.append(run.low, np.log(run.grid.min()))
        high = np.append(run.high, np.log(run.grid.max()))

        def scores(points: np.ndarray) -> np.ndarray:
            return run.scores(points[:, :-1], np.exp(points[:, -1:]))

        start = self.start
        begin = None if start is None else np.append(start.theta, np.log(start.C))
        annealing_search(run, low, high, begin, scores)


@dataclasses.dataclass(frozen=True, repr=False)
class Rescaling(Search):
    """A search for a common factor on all leaves of a kernel tuned for a smaller machine.

    A kernel for few prototypes is too smooth for many. From the factor 1 down, then up, by steps of
    `ratio`, as long as the score falls; each with all `C`. 5 evaluations by default.
    """

    ratio: float = 1.4

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        return [1] * (1 if p == 0 else self.max_evaluations or RESCALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        middle = run.template.theta.astype(float)
        best, left = run.scores(middle[None])[0], run.planned - 1
        for step in (-np.log(self.ratio), np.log(self.ratio)):
            improved, place = False, step
            while left > 0 and middle.size > 0:
                score, left = run.scores((middle + place)[None])[0], left - 1
                if not score < best:
                    break
                best, improved, place = score, True, place + step
            if improved:
                return


def check_search(search: Any) -> None:
    """Raise a `ValueError` unless it is a search, with settings that make sense."""
    if not isinstance(search, Search):
        raise ValueError(
            f"search: expected 'auto', Profile(..), Annealing(..) or Gradient(..), got {search!r}"
        )
    search.check()


Scores = Callable[[np.ndarray], np.ndarray]
"""From points, shape `q p`, to their values, shape `q`."""


def line_rounds(budget: int) -> list[int]:
    """Return the rounds of `line_search`: an even grid, then pairs of points."""
    coarse = min(budget, max(2, round(0.6 * budget)))
    rest = budget - coarse
    return [coarse, *[2] * (rest // 2), *[1] * (rest % 2)]


def annealing_rounds(budget: int) -> list[int]:
    """Return the rounds of `annealing_search`: all members at once, then one point at a time."""
    members = min(5, budget)
    annealed = max(members, round(budget * 90 / 160)) // members
    return [members] * annealed + [1] * (budget - members * annealed)


def line_search(low: float, high: float, planned: int, dtype: jnp.dtype, scores: Scores) -> None:
    """Evaluate an even grid, then points between the best and its neighbours."""
    coarse = line_rounds(planned)[0]
    points = np.linspace(low, high, coarse) if coarse > 1 else np.array([(low + high) / 2])
    values = scores(points[:, None])
    width = (high - low) / max(1, coarse - 1)
    # As long as halving makes a difference to the device.
    while len(points) < planned and width > 8 * epsilon(dtype) * (high - low):
        width /= 2
        best = points[np.argmin(values)]
        new = np.array([t for t in (best - width, best + width) if low <= t <= high])
        new = new[: planned - len(points)]
        points, values = np.append(points, new), np.append(values, scores(new[:, None]))


def local_line_search(
    low: float, high: float, start: Float[np.ndarray, "1"], planned: int, scores: Scores
) -> None:
    """Step by the last width of `line_search` until the best point lies between two others."""
    coarse, *halvings = line_rounds(planned)
    width = (high - low) / max(1, coarse - 1) / 2 ** len(halvings)
    points, values, new = np.zeros(0), np.zeros(0), start
    while len(new) > 0:
        points, values = np.append(points, new), np.append(values, scores(new[:, None]))
        best = points[np.argmin(values)]
        beside = np.array([t for t in (best - width, best + width) if low <= t <= high])
        unknown = np.abs(beside[:, None] - points[None]).min(axis=1) > width / 2
        new = beside[unknown][: planned - len(points)]


def annealing_search(
    run: Evaluator, low: np.ndarray, high: np.ndarray, start: np.ndarray | None, scores: Scores
) -> None:
    """Spend 90 parts of the budget on annealing, 70 on the simplex from its best point.

    With a start, the simplex alone, with its 70 parts.
    """
    lows, highs = as_array(low, run.dtype), as_array(high, run.dtype)
    if start is None:
        members = min(5, run.planned)
        budget = max(members, round(run.planned * 90 / 160))
        state = annealing.init(run.key, lows, highs, members=members, max_evaluations=budget)
        state = _run_to_end(annealing, state, scores)
        begin, value = state.best_theta, state.best_value
        budget = run.planned - int(state.evaluations)
        if budget == 0 or not np.isfinite(float(value)):
            return
    else:
        begin, value = as_array(np.clip(start, low, high), run.dtype), None
        budget = max(1, round(run.planned * 70 / 160))
    state = simplex.init(begin, lows, highs, value0=value, max_evaluations=budget)
    _run_to_end(simplex, state, scores)


def _run_to_end(algorithm: ModuleType, state: Any, scores: Scores) -> Any:
    """Run annealing or the simplex with values from the host; return the last state."""
    while int(state.status) == RUNNING:
        probes = algorithm.ask(state)
        values = scores(np.atleast_2d(np.asarray(probes))).reshape(probes.shape[:-1])
        state = algorithm.tell(state, probes, as_array(values, probes.dtype))
    return state
