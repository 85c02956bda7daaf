"""Settings of the direct method, which optimises its prototypes (Wu et al. 2006)."""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems, systems_at_once
from .._status import NOT_FINITE
from .._types import Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from . import direct
from .checks import check_choice
from .direct import DirectFit
from .family import Family
from .few_prototypes import FewPrototypes
from .inner_problems import InnerProblem
from .method import Points, Task, TrainingRows, check_number, iteration_limit, replaced, setting
from .rows import Rows

Sharing = Literal["shared", "separate"]
# Distance to which copies of a point are moved apart, in standard deviations. At this distance the
# kernel matrix of ten copies is still resolved in float64.
_COPY_DISTANCE = 0.1
# Factor of the tolerance of descents in validation, which then take half the time or less. On ten
# tables the lowest cross-validated error was as low as with the full tolerance, at the same or a
# neighbouring `C`.
VALIDATION_TOLERANCE = 10.0


class DirectMethod(FewPrototypes):
    """The settings of methods that optimise their prototypes by L-BFGS, see `direct`.

    The descent minimises `W(Z)`, the minimum of a convex `InnerProblem` over the coefficients for
    given prototypes `Z`. A descent for every kernel, `C` and fold would take long. So the kernel is
    tuned for a fixed-size LS-SVM on random rows, five for each prototype. Then `C` is tuned. In
    validation on a CPU a descent starts from the prototypes for the next smaller value of
    `default_C`; only the smallest value uses all `starts`. Its tolerance is ten times `tolerance`.
    With separate prototypes, on a mesh or on an accelerator, validation uses all `starts` and the
    full `tolerance`, as the final fit does.

    Args:
        selection: how the start is chosen: "k_means", "renyi" or "uniform".
        starts: number of descents. The first starts from points by `selection`, the others from
            random rows. After 20 steps only the descent with the lowest objective goes on.
        sharing: whether the problems of several classes, or several targets, have "shared"
            prototypes, or each problem `n_prototypes` "separate" ones.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iterations: limit of steps of the descent. A new value compiles the programs again.
    """

    optimises_prototypes: ClassVar[bool] = True

    starts: int = setting(3)
    sharing: Sharing = setting("shared")
    tolerance: ScalarLike = direct.TOLERANCE
    max_iterations: int = iteration_limit(direct.MAX_ITERATIONS)

    max_rows: ClassVar[int | None] = 1000  # validation takes a descent for every fold and C

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("sharing", self.sharing, Sharing)
        check_descent(self.tolerance, self.max_iterations)

    def _sets(self, key: Key, rows: TrainingRows) -> Points:
        """Return the sets of points; copies of a point are moved apart.

        Where two prototypes coincide the objective has no derivative: as soon as they part, they
        span one more dimension.
        """
        points = super()._sets(key, rows)
        X = np.asarray(points.X)
        spread = np.std(np.asarray(rows.X)[np.asarray(rows.weights) > 0], axis=0)
        sets = [copies_apart(start, _COPY_DISTANCE * spread) for start in np.split(X, self.starts)]
        apart = np.concatenate(sets)
        if np.array_equal(apart, X):
            return points
        return Points(jax.device_put(apart), None, points.status)

    @abc.abstractmethod
    def problem(self, kernel: Kernel, *data: Array) -> InnerProblem:
        """Return the convex problem for the coefficients; `data` is as for `fit_targets`."""

    def descend(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """Minimise `W(Z)` over prototypes that all targets share, see `direct.minimise`."""
        problem = self.problem(kernel, *data)
        minimum = direct.minimise(
            problem, starts, tolerance=self.tolerance, max_iterations=self.max_iterations
        )
        expansion = problem.expansion(minimum.Z, minimum.solved)
        return DirectFit(
            expansion, minimum.history, minimum.steps, minimum.evaluations, minimum.status
        )

    def fits_over_C(
        self, kernel: Kernel, points: PointTable, C: Float[np.ndarray, " s *l"], rows: Rows,
        key: Key | None = None,
    ) -> Iterator[Family]:  # fmt: skip
        """See `Method.fits_over_C`: start from the prototypes for the next smaller default `C`.

        Values up to the smallest default `C` start from `points`. Descents stop at a rough
        tolerance. On an accelerator, and for separate prototypes, each fit starts from `points` and
        goes on to the full tolerance.
        """
        if systems_at_once() > 1 or (self.sharing == "separate" and rows.outputs):
            yield from super().fits_over_C(kernel, points, C, rows, key)
            return
        rough = replaced(self, tolerance=VALIDATION_TOLERANCE * self.tolerance)
        grid = self.default_C.astype(C.dtype)
        at_grid: list[Family] = []  # the machines for the first values of the grid

        def fit_after(smaller: int, one_C: Any) -> Family:
            """Fit for a `C` that exceeds the first `smaller` values of the grid."""
            start = _as_first_start(machine_of_grid(smaller - 1), points) if smaller else points
            return rough.fit(kernel, start, jax.device_put(one_C), rows, key)

        def machine_of_grid(index: int) -> Family:
            """Return the machine for a value of the grid; fit those that are missing up to it."""
            for missing in range(len(at_grid), index + 1):
                at_grid.append(fit_after(missing, grid[missing]))
            return at_grid[index]

        for one_C in C:
            smaller = int(np.searchsorted(grid, np.min(one_C)))  # number of smaller values
            if smaller < len(grid) and np.all(one_C == grid[smaller]):
                yield machine_of_grid(smaller)
            else:
                yield fit_after(smaller, one_C)

    def fit_targets(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """See `FewPrototypes.fit_targets`; with separate prototypes, fit target by target."""
        X, y, C, w = data
        if y.ndim == 1 or self.sharing == "shared":
            return self.descend(kernel, starts, *data)
        problems = y.shape[1]
        w = jnp.broadcast_to(w if w.ndim == 2 else w[:, None], y.shape)
        fits = map_systems(
            lambda target: self.descend(kernel, starts, X, *target),
            (y.T, jnp.broadcast_to(C, (problems,)), w.T),
        )
        # The coefficients of a problem are 0 for the prototypes of all other problems.
        diagonal = jnp.eye(problems, dtype=X.dtype)
        coefficients = fits.expansion.coefficients[:, :, None] * diagonal[:, None, :]
        expansion = KernelExpansion(
            kernel,
            fits.expansion.prototypes.reshape(-1, X.shape[1]),
            coefficients.reshape(-1, problems),
            fits.expansion.intercept,
        )
        return fits._replace(expansion=expansion, status=jnp.max(fits.status))


def _as_first_start(family: Family, points: PointTable) -> PointTable:
    """Return the prototypes of a descent as the first set of points; the other sets are NaN.

    Starts that are not finite are skipped. If the descent failed, return `points`.
    """
    prototypes, statuses = np.asarray(family.points), np.asarray(family.statuses)
    if np.any(statuses == NOT_FINITE) or not np.all(np.isfinite(prototypes)):
        return points
    sets = np.full_like(np.asarray(points), np.nan)
    sets[: len(prototypes)] = prototypes
    return jax.device_put(sets)


def check_descent(tolerance: ScalarLike, max_iterations: int) -> None:
    """Raise a `ValueError` unless the settings of a descent are in range."""
    check_number("tolerance", tolerance, 0.0)
    whole_number("max_iterations", max_iterations, 1, 10**6, "a million")


def copies_apart(
    Z: Float[np.ndarray, "m d"], distance: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "m d"]:
    """Return the points, with copies of earlier points moved apart; on the host.

    The copies of a point move along one column after another, by multiples of the column's entry
    of `distance`. Columns with distance 0 are skipped.
    """
    columns = np.flatnonzero(distance > 0)
    moved, copies = Z.copy(), dict[bytes, int]()
    for point in moved:
        bits = (point + 0).tobytes()  # adding 0 turns -0 into 0
        copy = copies.get(bits, 0)
        copies[bits] = copy + 1
        if copy and columns.size:
            multiple, place = divmod(copy - 1, columns.size)
            point[columns[place]] += (multiple + 1) * distance[columns[place]]
    return moved
