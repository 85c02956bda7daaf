"""Sparse Fisher discriminants, ridge regression and one-class machines (Wu et al. 2006)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..features import FeatureMap
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .fixed_size import FixedSize
from .method import FEW_C, Method, Task
from .slmc import Direct, ReducedSVM, check_loss


@dataclasses.dataclass(frozen=True)
class SparseFisher(Direct):
    """Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A).

    The descent is on the largest eigenvalue of the discriminant in the span of the expansion
    vectors, with `mu = 1 / (C sum_i weight_i)`; the coefficients and the intercept of those found
    are the support vector machine's with the same `C`, as at the end of the appendix.

    Args:
        n_prototypes: see `Direct`, as are all others but one.
        selection: of the points that the descent starts from.
        starts: of descents.
        sharing: of expansion vectors by problems.
        tolerance: of the descent.
        max_steps: of the descent.
        loss: of the support vector machine, "hinge" or "squared_hinge".
    """

    name: ClassVar[str] = "sparse-fisher"
    title: ClassVar[str] = "sparse Fisher discriminant"

    loss: Hinge = "hinge"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_loss(self.loss)

    def surrogate(self) -> Method:
        """See `Direct.surrogate`."""
        return ReducedSVM(self.n_prototypes, self.selection, self.starts, self.loss)

    def problem(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
    ) -> direct.InnerProblem:
        """See `Direct.problem`."""
        return direct.Fisher(kernel, X, y, C, w)

    def machine(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
        found: direct.Minimum,
    ) -> direct.Solved:
        """See `Direct.machine`."""
        return direct.LargeMargin(kernel, X, y, C, w, self.loss).solve(found.Z)


@dataclasses.dataclass(frozen=True)
class SparseRidge(Direct):
    """Kernel ridge regression, the LS-SVM, of the best expansion vectors: variable projection.

    The direct method of Wu et al. 2006 for `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`; of
    classes the targets are -1 and +1. Its kernel is tuned for the fixed-size LS-SVM of the points
    that the descent starts from.

    Args:
        n_prototypes: see `Direct`, as are all others.
        selection: of the points that the descent starts from.
        starts: of descents.
        sharing: of expansion vectors by problems, and by several real targets.
        tolerance: of the descent.
        max_steps: of the descent.
    """

    name: ClassVar[str] = "sparse-ridge"
    title: ClassVar[str] = "sparse ridge regression"
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C

    def surrogate(self) -> Method:
        """See `Direct.surrogate`."""
        return _OfFirstStart(self.n_prototypes)

    def problem(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
    ) -> direct.InnerProblem:
        """See `Direct.problem`."""
        return direct.LeastSquares(kernel, X, y, C, w)


@dataclasses.dataclass(frozen=True)
class _OfFirstStart(FixedSize):
    """The fixed-size LS-SVM of the points of the first of several starts."""

    def features(self, kernel: Kernel, points: Float[Array, "m d"]) -> FeatureMap:
        """See `Additive.features`."""
        return super().features(kernel, points[: self.largest])


def one_class(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    nu: float | Float[Array, ""],
    X: Float[Array, "n d"],
    weights: Float[Array, " n"] | None = None,
    *,
    tolerance: float = direct.TOLERANCE,
    max_steps: int = direct.MAX_STEPS,
) -> direct.Minimum:
    """The sparse one-class support vector machine (Wu et al. 2006, Section 4.4).

    Args:
        kernel: kernel of two points.
        start: expansion vectors that the descent starts from, shape `m d`; or several starts, shape
            `s m d`, of which the end with the lowest objective is taken.
        nu: bound of the weighted part of rows that are taken for outliers, above 0 and below 1.
        X: inputs, shape `n d`.
        weights: row weights, shape `n`; 0 is as if absent.
        tolerance: of the descent, see `direct.minimise`.
        max_steps: cap on its steps (static).

    Returns:
        `direct.Minimum`; `direct.OneClass(kernel, X, nu).expansion(found.Z, found.solved)` is its
        machine, whose values are negative for outliers.

    Pure; works under `jit` and `vmap`.

    Raises:
        ValueError: for a concrete `nu` that is not between 0 and 1, or as `direct.minimise` does.
    """
    if isinstance(nu, float) and not 0 < nu < 1:
        raise ValueError(f"nu: expected a number above 0 and below 1, got {nu}")
    problem = direct.OneClass(kernel, X, jnp.asarray(nu, X.dtype), weights)
    starts = start if start.ndim == 3 else start[None]
    return direct.best_of(problem, starts, tolerance=tolerance, max_steps=max_steps)
