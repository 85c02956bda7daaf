"""Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A)."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import CLike, ScalarLike
from ..kernels import Kernel
from ..solvers.interior_point import Hinge
from . import direct
from .direct import DirectFit
from .few_prototypes import fit_arrays
from .inner_problems import Fisher, LargeMargin
from .slmc import SLMC


class SparseFisher(SLMC):
    """Sparse kernel Fisher discriminants (Wu et al. 2006, Appendix A), see `fit`.

    The descent finds the prototypes of the discriminant. The machine is a support vector machine on
    these prototypes. `DirectMethod` describes the settings that are not listed.

    Args:
        loss: loss of the support vector machine, "hinge" or "squared_hinge".
    """

    name: ClassVar[str] = "sparse-fisher"
    title: ClassVar[str] = "sparse Fisher discriminant"

    def problem(self, kernel: Kernel, *data: Array) -> Fisher:
        """See `DirectMethod.problem`."""
        return Fisher(kernel, *data)

    def descend(self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array) -> DirectFit:
        """See `DirectMethod.descend`; then fit a support vector machine on the prototypes."""
        fit = super().descend(kernel, starts, *data)
        svm, Z = LargeMargin(kernel, *data, loss=self.loss), fit.expansion.prototypes
        solved = svm.solve(Z)
        status = jnp.maximum(fit.status, solved.status)
        return fit._replace(expansion=svm.expansion(Z, solved), status=status)


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
    """Fit a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    The descent maximises the largest eigenvalue of the discriminant in the span of the prototypes.
    The ridge `mu = 1 / (C sum_i weight_i)` is added to the variance within the classes. A support
    vector machine with the same `C` and the given `loss` is then fitted on the prototypes, as at
    the end of the appendix. Arguments and errors are as for `slmc.fit`.

    Returns:
        `DirectFit`. Its history holds the negative eigenvalues. Its status is the worse status of
        the descent and of the support vector machine.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.
    """
    method = SparseFisher(loss=loss, tolerance=tolerance, max_iterations=max_iterations)
    return fit_arrays(method, "start", kernel, start, C, X, y, weights, several=True)
