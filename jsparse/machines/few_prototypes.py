"""Methods with a small, fixed number of prototypes: settings, and the programs that fit them."""

import abc
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._programs import compiled
from .._types import CLike, Key, PointTable
from ..kernels import Kernel
from ..prototypes import k_means
from ..prototypes.choice import choose_rows
from .checks import check_choice, columns_in_one_dtype
from .family import Family, diagnostics, single
from .method import Points, Task, TrainingRows, rows_at, setting
from .rows import Rows
from .sized import Sized
from .stages import Stages, surrogate_stages
from .surrogate import fixed_size_surrogate

Selection = Literal["k_means", "renyi", "uniform"]
_REPEATED_WEIGHT = 1e-6  # factor of the weight of repeated rows, so that they are chosen last
# Random rows of the fixed-size LS-SVM that tunes the kernel, for each optimised prototype. The best
# kernel of the points from which descents start is too smooth: with it `SparseRidge` had twice the
# test error on four tables, and the three classifiers 1.2 to 1.3 times the error on six.
ROWS_FOR_EACH_PROTOTYPE = 5


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

    def largest_system(self, n_rows: int) -> int:
        """See `Method.largest_system`: the surrogate machine has it, if there is one."""
        return self.largest * (ROWS_FOR_EACH_PROTOTYPE if self.optimises_prototypes else 1)

    @abc.abstractmethod
    def fit_targets(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> Any:
        """Fit to one target, or to several targets.

        Args:
            kernel: kernel of two points.
            starts: the sets of points.
            *data: inputs, targets, `C` and row weights, see `inner_problems.Supervised`. The arrays
                of `shared_over_C` may follow.

        Returns:
            A NamedTuple of the machine (`expansion`), its diagnostics and its `status`.
        """

    def shared_over_C(self, kernel: Kernel, rows: Rows) -> tuple[Array, ...]:
        """Return arrays that depend on kernel and rows but not on `C`, for `fit_targets`.

        `fits_over_C` computes them once.
        """
        return ()

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `Method.fit`."""
        assert points is not None
        shared = self.shared_over_C(kernel, rows)
        return _fit(self, kernel, points, jnp.asarray(C, rows.dtype), rows, shared)

    def fits_over_C(
        self, kernel: Kernel, points: PointTable, C: Float[np.ndarray, " s *l"], rows: Rows,
        key: Key | None = None,
    ) -> Iterator[Family]:  # fmt: skip
        """See `Method.fits_over_C`."""
        assert points is not None
        shared = self.shared_over_C(kernel, rows)
        for one_C in C:
            yield _fit(self, kernel, points, jnp.asarray(one_C, rows.dtype), rows, shared)


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
    shared: tuple[Array, ...],
) -> Family:
    """Fit to `points`: the method's `starts` sets one after another, or a single set."""
    sets = method.starts
    if method.n_features is None or len(points) != sets * method.largest:  # points are one set
        sets = 1
    starts = points.reshape(sets, -1, points.shape[1])
    data = rows.X, rows.targets, C, rows.problem_weights, *shared
    machine = method.fit_targets(kernel, starts, *data)
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
