"""The fixed-size LS-SVM as the cheaper method for which kernels of other methods are tuned."""

from typing import Any

from .fixed_size import FixedSize
from .method import Metric


def fixed_size_surrogate(
    problem: Any, n_prototypes: int, *, metric: Metric = "mse", step: int = 1
) -> Any:
    """Return the tuning problem of a fixed-size LS-SVM on points of another tuning problem.

    Args:
        problem: the tuning problem of the other method. Its points are the rows that may become
            prototypes.
        n_prototypes: number of prototypes of the LS-SVM, limited to the number of points.
        metric: the metric to minimise, unless the user stated one. Squared errors are smoother in
            the kernel than the share of wrong classes.
        step: take every `step`-th point as a prototype, from the first on.
    """
    m = min(n_prototypes, len(problem.points))
    return problem.for_surrogate(FixedSize(m), slice(0, m * step, step), metric)
