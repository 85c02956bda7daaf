"""Kernel ridge regression, the LS-SVM, of the best prototypes (Wu et al. 2006)."""

from collections.abc import Generator
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float

from .._types import ScalarLike
from ..features import FeatureMap
from ..kernels import Kernel
from . import direct
from .direct import DirectFit
from .direct_method import DirectMethod
from .few_prototypes import fit_arrays
from .fixed_size import FixedSize
from .inner_problems import LeastSquares
from .method import FEW_C, Task
from .stages import Chosen, Outcome, Stage, surrogate_stages


class SparseRidge(DirectMethod):
    """Kernel ridge regression, the LS-SVM, of the best prototypes, see `fit`.

    The targets of classes are -1 and +1. The kernel is tuned for the fixed-size LS-SVM of the
    points that the descent starts from.

    Args:
        n_prototypes: see `DirectMethod`, as are all others.
        selection: of the points that the descent starts from.
        starts: number of descents.
        sharing: of prototypes by problems, and by several real targets.
        tolerance: of the descent.
        max_steps: of the descent.
    """

    name: ClassVar[str] = "sparse-ridge"
    title: ClassVar[str] = "sparse ridge regression"
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    info_powers: ClassVar[dict[str, int]] = {"history": 2}

    def problem(self, kernel: Kernel, *data: Array) -> LeastSquares:
        """See `DirectMethod.problem`."""
        return LeastSquares(kernel, *data)

    def stages(self, problem: Any, search: Any) -> Generator[Stage, Outcome | None, Chosen]:
        """See `Method.stages`: the fixed-size LS-SVM of the first start before it."""
        surrogate = _FirstStart(self.n_prototypes)
        return (yield from surrogate_stages(surrogate, problem, search))


class _FirstStart(FixedSize):
    """The fixed-size LS-SVM of the points of the first of several starts."""

    def features(self, kernel: Kernel, points: Float[Array, "m d"]) -> FeatureMap:
        """See `FromSums.features`."""
        return super().features(kernel, points[: self.largest])


def fit(
    kernel: Kernel,
    start: Float[Array, "*s m d"],
    C: ScalarLike | Float[Array, " l"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_steps: int = direct.MAX_STEPS,
) -> DirectFit:
    """Fit kernel ridge regression of the best prototypes: variable projection.

    The direct method (Wu et al. 2006, Section 2) for the objective
    `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`, summed over targets.

    Args:
        kernel: see `slmc.fit`, as are all others but the targets.
        start: prototypes that the descent starts from, shape `m d` or `s m d`.
        C: positive, shape `()` or `l`.
        X: inputs, shape `n d`.
        y: targets, shape `n`; or several that share their prototypes, shape `n l`.
        weights: row weights, shape `n` or `n l`.
        tolerance: of the descent.
        max_steps: cap on its steps; the length of the history (static).

    Returns:
        `DirectFit`, with the status of `direct.minimise`.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.

    Raises:
        ValueError: as `slmc.fit`, but for the loss, of which there is one, and for any real target.
    """
    method = SparseRidge(tolerance=tolerance, max_steps=max_steps)
    return fit_arrays(method, kernel, start, C, X, y, weights, several=True)
