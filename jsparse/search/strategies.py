"""Searches without gradients: line searches, simulated annealing and the simplex."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .._arguments import check_flags, whole_number
from .._numerics import as_array, epsilon
from .._repr import short_repr
from .._status import RUNNING
from .._types import Key
from ..machines.method import Method
from . import annealing, downhill, simplex
from .race import RULE, RULE_OF_WALKS, Rule
from .template import Template

LINE_EVALUATIONS = 10
ANNEALING_EVALUATIONS = 160
RESCALING_EVALUATIONS = 5
NEARBY_EVALUATIONS = 20
SAME_KERNEL = 0.02  # kernels count as one if no element of theta differs by more: 2 per cent
COARSE_C = 12  # a grid of `C` with twice as many values is first searched with twice the step


@runtime_checkable
class Evaluator(Protocol):
    """The interface through which a search evaluates kernels, see `search.run.Run`."""

    problem: Any  # `search.problem.Problem`, or another `Tunable`
    template: Template  # the kernel whose leaves are tuned
    dtype: jnp.dtype  # of the computations
    key: Key  # PRNG key of the search
    grid: Float[np.ndarray, " s"]  # values of `C`
    low: Float[np.ndarray, " p"]  # lower bounds of theta
    high: Float[np.ndarray, " p"]  # upper bounds of theta
    planned: int  # upper limit of the number of evaluations
    deadline: float  # time limit, in seconds of `time.perf_counter`
    stops: tuple[type[BaseException], ...]  # exceptions that are raised when the time is up

    def scores(self, thetas: np.ndarray, C: np.ndarray | None = None) -> Float[np.ndarray, " q"]:
        """Score and record `q` kernels; return the best trusted score of each.

        `thetas` are points of the template, shape `q p`. `C` has the values for each kernel, shape
        `q s`; None for the grid.
        """
        ...

    def best_C(self, theta: np.ndarray) -> float:
        """Return the `C` with the best score of a kernel that `scores` has recorded."""
        ...

    def slope(self, theta: np.ndarray, C: float, evaluate: Callable[[], Any]) -> Any:
        """Return and record the `descent.Slope` at a point, from the history or by `evaluate()`."""
        ...


@dataclasses.dataclass(frozen=True, repr=False)
class Search(abc.ABC):
    """A search over kernels, with the settings that all searches share.

    Args:
        max_evaluations: budget; None for the default of the search. If a method is tuned in several
            stages, as `Robust` is, the later stages have their default budgets.
        tune_kernel: False to fix the kernel and tune `C` only.
        history: evaluations of a stopped search (`Tuning.history`, or `load_history` of a file).
            With the same arguments the search resumes where it stopped, and gives the same result
            as without the stop. As a check, the best evaluation of each stage is computed again.
        start: the `Tuning` of a similar problem, such as the fit to yesterday's data. The search
            is then local, with this warm start.
    """

    # Settings of `Gradient`, with their values in all other searches.
    per_column: ClassVar[bool] = False
    rank: ClassVar[int | None] = None
    move_prototypes: ClassVar[bool] = False
    # Which machines skip the folds after the first ones, see `search.race`. Their scores are then
    # estimates. None if every machine is validated on all folds.
    race: ClassVar[Rule | None] = None
    # Whether a search on a sample of the rows, and another near its result, may replace it.
    near_a_sample: ClassVar[bool] = False
    scores_grid: ClassVar[bool] = True  # whether each kernel is scored with all values of `C`
    moves_points: ClassVar[bool] = False  # whether the search replaces the problem's points
    runs_on_mesh: ClassVar[bool] = True  # whether the rows may be spread over several devices

    max_evaluations: int | None = None
    tune_kernel: bool = True
    history: Sequence[Any] | None = None
    start: Any = None

    __repr__ = short_repr

    @property
    def varied(self) -> dict[str, bool]:
        """The keyword arguments of `template.split_kernel` that select the leaves to tune."""
        return {"tune_kernel": self.tune_kernel}

    def check(self) -> None:
        """Raise a `ValueError` for settings out of range."""
        check_flags(self)
        if self.max_evaluations is not None:
            whole_number("max_evaluations", self.max_evaluations, 1)

    def check_method(self, method: Method) -> None:
        """Raise a `ValueError` for a method that the search cannot tune; by default all pass."""
        return

    def check_C(self, grid: Float[np.ndarray, " s"]) -> None:
        """Raise a `ValueError` for values of `C` that the search cannot use; by default none."""
        return

    def resolve(self, n_rows: int, *, on_mesh: bool) -> "Search":
        """Return the search to run for `n_rows` rows, on one device or on a mesh."""
        return self

    @abc.abstractmethod
    def batch_sizes(self, p: int) -> list[int]:
        """Return, for each round, the largest number of kernels that it evaluates together.

        `p` is the number of tuned parameters of the kernel.
        """

    def planned(self, problem: Any) -> int:
        """Return the largest number of evaluations for a problem, a `search.problem.Tunable`."""
        return sum(self.batch_sizes(problem.template.size))

    @abc.abstractmethod
    def run(self, run: Evaluator) -> None:
        """Evaluate kernels until the budget is spent; the evaluator records them."""

    def why_alone(self, p: int, dtype: jnp.dtype) -> str | None:
        """Return why `train_many` trains problems one after another; None if a batch is possible.

        `p` is the number of tuned parameters of the kernel.
        """
        return f"a batch needs the search Profile, not {type(self).__name__}"

    def without_rank(self) -> "Search":
        """Return the search without `rank`, for a kernel that already has its matrix."""
        return self

    def of_C_alone(self, tuning: Any = None) -> "Search":
        """Return the search for `C` with a fixed kernel: the kernel of a `Tuning`, if given."""
        return Profile(tune_kernel=False, start=tuning)

    def nearby(self, tuning: Any) -> "Search":
        """Return the search near the best kernel and `C` of a cheaper problem's `Tuning`."""
        return Nearby(tune_kernel=self.tune_kernel, start=tuning)

    def rescaling(self, signs: tuple[int, ...] = (-1, 1)) -> "Search":
        """Return the search for one common factor of all leaves of a tuned kernel.

        `signs` tells whether factors below 1 (-1), above 1 (1), both in turn, or none are tried.
        """
        return Rescaling(signs=signs)


