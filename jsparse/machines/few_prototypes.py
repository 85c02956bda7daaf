"""Settings of methods with a fixed, small number of prototypes, and of the direct method."""

import abc
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems, systems_at_once
from .._programs import compiled
from .._status import NOT_FINITE
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..prototypes import k_means
from ..prototypes.choice import choose_rows
from . import direct
from .checks import check_choice, columns_in_one_dtype
from .direct import DirectFit
from .family import Family, diagnostics, single
from .inner_problems import InnerProblem
from .method import (
    Points,
    Task,
    TrainingRows,
    check_number,
    iteration_limit,
    replaced,
    rows_at,
    setting,
)
from .rows import Rows
from .sized import Sized
from .stages import Stages, surrogate_stages
from .surrogate import fixed_size_surrogate

Selection = Literal["k_means", "renyi", "uniform"]
Sharing = Literal["shared", "separate"]
_REPEATED_WEIGHT = 1e-6  # factor of the weight of repeated rows, so that they are chosen last
# Random rows of the fixed-size LS-SVM that tunes the kernel, for each optimised prototype. The best
# kernel of the points from which descents start is too smooth: with it `SparseRidge` had twice the
# test error on four tables, and the three classifiers 1.2 to 1.3 times the error on six.
ROWS_FOR_EACH_PROTOTYPE = 5
# Distance to which copies of a point are moved apart, in standard deviations. At this distance the
# kernel matrix of ten copies is still resolved in float64.
_COPY_DISTANCE = 0.1
# Factor of the tolerance of descents in validation, which then take half the time or less. On ten
# tables the least cross-validated errors were as low, at the same or a neighbouring `C`.
VALIDATION_TOLERANCE = 10.0


