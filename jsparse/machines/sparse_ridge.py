"""Kernel ridge regression with optimised prototypes: the direct method (Wu et al. 2006)."""

from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float

from .._types import CLike, ScalarLike
from ..kernels import Kernel
from . import direct
from .direct import DirectFit
from .direct_method import DirectMethod
from .few_prototypes import fit_arrays
from .inner_problems import LeastSquares
from .method import FEW_C, Task


class SparseRidge(DirectMethod):
    """Kernel ridge regression (the LS-SVM) with optimised prototypes, see `fit`.

    For classification the targets are -1 and +1. `DirectMethod` describes the settings.
    """

    name: ClassVar[str] = "sparse-ridge"
    title: ClassVar[str] = "sparse ridge regression"
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    info_powers: ClassVar[dict[str, int]] = {"history": 2}

    def problem(self, kernel: Kernel, *data: Array) -> LeastSquares:
        """See `DirectMethod.problem`."""
        return LeastSquares(kernel, *data)


def fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    C: CLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_iterations: int = direct.MAX_ITERATIONS,
) -> DirectFit:
    """Fit kernel ridge regression with optimised prototypes: variable projection.

    The direct method (Wu et al. 2006, Section 2) minimises
    `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`, added up over targets, in coefficients and
    prototypes. Arguments, result and errors are as for `slmc.fit`, but targets may be any numbers.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.
    """
    method = SparseRidge(tolerance=tolerance, max_iterations=max_iterations)
    return fit_arrays(method, "start", kernel, start, C, X, y, weights, several=True)
