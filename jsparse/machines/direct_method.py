"""The settings of machines whose prototypes the direct method finds (Wu et al. 2006)."""

import abc
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems
from .._programs import compiled
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from . import direct
from .direct import DirectFit
from .family import Family, diagnostics, single
from .few_prototypes import FewPrototypes
from .method import Points, Task, TrainingRows, check_number, setting
from .rows import Rows

Sharing = Literal["shared", "separate"]
_APART = 0.1  # distance of copies in standard deviations: the span of ten keeps float64's digits


class DirectMethod(FewPrototypes):
    """The settings of machines whose prototypes are found by the direct method.

    The kernel is tuned for a machine of the points that the descent starts from, as a descent for
    every kernel, `C` and fold would take far longer. `C` is tuned for the machine itself.

    Args:
        n_prototypes: see `FewPrototypes`; of each problem, if they are separate.
        selection: "k_means", "renyi" or "uniform".
        starts: descents, of which the lowest end is taken; the first from points by `selection`,
            the others from rows at random.
        sharing: whether the problems of several classes, or several targets, have "shared"
            prototypes or "separate" ones.
        tolerance: of the descent, see `direct.minimise`.
        max_steps: cap on steps of the descent; the length of the history, so another one compiles
            again.
    """

    starts: int = setting(3)
    sharing: Sharing = setting("shared")
    tolerance: ScalarLike = direct.TOLERANCE
    max_steps: int = setting(direct.MAX_STEPS)

    max_rows: ClassVar[int | None] = 1000  # a descent for every fold and C

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.sharing not in ("shared", "separate"):
            raise ValueError(f"sharing: expected 'shared' or 'separate', got {self.sharing!r}")
        check_descent(self.tolerance, self.max_steps)

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """See `FewPrototypes.choose_points`; copies of a point start apart.

        Where prototypes coincide, the objective has no derivative: their span grows as they part.
        """
        points = super().choose_points(key, kernel, rows)
        X = np.asarray(points.X)
        spread = np.std(np.asarray(rows.X)[np.asarray(rows.weights) > 0], axis=0)
        sets = [copies_apart(start, _APART * spread) for start in np.split(X, self.starts)]
        apart = np.concatenate(sets)
        if np.array_equal(apart, X):
            return points
        return Points(jax.device_put(apart), None, points.status)

    @abc.abstractmethod
    def fit_targets(
        self,
        kernel: Kernel,
        starts: Float[Array, "s m d"],
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        weights: Float[Array, " n"] | Float[Array, "n l"],
    ) -> DirectFit:
        """Fit to one target, or to several that share their prototypes."""

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None = None,
    ) -> Family:
        """See `Method.fit`: the best of the descents from the points."""
        assert points is not None
        return _fit(self, kernel, points, jnp.asarray(C, rows.dtype), rows)


def check_descent(tolerance: ScalarLike, max_steps: int) -> None:
    """Raise a `ValueError` unless a descent can take these settings."""
    check_number("tolerance", tolerance, 0.0)
    whole_number("max_steps", max_steps, 1, 10**6, "a million")


def copies_apart(
    Z: Float[np.ndarray, "m d"], distance: Float[np.ndarray, " d"]
) -> Float[np.ndarray, "m d"]:
    """Return points with copies of earlier ones moved by multiples of a distance; on the host.

    The copies of a point move along one column after another, of those with a distance above 0.
    """
    columns = np.flatnonzero(distance > 0)
    moved, copies = Z.copy(), dict[bytes, int]()
    for point in moved:
        name = (point + 0).tobytes()  # of both zeros the same
        copy = copies.get(name, 0)
        copies[name] = copy + 1
        if copy and columns.size:
            multiple, place = divmod(copy - 1, columns.size)
            point[columns[place]] += (multiple + 1) * distance[columns[place]]
    return moved


@compiled
def _fit(
    method: DirectMethod,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, "*k"],
    rows: Rows,
) -> Family:
    starts, y, w = method.each_start(points), rows.targets, rows.problem_weights
    if y.ndim == 1 or method.sharing == "shared":
        machine = method.fit_targets(kernel, starts, C, rows.X, y, w)
        return single(machine.expansion, machine.status, diagnostics(machine))
    problems = y.shape[1]
    w = jnp.broadcast_to(w if w.ndim == 2 else w[:, None], y.shape)
    each = map_systems(
        lambda one: method.fit_targets(kernel, starts, one[0], rows.X, *one[1:]),
        (jnp.broadcast_to(C, (problems,)), y.T, w.T),
    )
    # Each problem has coefficients for its own prototypes alone.
    diagonal = jnp.eye(problems, dtype=rows.dtype)
    coefficients = each.expansion.coefficients[:, :, None] * diagonal[:, None, :]
    expansion = KernelExpansion(
        kernel,
        each.expansion.prototypes.reshape(-1, points.shape[1]),
        coefficients.reshape(-1, problems),
        each.expansion.intercept,
    )
    return single(expansion, jnp.max(each.status), diagnostics(each))
