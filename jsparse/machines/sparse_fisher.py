"""Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A)."""

import functools
from collections.abc import Generator
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import like
from .._programs import compiled
from .._types import ScalarLike
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .checks import check_loss, columns_in_one_dtype
from .direct import DirectFit
from .direct_method import DirectMethod, check_descent
from .inner_problems import Fisher, LargeMargin
from .method import Task, setting
from .reduced_svm import ReducedSVM
from .stages import Chosen, Outcome, Stage, surrogate_stages


class SparseFisher(DirectMethod):
    """Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A), see `fit`.

    The kernel is tuned for the reduced support vector machine of the points that the descent starts
    from.

    Args:
        n_prototypes: see `DirectMethod`, as are all others but the last.
        selection: of the points that the descent starts from.
        starts: number of descents.
        sharing: of prototypes by problems.
        tolerance: of the descent.
        max_steps: of the descent.
        loss: of the support vector machine, "hinge" or "squared_hinge".
    """

    loss: Hinge = setting("hinge")

    name: ClassVar[str] = "sparse-fisher"
    title: ClassVar[str] = "sparse Fisher discriminant"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_loss(self.loss)

    def fit_targets(
        self,
        kernel: Kernel,
        starts: Float[Array, "s m d"],
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        weights: Float[Array, " n"] | Float[Array, "n l"],
    ) -> DirectFit:
        """See `fit`."""
        options: Any = {"tolerance": self.tolerance, "max_steps": self.max_steps}
        return fit(kernel, starts, C, X, y, weights, loss=self.loss, **options)

    def stages(self, problem: Any, search: Any) -> Generator[Stage, Outcome | None, Chosen]:
        """See `Method.stages`: the reduced machine first."""
        surrogate = ReducedSVM(self.n_prototypes, self.selection, self.starts, self.loss)
        return (yield from surrogate_stages(surrogate, problem, search))


def fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    C: ScalarLike | Float[Array, " l"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    loss: Hinge = "hinge",
    tolerance: ScalarLike = direct.TOLERANCE,
    max_steps: int = direct.MAX_STEPS,
) -> DirectFit:
    """Fit a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    The descent is on the negative largest eigenvalue of the discriminant in the span of the
    prototypes, with `mu = 1 / (C sum_i weight_i)`. Coefficients and intercept at its end are the
    support vector machine's with the same `C`, as at the end of the appendix.

    Args:
        kernel: see `slmc.fit`, as are all others but the loss.
        start: prototypes that the descent starts from, shape `m d` or `s m d`.
        C: positive, shape `()` or `l`.
        X: inputs, shape `n d`.
        y: targets -1 and +1, shape `n` or `n l`.
        weights: row weights, shape `n` or `n l`.
        loss: of the support vector machine, "hinge" or "squared_hinge" (static).
        tolerance: of the descent.
        max_steps: cap on its steps; the length of the history (static).

    Returns:
        `DirectFit`. Its history is of the descent's objective; its status is the worse of the
        descent and of the support vector machine.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.

    Raises:
        ValueError: as `slmc.fit`.
    """
    check_loss(loss)
    check_descent(tolerance, max_steps)
    start, C, X, y, weights = columns_in_one_dtype("start", start, C, X, y, weights, classes=True)
    return _fit(kernel, start, C, X, y, weights, like(tolerance, X), loss, max_steps)


@functools.partial(compiled, static_argnames=("loss", "max_steps"))
def _fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"],
    tolerance: Float[Array, ""],
    loss: Hinge,
    max_steps: int,
) -> DirectFit:
    problem = Fisher(kernel, X, y, C, weights)
    minimum = direct.best_of(problem, start, tolerance=tolerance, max_steps=max_steps)
    solved = LargeMargin(kernel, X, y, C, weights, loss).solve(minimum.Z)
    status = jnp.maximum(minimum.status, solved.status)
    return minimum._replace(solved=solved, status=status).machine(kernel)
