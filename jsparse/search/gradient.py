"""Searches by gradient: a learned metric, and prototypes that move."""

import dataclasses
import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import real, whole_number
from .._programs import compiled
from ..kernels import Kernel
from ..validation.error_gradient import FoldErrors, Parts, held_out_error
from .descent import Batches, descend, worth_scoring
from .strategies import LINE_EVALUATIONS, Evaluator, Profile, Search, line_rounds, line_search
from .template import Template

# Beyond the box of the profile: a column that is to be left out has a lengthscale of thousands.
NARROWER, WIDER = np.log(10.0), np.log(100.0)
ROWS_FOR_A_COLUMN = 100  # as many are enough to tell that a column is noise
WORSE = 1.25  # with a score so many times the best, columns were left out that count
STEPS = 60
PROTOTYPE_RATE = 0.1  # length of the first steps, in standard deviations of the columns
FEWEST_ROWS = 100  # with fewer, a validation split says too little


@dataclasses.dataclass(frozen=True, repr=False)
class Gradient(Search):
    """A learned metric: every positive leaf of the kernel by the gradient of the error.

    First a profile over a factor common to all leaves, as `Profile` does for one lengthscale. Then
    Adam over the leaves and `C` from the best kernels of the profile minimises the squared error on
    held-out folds (of classes: of one-versus-rest values). The last kernels are scored by the
    metric, and the best of all is taken: never one that scores worse than the profile's.

    A gradient costs hardly more than the error, see `validation.held_out_error`. The error is that
    of a machine of at most `prototypes` of the points on at most `rows` of the rows in memory,
    whatever the method. Two things keep many columns from being fitted to noise: a Cauchy prior
    that pulls logs of lengthscales to their mean, and a validation split of a sixth of the rows.
    The kernels with the least validation error are scored, and early stopping ends the steps.

    With fewer than 100 rows for each column that is not enough. Then the weakest quarter of the
    columns is left out, and a profile and steps of the remaining columns follow, again and again
    until the score is a quarter above the best (recursive feature elimination, Guyon et al. 2002).

    Args:
        per_column: a kernel named by the caller has a lengthscale for every column; a kernel
            object always has the leaves that it has.
        rank: a kernel named by the caller has a matrix of so many rows in place of lengthscales of
            columns (`kernels.Projected`): a linear metric. At most the number of columns. A full
            matrix begins at the columns, a smaller one at the directions in which a machine of one
            lengthscale varies most. The profile does not vary it, and the prior pulls it to where
            it begins. The matrices of a kernel object are tuned too. Without `tune_kernel` there
            is none.
        starts: begin at so many of the best kernels of the profile.
        prototypes: the most points in the machine whose error is differentiated.
        rows: the most rows for a step; where there are more, a new sample for each step.
        prior_strength: 0 for no prior; 1 is Cauchy's with scale 1 in the natural log.
        patience: end when the validation error has not fallen for so many evaluations.
        learning_rate: length of the first steps, in logs of lengthscales; it falls to zero.
        elimination: leave out columns where rows in memory are few, unless there is a `start`.
        move_prototypes: afterwards move the prototypes of a `FixedSize` of one size by the gradient
            of the same error, with as many steps, if that improves the score. For few prototypes.
        max_evaluations: of the gradient, from all starts, and as many again each time that columns
            are left out; 60 by default. The evaluations of the profile, and two for each start,
            are not counted.
    """

    per_column: bool = True
    rank: int | None = None
    starts: int = 1
    prototypes: int = 500
    rows: int = 6144
    prior_strength: float = 1.0
    patience: int = 30
    learning_rate: float = 0.15
    elimination: bool = True
    move_prototypes: bool = False
    runs_on_mesh: ClassVar[bool] = False

    @property
    def varied(self) -> dict[str, bool]:
        """See `Search.varied`."""
        return {**super().varied, "tune_matrices": True}

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        for name, least in (("starts", 1), ("prototypes", 1), ("rows", 12), ("patience", 1)):
            whole_number(name, getattr(self, name), least)
        if self.rank is not None:
            whole_number("rank", self.rank, 1)
        real("prior_strength", self.prior_strength, 0.0)
        real("learning_rate", self.learning_rate, 0.0, above=True)
        for name in ("per_column", "elimination", "move_prototypes"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        if p == 0:
            return [1]
        line = [1] if self.start is not None else line_rounds(LINE_EVALUATIONS)
        return [*line, *[1] * ((self.max_evaluations or STEPS) + 2 * self.starts)]

    def planned(self, template: Template, n_rows: int) -> int:
        """See `Search.planned`."""
        again = LINE_EVALUATIONS + (self.max_evaluations or STEPS) + 2
        return sum(self.rounds(template.size)) + again * len(self.columns_left(template, n_rows))

    def columns_left(self, template: Template, n_rows: int) -> list[int]:
        """Return to how many columns the kernel is reduced, one number after the other.

        Three quarters of the columns, three quarters of these, and so on, down to two. None where
        rows are many, or for a local search.
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

    def without_rank(self) -> Search:
        """See `Search.without_rank`."""
        return dataclasses.replace(self, rank=None)

    def descent_of_prototypes(self, tuning: Any) -> Search:
        """Return the search that moves the prototypes of a tuned machine by the gradient."""
        return PrototypeDescent(settings=self, tuning=tuning)


@dataclasses.dataclass(frozen=True, repr=False)
class Automatic(Search):
    """What `search="auto"` stands for: `Gradient` where it can pay, else `Profile`.

    It cannot pay with fewer than 100 rows, too few for a validation split, nor on several devices.
    Otherwise early stopping ends the steps soon where they do not pay.
    """

    def resolve(self, n_rows: int, *, on_mesh: bool) -> Search:
        """See `Search.resolve`."""
        if on_mesh or n_rows < FEWEST_ROWS:
            return Profile(**vars(self))
        return Gradient(**vars(self), patience=15)

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`: at most as of `Gradient`."""
        return self.resolve(FEWEST_ROWS, on_mesh=False).rounds(p)

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        self.resolve(run.problem.rows_scored, on_mesh=False).run(run)


class _Descents:
    """A profile over a common factor, steps from its best kernels, and scores of their ends.

    Then again with fewer columns, the others held at their widest, until a column that counts is
    left out.
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
        self.lowest = np.append(run.low - NARROWER, ends[0])
        self.highest = np.append(run.high + WIDER, ends[1])
        matrix = np.flatnonzero(self.signed)
        widest = 10 * np.abs(self.middle[matrix]).max(initial=1.0)
        self.lowest[matrix], self.highest[matrix] = -widest, widest

    def run(self) -> None:
        """Descend with all columns, then with fewer."""
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
                return  # nothing tells which columns count
            lower, theta = min(ends, key=lambda end: end[0])
            score = min(score, lower)
            best = min(best, score)
            if not score <= WORSE * best:
                return

    def _descend(
        self, begin: np.ndarray, low: np.ndarray, budget: int
    ) -> list[tuple[float, np.ndarray]]:
        """Return the kernels at the ends of a descent with their scores.

        If none is worth scoring, the step of the least validation error, with an infinite score.
        """
        run, trail = self.evaluator, []
        stop: BaseException | None = None
        try:
            descend(run, self.batches, begin, low, self.highest, self.search, budget, trail)
        except (KeyboardInterrupt, *run.stops) as error:  # score the best steps before the end
            stop = error
        scored = [(run.scores(kernel[None])[0], kernel) for kernel in worth_scoring(trail)]
        if stop is not None:
            raise stop
        if scored:
            return scored
        moved = [step for step in trail if not np.array_equal(step[0], trail[0][0])]
        return [(np.inf, min(moved, key=lambda step: step[1])[0])] if moved else []

    def _begin(self, excluded: np.ndarray) -> tuple[list[np.ndarray], float]:
        """Return where steps begin, logs of the leaves and of `C`, and the least score there."""
        search, run = self.search, self.evaluator
        if search.start is not None and len(excluded) == 0:
            theta = np.asarray(search.start.theta, float)
            score = run.scores(theta[None])[0]
            return [np.append(theta, np.log(search.start.C))], score
        scored: list[tuple[float, np.ndarray]] = []

        def scores(points: np.ndarray) -> Float[np.ndarray, " q"]:
            thetas = self.middle[None] + np.where(self.signed[None], 0, points)
            thetas[:, excluded] = self.highest[excluded][None]
            values = run.scores(thetas)
            scored.extend(zip(values.tolist(), thetas, strict=True))
            return values

        narrow, wide = np.max(run.low - self.middle), np.min(run.high - self.middle)
        line_search(float(narrow), float(wide), LINE_EVALUATIONS, run.dtype, scores)
        best = sorted(scored, key=lambda one: one[0])[: 1 if len(excluded) else search.starts]
        return [np.append(theta, np.log(run.best_C(theta))) for _, theta in best], best[0][0]


@dataclasses.dataclass(frozen=True, repr=False)
class PrototypeDescent(Search):
    """Adam on the cross-validated squared error, in the prototypes; the kernel stays as it is.

    A sixth of the rows is the validation split. The prototypes with the least validation error are
    scored with every `C`: those of the problem, if no step improves on them.
    """

    moves_points: ClassVar[bool] = True

    settings: Any = None  # the `Gradient` that tuned the kernel, with rows, patience and budget
    tuning: Any = None  # its outcome

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        return [1]

    def run(self, run: Evaluator) -> None:
        """See `Search.run`: replaces the points of the problem."""
        points = self._moved(run)
        run.problem = dataclasses.replace(run.problem, points=points, point_rows=None)
        run.scores(np.zeros((1, 0)))

    def _moved(self, run: Evaluator) -> Float[Array, "m d"]:
        problem, settings, kernel = run.problem, self.settings, self.tuning.kernel
        Z = best = problem.points
        batches = Batches(
            jax.random.fold_in(run.key, 2), *problem.source.rows_in_memory(), points=Z,
            rows=settings.rows, prototypes=len(Z),
        )  # fmt: skip
        C, parts = np.asarray(self.tuning.C, run.dtype), batches.at(0)
        mean, square = jnp.zeros_like(Z), jnp.zeros_like(Z)
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
            Z, mean, square = _adam_step(Z, gradient, mean, square, rate, np.int32(i + 1))
            if batches.resampled:
                parts = batches.at(i + 1)
        return best


@compiled
def _prototype_gradient(
    kernel: Kernel, Z: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, "m d"], FoldErrors]:
    gradient, errors = jax.grad(held_out_error, argnums=1, has_aux=True)(kernel, Z, C, parts)
    return jnp.where(jnp.isfinite(gradient), gradient, 0), errors


@compiled
def _adam_step(
    Z: Float[Array, "m d"],
    gradient: Float[Array, "m d"],
    mean: Float[Array, "m d"],
    square: Float[Array, "m d"],
    rate: Float[Array, ""],
    count: Array,
) -> tuple[Float[Array, "m d"], Float[Array, "m d"], Float[Array, "m d"]]:
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * jnp.square(gradient)
    n = count.astype(Z.dtype)
    size = jnp.sqrt(square / (1 - 0.999**n))
    step = mean / (1 - 0.9**n) / jnp.where(size > 0, size, 1)
    return Z - rate * step, mean, square
