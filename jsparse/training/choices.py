"""Kernels by name, and the number of folds where the user gives none."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .. import kernels
from .._arguments import whole_number
from ..kernels import Kernel
from ..kernels.mixed import with_categories
from ..search.strategies import Search

KernelLike = str | Kernel | Callable[..., Any] | Sequence[Any]
KERNELS = {
    "rbf": kernels.RBF,
    "laplacian": kernels.Laplacian,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rational_quadratic": kernels.RationalQuadratic,
}


def make_kernel(
    kernel: KernelLike, d: int, codes: tuple[int, ...] = (), *, per_column: bool = False
) -> Kernel:
    """Return a kernel; of a name with the scale that `d` columns of standardised inputs ask for.

    Several kernels make a dictionary with atoms of each. With `per_column` a kernel by name has a
    lengthscale for each column.

    Raises:
        ValueError: for what is no kernel, or none for the columns `codes`, which hold categories.
    """
    if codes:
        return with_categories(make_kernel(kernel, d, per_column=per_column), codes)
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, list | tuple) and kernel:
        return kernels.Mixture(tuple(make_kernel(one, d) for one in kernel))
    if callable(kernel) and not isinstance(kernel, type):
        return kernels.Custom(_without_parameters(kernel))
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel](np.full(d, math.sqrt(d)) if per_column else math.sqrt(d))
    if isinstance(kernel, str) and kernel == "linear":
        return kernels.Linear()
    if isinstance(kernel, str) and kernel == "polynomial":
        return kernels.Polynomial(3, 1.0 / d, 1.0)
    names = [*KERNELS, "linear", "polynomial", "auto"]
    raise ValueError(
        f"kernel: expected one of {', '.join(names)}, a Kernel or a function of two points, got "
        f"{kernel!r}"
    )


def template_of(kernel: KernelLike, d: int, search: Search, codes: tuple[int, ...] = ()) -> Kernel:
    """Return the kernel whose leaves a search varies: of a name the one that the search asks for.

    Until rows are known, "auto" stands for "rbf", and a matrix of a rank for the first columns.

    Raises:
        ValueError: as `make_kernel`, for kernels to be raced where columns hold categories, or for
            a rank that is more than the columns or of a kernel that is not of the distance.
    """
    if isinstance(kernel, str) and kernel == "auto":
        if codes:
            raise ValueError(
                'kernel: expected one by its name where columns hold categories, got "auto"'
            )
        kernel = "rbf"
    if not search.tune_kernel or search.rank is None:
        per_column = search.tune_kernel and search.per_column
        return make_kernel(kernel, d, codes, per_column=per_column)
    if codes or not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(
            f"rank: expected None but for columns of numbers and one of {', '.join(KERNELS)}; a "
            "kernel object can be a kernels.Projected itself"
        )
    rank = whole_number("rank", search.rank, 1, d, "the number of columns")
    return projected(kernel, np.eye(rank, d))


def projected(name: KernelLike, matrix: Float[np.ndarray, "r d"]) -> Kernel:
    """Return a kernel by its name behind a linear map."""
    return kernels.Projected(make_kernel(name, matrix.shape[1]), matrix)


@functools.cache  # the same function is the same kernel, and compiles no program again
def _without_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, x, z: function(x, z)


def default_folds(n: int) -> int:
    """Return the number of folds of `n` rows where the user gives none."""
    return min(10, n)
