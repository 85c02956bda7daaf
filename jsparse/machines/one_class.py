"""Sparse one-class support vector machines (Wu et al. 2006, Section 4.4)."""

import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_array, is_concrete
from .._types import ScalarLike
from ..kernels import Kernel
from . import direct
from .direct import DirectFit
from .direct_method import DirectMethod
from .few_prototypes import fit_arrays
from .inner_problems import OneClass


class _Descent(DirectMethod):
    """The direct method with the objective of the one-class support vector machine."""

    def problem(self, kernel: Kernel, *data: Array) -> OneClass:
        """See `DirectMethod.problem`; `C` is `nu`, and the targets have no effect."""
        X, _, nu, weights = data
        return OneClass(kernel, X, nu, weights)


def fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    nu: ScalarLike,
    X: Float[Array, "n d"],
    weights: Float[Array, " n"] | None = None,
    *,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_iterations: int = direct.MAX_ITERATIONS,
) -> DirectFit:
    """Fit a sparse one-class support vector machine (Wu et al. 2006, Section 4.4).

    The machine's values are negative at outliers. `nu`, above 0 and below 1, limits the weighted
    fraction of rows that are outliers. Other arguments, the result and errors are as for
    `slmc.fit`.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.
    """
    if is_concrete(nu) and not 0 < float(nu) < 1:
        raise ValueError(f"nu: expected a number above 0 and below 1, got {nu}")
    method = _Descent(tolerance=tolerance, max_iterations=max_iterations)
    y = as_array(np.ones(len(X)))
    return fit_arrays(method, "start", kernel, start, nu, X, y, weights, several=True)
