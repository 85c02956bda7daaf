"""Gradient searches: over the metric of a kernel, and over the prototypes."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import real, whole_number
from .._programs import compiled
from ..kernels import Kernel
from ..machines.method import Method
from ..validation.error_gradient import Parts, held_out_error
from .descent import FEWEST_ROWS, STEPS, decay, descend, folds_and_prototypes
from .metric import MetricSearch, scored_profile
from .strategies import LINE_EVALUATIONS, Evaluator, Profile, Search, line_rounds
from .template import Template

# Margins of log lengthscales beyond the bounds of the profile. The upper margin is large because
# the lengthscale of an irrelevant column must be able to grow to thousands.
LOWER_MARGIN, UPPER_MARGIN = np.log(10.0), np.log(100.0)
ROWS_FOR_A_COLUMN = 100  # with this many rows per column, the steps recognise noise columns
WORSE = 1.25  # a score this many times the best shows that a relevant column was eliminated
# A descent starts from lengthscales of more than `LONG` times the template's only if their score is
# below half the score of all shorter ones. With long lengthscales the machine is nearly linear, and
# small steps do not show the effect of short lengthscales of a few columns.
LONG, PENALTY = 2.0, 2.0
PROTOTYPE_RATE = 0.1  # length of the first steps, in standard deviations of the columns
ROWS_FOR_GRADIENT = 100  # with fewer rows, the cross-validated error is too uncertain
FEW = 50  # a machine with at most this many prototypes gets a preliminary descent
PRELIMINARY = 100  # prototypes of the machine of a preliminary descent


@dataclasses.dataclass(frozen=True, repr=False)
class Gradient(MetricSearch):
    """A search that learns a metric: it varies every positive leaf of the kernel by gradient steps.

    First a profile varies one factor common to all leaves, as `Profile` varies one lengthscale.
    From the best kernel of the profile whose lengthscales are not too long, Adam then minimises the
    squared error on five folds of the rows, over the leaves and `C`. For classification this is the
    squared error of the one-versus-rest values. The best kernel of each descent is then scored in
    the metric. The result is the best of all scored kernels, so it is never worse than the best
    kernel of the profile.

    A machine of at most 50 prototypes has one more start: the metric that a preliminary descent
    learns for a machine of 100 rows as prototypes. With few prototypes and one lengthscale the
    error is high whatever the columns, and its gradient may lead to a poor local minimum.

    A gradient costs hardly more than the error, see `validation.error_gradient.held_out_error`.
    Whatever the method, the machine whose error is differentiated has at most `prototypes`
    prototypes and at most `rows` rows. A Cauchy prior pulls the logs of the lengthscales towards
    their mean, which prevents overfitting when there are many columns. No rows are held back for
    early stopping, because outliers among few rows would decide when to stop.

    With fewer than 100 rows for each column, overfitting remains. Then recursive feature
    elimination (Guyon et al. 2002) repeats profile and steps, each time without the least
    relevant quarter of the columns, until the score is a quarter above the best.

    Args:
        per_column: if the kernel is given by name, it has one lengthscale for each column. A kernel
            object keeps its leaves.
        rank: if the kernel is given by name, replace the lengthscales by a matrix with this many
            rows, at most the number of columns: a linear metric (`kernels.Projected`). A full
            matrix is initialised to the identity, a smaller one to the directions in which a
            machine with one lengthscale varies most. The profile does not vary the matrix, and the
            prior pulls it towards its initial value. The matrices of a kernel object are always
            tuned. Without `tune_kernel`, `rank` has no effect.
        starts: number of descents; they start from different kernels of the profile.
        prototypes: upper limit of the prototypes of the machine whose error is differentiated.
        rows: upper limit of the rows on which the error is differentiated. A larger table is
            sampled.
        prior_strength: 0 for no prior; 1 for a Cauchy prior of scale 1 on the natural log.
        patience: stop when the error has not fallen for this many evaluations.
        learning_rate: length of the steps, in logs of lengthscales; over the last 40 % of the steps
            it falls to zero.
        elimination: eliminate columns if fewer than 100 rows for each column are in memory and
            there is no `start`.
        move_prototypes: after the kernel, tune the prototypes of a `FixedSize` of one size by as
            many steps on the gradient of the same error. The moved prototypes are used if their
            score is better. For machines of few prototypes.
        max_evaluations: budget of gradient evaluations for all starts together, and again for the
            preliminary descent and for each elimination; 45 by default. The descent from the
            preliminary result may take as many as the descent from one start. With fewer
            evaluations the steps are longer. The profile and the scores come in addition.
    """

    starts: int = 1
    prototypes: int = 500
    rows: int = 6144
    prior_strength: float = 1.0
    patience: int = 30
    learning_rate: float = 0.3
    elimination: bool = True
    move_prototypes: bool = False

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        for name in ("starts", "prototypes", "patience"):
            whole_number(name, getattr(self, name), 1)
        whole_number("rows", self.rows, FEWEST_ROWS)
        real("prior_strength", self.prior_strength, 0.0)
        real("learning_rate", self.learning_rate, 0.0, above=True)

    def check_method(self, method: Method) -> None:
        """See `Search.check_method`: the prototypes of some methods cannot be moved."""
        if self.move_prototypes:
            method.check_movable()

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        if p == 0:
            return [1]
        line = [1] if self.start is not None else line_rounds(LINE_EVALUATIONS)
        return [*line, *[1] * ((self.max_evaluations or STEPS) + self.starts)]

    def planned(self, problem: Any) -> int:
        """See `Search.planned`."""
        steps = self.max_evaluations or STEPS
        eliminations = len(self.columns_left(problem.template, problem.rows_scored))
        again = eliminations * (LINE_EVALUATIONS + steps + 1)
        if self.has_preliminary_descent(problem.points):
            again += 2 * (steps + self.starts)
        return super().planned(problem) + again

    def has_preliminary_descent(self, points: Float[Array, "m d"] | None) -> bool:
        """Return whether a descent with more prototypes gives one more start.

        It does for a machine with at most `FEW` prototypes `points`, but not in a local search, or
        if all rows are prototypes (None).
        """
        return self.start is None and points is not None and len(points) <= FEW

    def columns_left(self, template: Template, n_rows: int) -> list[int]:
        """Return the number of columns after each elimination.

        Each number is three quarters of the previous one, down to two. No column is eliminated if
        `elimination` is False, in a local search, or with at least 100 rows for each column.
        """
        columns, numbers = len(template.lengthscales), []
        if self.elimination and self.start is None and n_rows < ROWS_FOR_A_COLUMN * columns:
            while columns > 2:
                columns = max(2, round(0.75 * columns))
                numbers.append(columns)
        return numbers

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        if run.template.size == 0:
            run.scores(np.zeros((1, 0)))
        else:
            _Descents(self, run).run()

    def descent_of_prototypes(self, tuning: Any) -> Search:
        """Return the search that moves the prototypes of a machine with this `Tuning`."""
        return PrototypeDescent(settings=self, tuning=tuning)


@dataclasses.dataclass(frozen=True, repr=False)
class Automatic(Search):
    """The search of `search="auto"`: `Gradient` for 100 rows or more on one device, else `Profile`.

    On fewer than 100 rows many lengthscales overfit, and `Gradient` does not run on a mesh. If
    gradient steps do not reduce the error, `patience` ends them soon.
    """

    def resolve(self, n_rows: int, *, on_mesh: bool) -> Search:
        """See `Search.resolve`."""
        if on_mesh or n_rows < ROWS_FOR_GRADIENT:
            return Profile(**vars(self))
        return Gradient(**vars(self), patience=15)

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`; the sizes are for 100 rows or more."""
        return self.resolve(ROWS_FOR_GRADIENT, on_mesh=False).batch_sizes(p)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        self.resolve(run.problem.rows_scored, on_mesh=False).run(run)


