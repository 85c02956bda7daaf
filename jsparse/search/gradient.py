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
from ..validation.error_gradient import FoldErrors, Parts, held_out_error
from .descent import Batches, descend, worth_scoring
from .metric import MetricSearch, scored_profile
from .strategies import LINE_EVALUATIONS, Evaluator, Profile, Search, line_rounds
from .template import Template

# Margins of log lengthscales beyond the bounds of the profile. The upper margin is large because
# the lengthscale of an irrelevant column must be able to grow to thousands.
LOWER_MARGIN, UPPER_MARGIN = np.log(10.0), np.log(100.0)
ROWS_FOR_A_COLUMN = 100  # with this many rows per column, the steps recognise noise columns
WORSE = 1.25  # a score this many times the best shows that a relevant column was eliminated
STEPS = 60  # default number of evaluations of the gradient
PROTOTYPE_RATE = 0.1  # length of the first steps, in standard deviations of the columns
FEWEST_ROWS = 100  # with fewer rows, the error on the validation split is too uncertain


@dataclasses.dataclass(frozen=True, repr=False)
class Gradient(MetricSearch):
    """A search that learns a metric: it varies every positive leaf of the kernel by gradient steps.

    First a profile varies one factor common to all leaves, as `Profile` varies one lengthscale.
    From the best kernels of the profile, Adam then minimises the squared error on held-out folds
    over the leaves and `C`. For classification this is the squared error of the one-versus-rest
    values. The last kernel and the kernel of least validation error are then scored in the metric.
    The result is the best of all scored kernels, so it is never worse than the best kernel of the
    profile.

    A gradient costs hardly more than the error, see `validation.error_gradient.held_out_error`.
    Whatever the method, the machine whose error is differentiated has at most `prototypes`
    prototypes and at most `rows` rows. Two things prevent overfitting when there are many columns:
    a Cauchy prior that pulls the logs of the lengthscales towards their mean, and early stopping on
    a validation split of a sixth of the rows.

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
        starts: number of descents; they start from the best kernels of the profile.
        prototypes: upper limit of the prototypes of the machine whose error is differentiated.
        rows: upper limit of the rows of a step. From a larger table, each step draws a new sample.
        prior_strength: 0 for no prior; 1 for a Cauchy prior of scale 1 on the natural log.
        patience: stop when the validation error has not fallen for this many evaluations.
        learning_rate: length of the first steps, in logs of lengthscales; it falls to zero.
        elimination: eliminate columns if fewer than 100 rows for each column are in memory and
            there is no `start`.
        move_prototypes: after the kernel, tune the prototypes of a `FixedSize` of one size by as
            many steps on the gradient of the same error. The moved prototypes are used if their
            score is better. For machines of few prototypes.
        max_evaluations: budget of gradient evaluations for all starts together, and again for each
            elimination; 60 by default. The evaluations of the profile, and two for each start, come
            in addition.
    """

    starts: int = 1
    prototypes: int = 500
    rows: int = 6144
    prior_strength: float = 1.0
    patience: int = 30
    learning_rate: float = 0.15
    elimination: bool = True
    move_prototypes: bool = False

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        for name, least in (("starts", 1), ("prototypes", 1), ("rows", 12), ("patience", 1)):
            whole_number(name, getattr(self, name), least)
        real("prior_strength", self.prior_strength, 0.0)
        real("learning_rate", self.learning_rate, 0.0, above=True)
        for name in ("elimination", "move_prototypes"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")

    def check_method(self, method: Method) -> None:
        """See `Search.check_method`: the prototypes of some methods cannot be moved."""
        if self.move_prototypes:
            method.check_movable()

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        if p == 0:
            return [1]
        line = [1] if self.start is not None else line_rounds(LINE_EVALUATIONS)
        return [*line, *[1] * ((self.max_evaluations or STEPS) + 2 * self.starts)]

    def planned(self, template: Template, n_rows: int) -> int:
        """See `Search.planned`."""
        again = LINE_EVALUATIONS + (self.max_evaluations or STEPS) + 2
        return sum(self.batch_sizes(template.size)) + again * len(
            self.columns_left(template, n_rows)
        )

    def columns_left(self, template: Template, n_rows: int) -> list[int]:
        """Return the number of columns after each elimination.

        Each number is three quarters of the previous one, down to two. The list is empty if there
        are enough rows, or for a local search.
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
        """Return the search that moves the prototypes of a tuned machine by gradient steps.

        Args:
            tuning: the `Tuning` of the machine.
        """
        return PrototypeDescent(settings=self, tuning=tuning)


@dataclasses.dataclass(frozen=True, repr=False)
class Automatic(Search):
    """The search of `search="auto"`: `Gradient` for 100 rows or more on one device, else `Profile`.

    Fewer than 100 rows are too few for a validation split, and `Gradient` does not run on a mesh.
    If gradient steps do not reduce the error, early stopping ends them soon.
    """

    def resolve(self, n_rows: int, *, on_mesh: bool) -> Search:
        """See `Search.resolve`."""
        if on_mesh or n_rows < FEWEST_ROWS:
            return Profile(**vars(self))
        return Gradient(**vars(self), patience=15)

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`; the sizes are for 100 rows or more."""
        return self.resolve(FEWEST_ROWS, on_mesh=False).batch_sizes(p)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        self.resolve(run.problem.rows_scored, on_mesh=False).run(run)


class _Descents:
    """The run of a `Gradient` search: a profile, descents from its best kernels, and their scores.

    Profile, descents and scores are repeated with fewer columns, as `Gradient.columns_left` says,
    until the score is `WORSE` times the best. The lengthscale of an eliminated column is fixed at
    its upper bound.
    """

    def __init__(self, search: Gradient, run: Evaluator) -> None:
        self.search, self.evaluator = search, run
        template, problem = run.template, run.problem
        self.middle, self.signed = template.theta.astype(float), template.signed
        self.batches = Batches(
            run.key, *problem.source.rows_in_memory(), points=problem.points, rows=search.rows,
            prototypes=search.prototypes,
        )  # fmt: skip
        ends = np.log([run.grid.min(), run.grid.max()])
        self.lowest = np.append(run.low - LOWER_MARGIN, ends[0])
        self.highest = np.append(run.high + UPPER_MARGIN, ends[1])
        matrix = np.flatnonzero(self.signed)
        widest = 10 * np.abs(self.middle[matrix]).max(initial=1.0)
        self.lowest[matrix], self.highest[matrix] = -widest, widest

    def run(self) -> None:
        """Descend with all columns, then with fewer and fewer."""
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
            ends = [end for begin in begins for end in self._descend(begin, low, budget)]
            if not ends:
                return  # no step was taken, so nothing ranks the columns
            lower, theta = min(ends, key=lambda end: end[0])
            score = min(score, lower)
            best = min(best, score)
            if not score <= WORSE * best:
                return

    def _descend(
        self, begin: np.ndarray, low: np.ndarray, budget: int
    ) -> list[tuple[float, np.ndarray]]:
        """Return the score and theta of each kernel that a descent found worth scoring.

        If no kernel is worth scoring, return the step of least validation error with an infinite
        score. If no step changed theta, return an empty list.
        """
        run, trail = self.evaluator, []
        stop: BaseException | None = None
        try:
            descend(run, self.batches, begin, low, self.highest, self.search, budget, trail)
        except (KeyboardInterrupt, *run.stops) as error:  # score the best steps before stopping
            stop = error
        scored = [(run.scores(kernel[None])[0], kernel) for kernel in worth_scoring(trail)]
        if stop is not None:
            raise stop
        if scored:
            return scored
        moved = [step for step in trail if not np.array_equal(step[0], trail[0][0])]
        return [(np.inf, min(moved, key=lambda step: step[1])[0])] if moved else []

    def _begin(self, excluded: np.ndarray) -> tuple[list[np.ndarray], float]:
        """Return the initial points of the descents (theta and log C), and the least score.

        Args:
            excluded: indices in theta of the lengthscales of eliminated columns.
        """
        search, run = self.search, self.evaluator
        if search.start is not None and len(excluded) == 0:
            theta = np.asarray(search.start.theta, float)
            score = run.scores(theta[None])[0]
            return [np.append(theta, np.log(search.start.C))], score
        held = np.full(run.template.size, np.nan)
        held[excluded] = self.highest[excluded]
        best = scored_profile(run, held)[: 1 if len(excluded) else search.starts]
        return [np.append(theta, np.log(run.best_C(theta))) for _, theta in best], best[0][0]


@dataclasses.dataclass(frozen=True, repr=False)
class PrototypeDescent(Search):
    """A search that moves the prototypes by Adam on the cross-validated squared error.

    The kernel is fixed. A sixth of the rows is the validation split. The prototypes of least
    validation error, perhaps the initial prototypes, are scored with every `C`.
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
        """Return the prototypes of least validation error."""
        problem, settings, kernel = run.problem, self.settings, self.tuning.kernel
        Z = best = problem.points
        batches = Batches(
            jax.random.fold_in(run.key, 2), *problem.source.rows_in_memory(), points=Z,
            rows=settings.rows, prototypes=len(Z),
        )  # fmt: skip
        C, parts = np.asarray(self.tuning.C, run.dtype), batches.at(0)
        init, move = _adam()
        state = init(Z)
        least, steps_without_improvement = np.inf, 0
        steps = settings.max_evaluations or STEPS
        for i in range(steps + 1):
            gradient, errors = _prototype_gradient(kernel, Z, C, parts)
            steps_without_improvement += 1
            if (validation_error := float(errors.validation)) < least:
                least, steps_without_improvement, best = validation_error, 0, Z
            out_of_time = time.perf_counter() > run.deadline
            if steps_without_improvement >= settings.patience or i == steps or out_of_time:
                break
            rate = np.asarray(PROTOTYPE_RATE * (1 + np.cos(np.pi * i / steps)) / 2, run.dtype)
            Z, state = move(Z, gradient, state, rate)
            if batches.resampled:
                parts = batches.at(i + 1)
        return best


@compiled
def _prototype_gradient(
    kernel: Kernel, Z: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, "m d"], FoldErrors]:
    """Return the gradient of the error in the prototypes, 0 where not finite, and the errors."""
    gradient, errors = jax.grad(held_out_error, argnums=1, has_aux=True)(kernel, Z, C, parts)
    return jnp.where(jnp.isfinite(gradient), gradient, 0), errors


@functools.cache
def _adam() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled functions that give Adam's initial state, and that move the prototypes."""
    import optax  # imported late, as it is slow to import and rarely needed

    adam = optax.scale_by_adam()

    def move(
        Z: Float[Array, "m d"], gradient: Float[Array, "m d"], state: Any, rate: Float[Array, ""]
    ) -> tuple[Float[Array, "m d"], Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            step, state = cast(Any, adam.update(gradient, state))
        return Z - rate * step, state

    return compiled(adam.init), compiled(move)
