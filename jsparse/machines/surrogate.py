"""The fixed-size LS-SVM as the cheaper method for which kernels of other methods are tuned."""

from typing import Any

from .fixed_size import FixedSize
from .method import Metric


def fixed_size_surrogate(
    problem: Any, n_prototypes: int, *, metric: Metric = "mse", step: int = 1
) -> Any:
    """Return the tuning problem of a fixed-size LS-SVM on all rows of another tuning problem.

    The prototypes are at most `n_prototypes` points of that problem, every `step`-th from the
    first. The search minimises the user's metric. If the user stated none, or the pinball loss, it
    minimises `metric`: squared errors are smoother in the kernel than the share of wrong classes.
    """
    m = min(n_prototypes, len(problem.points))
    return problem.for_surrogate(FixedSize(m), slice(0, m * step, step), metric)
