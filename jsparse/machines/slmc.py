"""Sparse large margin classifiers (Wu et al. 2006)."""

from typing import ClassVar

from jaxtyping import Array, Float

from .._types import CLike, ScalarLike
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .checks import check_choice
from .direct import DirectFit
from .direct_method import DirectMethod
from .few_prototypes import fit_arrays
from .inner_problems import InnerProblem, LargeMargin
from .method import Task, setting


class SLMC(DirectMethod):
    """Sparse large margin classifiers: a support vector machine with optimised prototypes.

    A descent in the prototypes minimises the objective of the support vector machine in their span
    (Wu et al. 2006, problem (20)-(23)). `DirectMethod` says how kernel and `C` are tuned, and
    describes the settings that are not listed.

    Args:
        loss: "hinge" or "squared_hinge".
    """

    loss: Hinge = setting("hinge")

    name: ClassVar[str] = "slmc"
    title: ClassVar[str] = "sparse large margin"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("loss", self.loss, Hinge)

    def problem(self, kernel: Kernel, *data: Array) -> InnerProblem:
        """See `DirectMethod.problem`."""
        return LargeMargin(kernel, *data, loss=self.loss)


def fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    C: CLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    loss: Hinge = "hinge",
    tolerance: ScalarLike = direct.TOLERANCE,
    max_iterations: int = direct.MAX_ITERATIONS,
) -> DirectFit:
    """Fit a sparse large margin classifier (Wu et al. 2006, problem (20)-(23)).

    Args:
        kernel: kernel of two points.
        start: prototypes from which the descent starts, shape `m d`; or several sets, shape
            `s m d`, see `direct.minimise`.
        C: weight of the data-fit term, positive; or one for each target, shape `l`.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets -1 and +1, shape `n`; or several that share their prototypes, shape `n l`.
        weights: row weights, shape `n`, or `n l` for weights of each target; 0 for an absent row.
        loss: "hinge" or "squared_hinge" (static).
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iterations: limit of steps of the descent; the length of the history (static).

    Returns:
        `DirectFit`, with the status of `direct.minimise`.

    Pure; works under `jit` and `vmap`. Not differentiable, as a descent stops before the exact
    minimum; `direct.marginal` gives derivatives of the objective in the prototypes.

    Raises:
        ValueError: for another loss, a negative tolerance, `max_iterations` below 1, shapes that do
            not fit, or (outside `jit`) NaN, infinity, C not positive, negative weights, or targets
            that are neither -1 nor +1.
    """
    method = SLMC(loss=loss, tolerance=tolerance, max_iterations=max_iterations)
    return fit_arrays(method, "start", kernel, start, C, X, y, weights, several=True)
