"""Construction of kernels from users' arguments, and the default number of folds."""

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
    """Return the kernel for a user's `kernel` argument, for inputs of `d` columns.

    The argument is a name, a kernel, a function of two points, or a list of these for a `Mixture`.
    A stationary kernel by name has lengthscale `sqrt(d)`, which suits standardised inputs. If
    `per_column`, it has one lengthscale for each column. The columns `codes` hold codes of
    categories. For any other argument, or a kernel that does not support categories, raise a
    `ValueError`.
    """
    if codes:
        return with_categories(make_kernel(kernel, d, per_column=per_column), codes)
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, list | tuple) and kernel:
        return kernels.Mixture(tuple(make_kernel(part, d) for part in kernel))
    if callable(kernel) and not isinstance(kernel, type):
        return kernels.Custom(_with_unused_parameters(kernel))
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
    """Return the kernel whose leaves a search varies, for a user's `kernel` argument.

    A kernel by name gets the structure that the search needs: one lengthscale, one for each column,
    or a matrix. Before the rows are known, "auto" stands for an RBF kernel, and a rank for a matrix
    that selects the first columns. After the rows have been read, `training.run` replaces both.
    For a rank outside 1 to `d`, or a rank with columns `codes` of categories or with a kernel that
    is not in `KERNELS`, raise a `ValueError`.
    """
    if isinstance(kernel, str) and kernel == "auto":
        kernel = "rbf"
    if not search.tune_kernel or search.rank is None:
        per_column = search.tune_kernel and search.per_column
        return make_kernel(kernel, d, codes, per_column=per_column)
    if codes or not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(
            f"rank: expected None unless all columns are numbers and kernel is one of "
            f"{', '.join(KERNELS)}, got {search.rank!r}; a kernel object can be a kernels.Projected"
        )
    rank = whole_number("rank", search.rank, 1, d, "the number of columns")
    return projected(kernel, np.eye(rank, d))


def projected(name: KernelLike, matrix: Float[np.ndarray, "r d"]) -> Kernel:
    """Return the named kernel of inputs that the matrix has mapped from `d` to `r` columns."""
    return kernels.Projected(make_kernel(name, matrix.shape[1]), matrix)


# The cache returns one object for each function: a static field of `Custom`. A new object would
# compile all programs again.
@functools.cache
def _with_unused_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of parameters, which it ignores, and two points."""
    return lambda _, x, z: function(x, z)