class _Descents:
    """The run of a `Gradient` search: a profile, descents from its best kernels, and their scores.

    It is repeated with fewer columns (`Gradient.columns_left`), as long as the score is at most
    `WORSE` times the best. The lengthscale of an eliminated column is fixed at its upper bound.
    """

    def __init__(self, search: Gradient, run: Evaluator) -> None:
        self.search, self.evaluator = search, run
        template, problem = run.template, run.problem
        self.middle, self.signed = template.theta.astype(float), template.signed
        self.parts, self.points = self._parts_and_prototypes(problem.points, search.prototypes)
        ends = np.log([run.grid.min(), run.grid.max()])
        self.lowest = np.append(run.low - LOWER_MARGIN, ends[0])
        self.highest = np.append(run.high + UPPER_MARGIN, ends[1])
        matrix = np.flatnonzero(self.signed)
        widest = 10 * np.abs(self.middle[matrix]).max(initial=1.0)
        self.lowest[matrix], self.highest[matrix] = -widest, widest

    def run(self) -> None:
        """Run profile and descents with all columns, then with fewer and fewer columns."""
        search, run = self.search, self.evaluator
        steps, columns = search.max_evaluations or STEPS, run.template.lengthscales
        active, theta, best = np.arange(len(columns)), self.middle, np.inf
        fewer = search.columns_left(run.template, run.problem.rows_scored)
        for k in [len(columns), *fewer]:
            shortest = theta[columns].min(axis=1, initial=np.inf)
            active = active[np.argsort(shortest[active], kind="stable")[:k]]
            low, excluded = self.lowest.copy(), np.delete(columns, active, axis=0).reshape(-1)
            low[excluded] = self.highest[excluded]
            begins, score = self._begin(excluded)
            budget = max(1, steps // len(begins))
            if len(excluded) == 0 and search.has_preliminary_descent(run.problem.points):
                begins = [*begins, self._preliminary_end(begins[0], steps)]
            ends = [self._descend(begin, low, budget, self.parts, self.points) for begin in begins]
            descent_score, theta = min(ends, key=lambda end: end[0])
            if not np.isfinite(descent_score):
                return  # no step lowered the error, so nothing ranks the columns
            score = min(score, descent_score)
            best = min(best, score)
            if not score <= WORSE * best:
                return

    def _parts_and_prototypes(
        self, points: Float[Array, "k d"] | None, prototypes: int
    ) -> tuple[Parts, Float[Array, "m d"]]:
        """Return random rows in five folds, and prototypes; see `folds_and_prototypes`."""
        run, rows = self.evaluator, self.evaluator.problem.source.rows_in_memory()
        return folds_and_prototypes(
            run.key, *rows, points=points, rows=self.search.rows, prototypes=prototypes
        )

    def _preliminary_end(self, begin: np.ndarray, budget: int) -> np.ndarray:
        """Return the best theta and log `C` of a descent with `PRELIMINARY` rows as prototypes.

        If no step lowers the error, return the initial point `begin`.
        """
        parts, points = self._parts_and_prototypes(None, PRELIMINARY)
        score, theta = self._descend(begin, self.lowest, budget, parts, points)
        if not np.isfinite(score):
            return begin
        return np.append(theta, np.log(self.evaluator.best_C(theta)))

    def _descend(
        self,
        begin: np.ndarray,
        low: np.ndarray,
        budget: int,
        parts: Parts,
        points: Float[Array, "m d"],
    ) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the score and theta of the best kernel of a descent of `budget` evaluations.

        If no step is better than the first kernel, the score is infinite. `begin` and the lower
        bounds `low` end with log C; `parts` are the rows and `points` the prototypes.
        """
        run, trail, score = self.evaluator, [], np.inf
        stop: BaseException | None = None
        try:
            descend(run, parts, points, begin, low, self.highest, self.search, budget, trail)
        except (KeyboardInterrupt, *run.stops) as error:  # score the best step before stopping
            stop = error
        theta, _ = min(trail, key=lambda step: step[1], default=(begin[:-1], np.inf))
        if trail and not np.array_equal(theta, trail[0][0]):  # the first kernel has its score
            score = run.scores(theta[None])[0]
        if stop is not None:
            raise stop
        return score, theta

    def _begin(self, excluded: np.ndarray) -> tuple[list[np.ndarray], float]:
        """Return the initial points of the descents (theta and log C), and the least score so far.

        `excluded` are the indices in theta of the lengthscales of eliminated columns. The points
        are the best of a profile, or the `start` of a local search.
        """
        search, run = self.search, self.evaluator
        if search.start is not None and len(excluded) == 0:
            theta = np.asarray(search.start.theta, float)
            score = run.scores(theta[None])[0]
            return [np.append(theta, np.log(search.start.C))], score
        fixed = np.full(run.template.size, np.nan)
        fixed[excluded] = self.highest[excluded]
        profile = scored_profile(run, fixed)
        free = ~self.signed & np.isnan(fixed)

        def penalised(pair: tuple[float, np.ndarray]) -> float:
            is_long = np.any((pair[1] - self.middle)[free] > np.log(LONG))
            return pair[0] * (PENALTY if is_long else 1.0)

        starts = sorted(profile, key=penalised)[: 1 if len(excluded) else search.starts]
        begins = [np.append(theta, np.log(run.best_C(theta))) for _, theta in starts]
        return begins, profile[0][0]


@dataclasses.dataclass(frozen=True, repr=False)
class PrototypeDescent(Search):
    """A search that moves the prototypes by Adam on the cross-validated squared error.

    The kernel is fixed. The prototypes of least error, which may be the initial ones, are scored
    with every `C`.
    """

    moves_points: ClassVar[bool] = True

    settings: Any = None  # the `Gradient` that tuned the kernel; gives rows, patience and budget
    tuning: Any = None  # the `Tuning` that this `Gradient` returned

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        return [1]

    def run(self, run: Evaluator) -> None:
        """See `Search.run`: replaces the points of the problem."""
        points = self._moved(run)
        run.problem = dataclasses.replace(run.problem, points=points, point_rows=None)
        run.scores(np.zeros((1, 0)))

    def _moved(self, run: Evaluator) -> Float[Array, "m d"]:
        """Return the prototypes with the least cross-validated squared error of all steps."""
        problem, settings, kernel = run.problem, self.settings, self.tuning.kernel
        parts, Z = folds_and_prototypes(
            jax.random.fold_in(run.key, 2), *problem.source.rows_in_memory(),
            points=problem.points, rows=settings.rows, prototypes=len(problem.points),
        )  # fmt: skip
        C, best = np.asarray(self.tuning.C, run.dtype), Z
        init, move = _adam()
        state = init(Z)
        least, steps_without_improvement = np.inf, 0
        steps = settings.max_evaluations or STEPS
        for i in range(steps + 1):
            error, gradient = _error_and_gradient(kernel, Z, C, parts)
            steps_without_improvement += 1
            if float(error) < least:
                least, steps_without_improvement, best = float(error), 0, Z
            out_of_time = time.perf_counter() > run.deadline
            if steps_without_improvement >= settings.patience or i == steps or out_of_time:
                break
            rate = np.asarray(PROTOTYPE_RATE * decay(i / steps), run.dtype)
            Z, state = move(Z, gradient, state, rate)
        return best


@compiled
def _error_and_gradient(
    kernel: Kernel, Z: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, ""], Float[Array, "m d"]]:
    """Return the cross-validated squared error and its gradient in `Z`, 0 where not finite."""
    error, gradient = jax.value_and_grad(held_out_error, argnums=1)(kernel, Z, C, parts)
    return error, jnp.where(jnp.isfinite(gradient), gradient, 0)


@functools.cache
def _adam() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled functions: one gives Adam's initial state, one moves prototypes a step."""
    import optax  # imported late, as it is slow to import and rarely needed

    adam = optax.scale_by_adam()

    def move(
        Z: Float[Array, "m d"], gradient: Float[Array, "m d"], state: Any, rate: Float[Array, ""]
    ) -> tuple[Float[Array, "m d"], Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            step, state = cast(Any, adam.update(gradient, state))
        return Z - rate * step, state

    return compiled(adam.init), compiled(move)