@dataclasses.dataclass(frozen=True, repr=False)
class Profile(Search):
    """A search over kernels that scores each kernel with its best `C`.

    Once a kernel's folds are decomposed, every further `C` costs little, so each evaluation takes a
    kernel and the whole vector `C`. For one parameter, six tenths of the evaluations are on an even
    grid over its range; the others halve the intervals around the best point. The default is 10
    evaluations. For several parameters, annealing and the simplex search the kernel, as in
    `Annealing`, by default with 160 evaluations.

    On a CPU, a method that takes a fit for each fold, such as `SCDP` or `KSP`, is searched by a
    race: machines that are clearly worse on the first folds skip the remaining folds. Their scores
    in `Tuning.history` are estimates, and the errors of the skipped folds are NaN. `FixedSize` does
    so with folds of over 1,000 rows.

    With many rows, `FixedSize` first compares kernels by machines of a part of the rows, and `Dual`
    by machines of a sample.
    """

    race: ClassVar[Rule | None] = RULE
    near_a_sample: ClassVar[bool] = True

    def why_alone(self, p: int, dtype: jnp.dtype) -> str | None:
        """See `Search.why_alone`."""
        if p > 1:
            return "a batch needs a kernel with one lengthscale, or tune_kernel=False"
        if self.start is not None or self.history:
            return "a batch needs a search without start and history"
        # The pairs of points halve the intervals, down to steps that rounding must not lose.
        coarse, *rounds = line_rounds(self.max_evaluations or LINE_EVALUATIONS)
        if p and not 0.5 ** sum(rounds) / max(1, coarse - 1) > 8 * epsilon(dtype):
            return f"a batch needs fewer evaluations in {dtype}"
        return None

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        if p == 0 or not self.tune_kernel:
            return [1]
        if p == 1:
            return line_rounds(self.max_evaluations or LINE_EVALUATIONS)
        return annealing_rounds(self.max_evaluations or ANNEALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        p, low, high = run.template.size, run.low, run.high
        start = None if self.start is None else self.start.theta
        if p == 0 or not self.tune_kernel:
            run.scores((run.template.theta if start is None else start)[None])
        elif p > 1:
            annealing_search(run, low, high, start, run.scores)
        elif start is None:
            line_search(low[0], high[0], run.planned, run.dtype, run.scores)
        else:
            begin = np.clip(start, low, high)
            local_line_search(low[0], high[0], begin, run.planned, run.scores)


@dataclasses.dataclass(frozen=True, repr=False)
class Annealing(Search):
    """Coupled simulated annealing, then the simplex (De Brabanter 2010, Sections 6.3 and 8.2).

    The search is over kernel and `C` together. Annealing with five members has 90 of every 160
    evaluations, and the simplex from the best point of the annealing has 70. The default is 160
    evaluations. Of the values of `C`, only the least and the largest matter: they bound the search.
    """

    scores_grid: ClassVar[bool] = False

    def check_C(self, grid: Float[np.ndarray, " s"]) -> None:
        """Raise a `ValueError` unless the grid of `C` has two different values."""
        if not grid.min() < grid.max():
            raise ValueError(
                f"C: expected a range for Annealing, at least two different values, got {grid}"
            )

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        return annealing_rounds(self.max_evaluations or ANNEALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`; the last element of a point is `log C`."""
        low = np.append(run.low, np.log(run.grid.min()))
        high = np.append(run.high, np.log(run.grid.max()))

        def scores(points: np.ndarray) -> np.ndarray:
            return run.scores(points[:, :-1], np.exp(points[:, -1:]))

        start = self.start
        begin = None if start is None else np.append(start.theta, np.log(start.C))
        annealing_search(run, low, high, begin, scores)


@dataclasses.dataclass(frozen=True, repr=False)
class Nearby(Search):
    """A search near the best kernel and `C` of a cheaper problem, one `C` at a time.

    The cheaper problem has another method, or fewer rows. The search begins with the better of two
    kernels: the best one of the cheaper problem, and the initial one. It moves along the values of
    `C` in the grid, then by the common factor `ratio` of all leaves of the kernel, then along `C`
    again, each as long as the score falls. Last come smaller steps of `C`, and the root of `ratio`.
    `downhill.Walk` says which points it tries. The default is at most 20 evaluations. On a CPU, if
    a method takes a fit for each fold, a machine that is worse on the first folds skips the
    remaining folds, as in `Profile`.
    """

    race: ClassVar[Rule | None] = RULE_OF_WALKS

    ratio: float = 1.65

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        return [1] * (self.max_evaluations or NEARBY_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        grid, template = np.sort(run.grid), run.template
        # The kernel that suits the cheaper method may be useless for this one: a relevance vector
        # machine with a nearly linear kernel is constant. So the initial kernel is tried as well.
        kernels = [self.start.theta] if template.size else [np.zeros(0)]
        if template.size and not np.allclose(self.start.theta, template.theta, atol=1e-3):
            kernels.append(template.theta)
        direction = np.where(template.signed, 0, np.log(self.ratio) / 2) if template.size else 0.0
        thetas: list[Float[np.ndarray, " p"]] = []  # the kernels so far
        errors: dict[tuple[int, int], float] = {}  # by index in `thetas` and index of `C`

        def error(point: downhill.Point) -> float:
            start, C_index, factor = point
            theta = np.clip(kernels[start] + factor * direction, run.low, run.high)
            if not 0 <= C_index < len(grid) or (factor and np.array_equal(theta, kernels[start])):
                return np.inf
            # At a bound several factors give one kernel, and the initial kernel is often one step
            # away from the cheaper problem's kernel.
            same = [np.allclose(theta, other, rtol=0, atol=SAME_KERNEL) for other in thetas]
            if not any(same):
                thetas.append(theta)
                same.append(True)
            machine = same.index(True), C_index
            if machine not in errors and len(errors) < run.planned:
                theta = thetas[machine[0]]
                errors[machine] = float(run.scores(theta[None], grid[None, [C_index]])[0])
            return errors.get(machine, np.inf)

        nearest_C = int(np.argmin(np.abs(np.log(grid / self.start.C))))
        # The surrogate's kernel comes first, as it is the result if time is up.
        point = min(((kernel, nearest_C, 0) for kernel in range(len(kernels))), key=error)
        stride = 1 << max(len(grid) // COARSE_C, 1).bit_length() - 1  # a power of two
        # A smaller `C` has a better conditioned system, so start there if no error can be trusted.
        while not np.isfinite(error(point)) and point[1] > 0 and len(errors) < run.planned:
            point = point[0], max(point[1] - stride, 0), 0
        of_C, of_kernel = 1, 2  # the axes of a point
        halves = [(of_C, stride >> halvings) for halvings in range(1, stride.bit_length())]
        steps = [(of_C, stride), (of_kernel, 2), (of_C, stride), *halves, (of_kernel, 1)]
        downhill.Walk(error).descend(point, steps)


@dataclasses.dataclass(frozen=True, repr=False)
class Rescaling(Search):
    """A search for a common factor of all leaves of a kernel tuned for a cheaper machine.

    A kernel that suits few prototypes is too smooth for many. The factor starts at 1 and is divided
    by `ratio` as long as the score falls; if it never falls, the factor is multiplied by `ratio`
    instead. `signs` may state another order, one direction, or none for only the factor 1. Each
    factor is scored with its best `C`. The default is 5 evaluations.
    """

    ratio: float = 1.4
    signs: tuple[int, ...] = (-1, 1)  # signs of the log of the factor, in the order of trial

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        is_fixed = p == 0 or not self.signs
        return [1] * (1 if is_fixed else self.max_evaluations or RESCALING_EVALUATIONS)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        middle = run.template.theta.astype(float)
        best, evaluations_left = run.scores(middle[None])[0], run.planned - 1
        for step in np.log(self.ratio) * np.asarray(self.signs):
            improved, log_factor = False, step
            while evaluations_left > 0 and middle.size > 0:
                score = run.scores((middle + log_factor)[None])[0]
                evaluations_left -= 1
                if not score < best:
                    break
                best, improved, log_factor = score, True, log_factor + step
            if improved:
                return


def check_search(search: Any) -> None:
    """Raise a `ValueError` unless `search` is a `Search` with valid settings."""
    if not isinstance(search, Search):
        raise ValueError(
            "search: expected 'auto', Profile(..), Gradient(..), Recursive(..) or Annealing(..), "
            f"got {search!r}"
        )
    search.check()


Objective = Callable[[np.ndarray], np.ndarray]
"""Maps points, shape `q p`, to their scores, shape `q`."""


def line_rounds(budget: int) -> list[int]:
    """Return the number of points in each round of `line_search`: an even grid, then pairs."""
    coarse = min(budget, max(2, round(0.6 * budget)))
    rest = budget - coarse
    return [coarse, *[2] * (rest // 2), *[1] * (rest % 2)]


def middle_first(count: int) -> Int[np.ndarray, " e"]:
    """Return the indices of an even grid of `count` points, the nearest to its middle first.

    The best point is rarely at an end, and a race is short if it begins with a good point.
    """
    return np.argsort(np.abs(np.arange(count) - (count - 1) / 2), kind="stable")


def annealing_rounds(budget: int) -> list[int]:
    """Return the number of evaluations in each round of `annealing_search`.

    A round of the annealing has one evaluation for each member of the ensemble. The later rounds
    are steps of the simplex, with one evaluation each.
    """
    members = min(5, budget)
    annealed = max(members, round(budget * 90 / 160)) // members
    return [members] * annealed + [1] * (budget - members * annealed)


def line_search(low: float, high: float, planned: int, dtype: jnp.dtype, scores: Objective) -> None:
    """Evaluate at most `planned` points: an even grid, then halve the intervals at the best one."""
    coarse = line_rounds(planned)[0]
    points = np.linspace(low, high, coarse) if coarse > 1 else np.array([(low + high) / 2])
    points = points[middle_first(coarse)]
    values = scores(points[:, None])
    width = (high - low) / max(1, coarse - 1)
    # Stop when the step is lost in the rounding of the device's dtype.
    while len(points) < planned and width > 8 * epsilon(dtype) * (high - low):
        width /= 2
        best = points[np.argmin(values)]
        new = np.array([t for t in (best - width, best + width) if low <= t <= high])
        new = new[: planned - len(points)]
        points, values = np.append(points, new), np.append(values, scores(new[:, None]))


def local_line_search(
    low: float, high: float, start: Float[np.ndarray, "1"], planned: int, scores: Objective
) -> None:
    """Move downhill from `start` by the smallest step of `line_search`.

    End when both neighbours of the best point are evaluated, or after `planned` evaluations.
    """
    coarse, *halvings = line_rounds(planned)
    width = (high - low) / max(1, coarse - 1) / 2 ** len(halvings)
    points, values, new = np.zeros(0), np.zeros(0), start
    while len(new) > 0:
        points, values = np.append(points, new), np.append(values, scores(new[:, None]))
        best = points[np.argmin(values)]
        neighbours = np.array([t for t in (best - width, best + width) if low <= t <= high])
        is_new = np.abs(neighbours[:, None] - points[None]).min(axis=1) > width / 2
        new = neighbours[is_new][: planned - len(points)]


def annealing_search(
    run: Evaluator, low: np.ndarray, high: np.ndarray, start: np.ndarray | None, scores: Objective
) -> None:
    """Spend 90 of every 160 evaluations on annealing, then 70 on the simplex from the best point.

    With a start, run only the simplex from the start, with 70 of every 160 evaluations.
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


def _run_to_end(algorithm: ModuleType, state: Any, scores: Objective) -> Any:
    """Run annealing or the simplex with `scores` as the objective; return the last state."""
    while int(state.status) == RUNNING:
        probes = algorithm.ask(state)
        values = scores(np.atleast_2d(np.asarray(probes))).reshape(probes.shape[:-1])
        state = algorithm.tell(state, probes, as_array(values, probes.dtype))
    return state
