"""Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A)."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import ScalarLike
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .direct import DirectFit
from .few_prototypes import fit_arrays
from .inner_problems import Fisher, LargeMargin
from .slmc import SLMC


class SparseFisher(SLMC):
    """Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A), see `fit`.

    The kernel is tuned for the reduced support vector machine of the points that the descent starts
    from.

    Args:
        n_prototypes: see `SLMC`, as are all others.
        loss: of the support vector machine, "hinge" or "squared_hinge".
    """

    name: ClassVar[str] = "sparse-fisher"
    title: ClassVar[str] = "sparse Fisher discriminant"

    def problem(self, kernel: Kernel, *data: Array) -> Fisher:
        """See `DirectMethod.problem`."""
        return Fisher(kernel, *data)

    def descend(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """See `DirectMethod.descend`; the machine is the support vector machine's."""
        fit = super().descend(kernel, starts, *data)
        svm, Z = LargeMargin(kernel, *data, loss=self.loss), fit.expansion.prototypes
        solved = svm.solve(Z)
        status = jnp.maximum(fit.status, solved.status)
        return fit._replace(expansion=svm.expansion(Z, solved), status=status)


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

    Arguments and errors are those of `slmc.fit`; the loss is the support vector machine's.

    Returns:
        `DirectFit`. Its history is of the descent's objective; its status is the worse of the
        descent and of the support vector machine.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.
    """
    method = SparseFisher(loss=loss, tolerance=tolerance, max_steps=max_steps)
    return fit_arrays(method, "start", kernel, start, C, X, y, weights, several=True)
