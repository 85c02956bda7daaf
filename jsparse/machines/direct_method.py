"""Machines whose prototypes the direct method finds (Wu et al. 2006)."""

import abc
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from . import direct
from .checks import check_choice
from .direct import DirectFit
from .few_prototypes import FewPrototypes
from .method import Points, Task, TrainingRows, check_number, setting
from .span import InnerProblem

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
        check_choice("sharing", self.sharing, Sharing)
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
    def problem(self, kernel: Kernel, *data: Array) -> InnerProblem:
        """Return the problem on whose marginal function the descent is; see `fit_targets`."""

    def descend(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """Return the best of the descents from some points, which all targets share."""
        options = {"tolerance": self.tolerance, "max_steps": self.max_steps}
        return direct.best_of(self.problem(kernel, *data), starts, **options).machine(kernel)

    def fit_targets(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """See `FewPrototypes.fit_targets`; with separate prototypes, one target after another."""
        X, y, C, w = data
        if y.ndim == 1 or self.sharing == "shared":
            return self.descend(kernel, starts, *data)
        problems = y.shape[1]
        w = jnp.broadcast_to(w if w.ndim == 2 else w[:, None], y.shape)
        fits = map_systems(
            lambda target: self.descend(kernel, starts, X, *target),
            (y.T, jnp.broadcast_to(C, (problems,)), w.T),
        )
        # Each problem has coefficients for its own prototypes alone.
        diagonal = jnp.eye(problems, dtype=X.dtype)
        coefficients = fits.expansion.coefficients[:, :, None] * diagonal[:, None, :]
        expansion = KernelExpansion(
            kernel,
            fits.expansion.prototypes.reshape(-1, X.shape[1]),
            coefficients.reshape(-1, problems),
            fits.expansion.intercept,
        )
        return fits._replace(expansion=expansion, status=jnp.max(fits.status))


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