class FewPrototypes(Sized):
    """The settings of methods with a small number of prototypes (`N_z` of Wu et al. 2006).

    `Sized` describes the settings that are not listed.

    Args:
        selection: how the prototypes, or the start of a descent, are chosen: "k_means" for cluster
            means, or rows by "renyi" or "uniform". Copies of a row are chosen only if there are too
            few different rows (Section 5.6).
        starts: number of sets of points; all sets but the first are random rows. A method without a
            descent uses only the first set.
    """

    selection: Selection = setting("k_means")
    starts: int = setting(1)

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    usual_folds: ClassVar[int] = 5
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.geomspace(0.1, 1000, 5)
    usual_prototypes: ClassVar[int] = 20
    range_of_auto: ClassVar[tuple[int, int]] = (5, 80)
    optimises_prototypes: ClassVar[bool] = False  # whether a fit moves its prototypes

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("selection", self.selection, Selection)
        whole_number("starts", self.starts, 1, 1000, "a thousand")

    def at_size(self, m: int) -> tuple["FewPrototypes", slice]:
        """See `Method.at_size`: each size has separate sets of points, one size after the other."""
        method, _ = super().at_size(m)
        before = self.starts * sum(size for size in self.sizes if size < m)
        return cast(FewPrototypes, method), slice(before, before + self.starts * m)

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return the `starts` sets of points of each size, one after another."""
        if not self.sizes:
            return self._sets(key, rows)
        return _concatenated([self.at_size(m)[0]._sets(key, rows) for m in self.sizes])

    def _sets(self, key: Key, rows: TrainingRows) -> Points:
        """Return the `starts` sets of points, one after another."""
        if self.starts == 1:
            return self._one_set(key, self.selection, rows)
        keys = jax.random.split(key, self.starts)
        criteria = [self.selection] + ["uniform"] * (self.starts - 1)
        return _concatenated(
            [self._one_set(k, by, rows) for k, by in zip(keys, criteria, strict=True)]
        )

    def _one_set(self, key: Key, selection: str, rows: TrainingRows) -> Points:
        """Return cluster means, or rows by `selection`, in which copies are chosen last."""
        X, weights, m = np.asarray(rows.X), np.array(rows.weights), self.largest
        present = np.flatnonzero(weights)
        if selection == "k_means":
            # Replace the values of zero-weight rows: they would affect the rounding of the means.
            X = np.where((weights > 0)[:, None], X, X[present[0]])
            inputs, w = jax.device_put((X, weights.astype(X.dtype)))
            means = k_means(key, inputs, m, w)
            return Points(means.centres, None, int(means.status))
        first = np.unique(X[present], axis=0, return_index=True)[1]
        weights[np.delete(present, first)] *= _REPEATED_WEIGHT
        numbers, status = choose_rows(key, selection, rows.X, m, rows.labels, weights, rows.n)
        return Points(rows_at(rows.X, numbers), numbers, status)

    def stages_of_one_size(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages_of_one_size`.

        If a fit moves prototypes, the kernel is tuned for a fixed-size LS-SVM whose prototypes are
        random rows, `ROWS_FOR_EACH_PROTOTYPE` for each prototype. Then `C` is tuned.
        """
        if not self.optimises_prototypes or not search.tune_kernel:
            return super().stages_of_one_size(problem, search)
        on_rows = problem.with_rows_as_points(ROWS_FOR_EACH_PROTOTYPE * self.largest)
        surrogate = fixed_size_surrogate(on_rows, len(on_rows.points))
        return surrogate_stages(surrogate, problem, search)

    @property
    def largest_system(self) -> int | float:
        """See `Method.largest_system`: the surrogate's, if there is one."""
        return self.largest * (ROWS_FOR_EACH_PROTOTYPE if self.optimises_prototypes else 1)

    @abc.abstractmethod
    def fit_targets(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> Any:
        """Fit to one target, or to several targets.

        Args:
            kernel: kernel of two points.
            starts: the sets of points.
            *data: inputs, targets, `C` and row weights, see `inner_problems.Supervised`.

        Returns:
            A NamedTuple of the machine (`expansion`), its diagnostics and its `status`.
        """

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `Method.fit`."""
        assert points is not None
        return _fit(self, kernel, points, jnp.asarray(C, rows.dtype), rows)


def _concatenated(sets: Sequence[Points]) -> Points:
    """Return sets of points, one after another, with the worst of their stop codes."""
    X = np.concatenate([np.asarray(points.X) for points in sets])
    return Points(jax.device_put(X), None, max(points.status for points in sets))


@functools.partial(compiled, loop=True)
def _fit(
    method: FewPrototypes,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, "*k"],
    rows: Rows,
) -> Family:
    """Fit to `points`: the method's `starts` sets one after another, or a single set."""
    sets = method.starts
    if method.n_features is None or len(points) != sets * method.largest:  # points are one set
        sets = 1
    starts = points.reshape(sets, -1, points.shape[1])
    machine = method.fit_targets(kernel, starts, rows.X, rows.targets, C, rows.problem_weights)
    return single(machine.expansion, machine.status, diagnostics(machine))


def fit_arrays(
    method: FewPrototypes, name: str, kernel: Kernel, *arrays: Any, several: bool = False
) -> Any:
    """Check the arguments of a pure fit function, and return the fit by `method.fit_targets`.

    Args:
        method: the settings.
        name: the name of the argument that holds the points, for error messages.
        kernel: kernel of two points.
        *arrays: points, `C`, inputs, targets, and row weights or None.
        several: whether there may be several sets of points, shape `s m d`.

    Raises:
        ValueError: for invalid settings, or as for `columns_in_one_dtype`.
    """
    method.check("classification")
    classes = method.tasks == ("classification",)
    arrays = columns_in_one_dtype(name, *arrays, classes=classes, several=several)
    return _fit_arrays(method, kernel, *arrays)


@functools.partial(compiled, loop=True)
def _fit_arrays(
    method: FewPrototypes, kernel: Kernel, points: Array, C: Array, X: Array, y: Array, w: Array
) -> Any:
    return method.fit_targets(kernel, points.reshape(-1, *points.shape[-2:]), X, y, C, w)


class DirectMethod(FewPrototypes):
    """The settings of methods that optimise their prototypes by L-BFGS, see `direct`.

    The descent minimises `W(Z)`, the minimum of a convex `InnerProblem` over the coefficients for
    given prototypes `Z`. A descent for every kernel, `C` and fold would take long. So the kernel is
    tuned for a fixed-size LS-SVM on random rows, five for each prototype. Then `C` is tuned. In
    validation on a CPU a descent starts from the prototypes for the next smaller value of
    `default_C`; only the smallest value uses all `starts`. Its tolerance is ten times `tolerance`.
    With separate prototypes, on a mesh and on an accelerator, validation makes the fit that is made
    to all rows, which uses all `starts` and `tolerance`.

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

        Where prototypes coincide the objective has no derivative, as they span more once apart.
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

        The smallest values start from `points`. All descents stop at a rough tolerance. Every fit
        is separate, at the full tolerance, on an accelerator and for separate prototypes.
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
