"""How much each column of a table has to say in a kernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .data.schema import Schema
from .kernels import Kernel, Mixed, Product, Projected, Scaled, Sum
from .kernels.stationary import Stationary


def relevance_of(
    kernel: Kernel, d: int, columns: Schema | None = None, names: Sequence[Any] | None = None
) -> dict[str, float]:
    """The inverse lengthscale of each column over the largest of them.

    Of a linear metric `P'P`, the roots of its diagonal: how fast the kernel falls along a column.

    Args:
        kernel: of distances, or sums, multiples and products of such.
        d: number of columns as the kernel takes them.
        columns: those of the table, whose categories may have a column each.
        names: of the `d` columns; by default those of `columns`, or x0, x1, ..

    Returns:
        Name to relevance, in the order of the columns.

    Raises:
        ValueError: for one lengthscale for all columns, kernels that have none, or another number
            of names.
    """
    squares = _inverse_squares(kernel, d)
    if not _has_one_each(kernel):
        raise ValueError(
            "relevance: expected a kernel with one lengthscale for each column, got one for all, "
            f"which tells none from another; start from one such as RBF(jnp.full({d}, 1.0))"
        )
    if names is not None or columns is None:
        labels = [f"x{i}" for i in range(d)] if names is None else [str(name) for name in names]
        if len(labels) != d or len(set(labels)) < d:
            raise ValueError(f"names: expected {d} different ones, got {labels}")
        found = dict(zip(labels, np.sqrt(squares).tolist(), strict=True))
    else:
        ends = np.cumsum([len(column.features) for column in columns.columns])
        parts = np.split(squares, ends[:-1])
        pairs = zip(columns.columns, parts, strict=True)
        found = {column.name: float(np.sqrt(part.sum())) for column, part in pairs}
    most = max(found.values())
    return {name: value / most for name, value in found.items()}


def _inverse_squares(kernel: Kernel, d: int) -> Float[np.ndarray, " d"]:
    """`1 / lengthscale^2` of each column."""
    match kernel:
        case Stationary():
            return np.broadcast_to(1 / np.square(np.asarray(kernel.lengthscale, float)), d)
        case Mixed():
            return _inverse_squares(kernel.kernel, d)
        case Scaled():
            return _inverse_squares(kernel.kernel, d)
        case Projected():
            lengths = _inverse_squares(kernel.kernel, len(kernel.matrix))
            return lengths @ np.square(np.asarray(kernel.matrix, float))
        case Product():  # of two RBF kernels: that with these lengthscales
            return _inverse_squares(kernel.left, d) + _inverse_squares(kernel.right, d)
        case Sum():
            parts = [_inverse_squares(part, d) for part in (kernel.left, kernel.right)]
            return np.average(
                parts, axis=0, weights=[_variance(kernel.left), _variance(kernel.right)]
            )
    raise ValueError(
        "relevance: expected a kernel of distances, such as RBF, or sums, multiples and products "
        f"of such, got {type(kernel).__name__}, which has no lengthscales"
    )


def _variance(kernel: Kernel) -> float:
    """`k(x, x)`, of a kernel of distances."""
    match kernel:
        case Scaled():
            return float(kernel.variance) * _variance(kernel.kernel)
        case Product():
            return _variance(kernel.left) * _variance(kernel.right)
        case Sum():
            return _variance(kernel.left) + _variance(kernel.right)
    return _variance(kernel.kernel) if isinstance(kernel, Projected) else 1.0


def _has_one_each(kernel: Kernel) -> bool:
    match kernel:
        case Stationary():
            return kernel.lengthscale.ndim == 1
        case Projected():
            return True
        case Mixed():
            return _has_one_each(kernel.kernel)
        case Scaled():
            return _has_one_each(kernel.kernel)
        case Sum() | Product():
            return _has_one_each(kernel.left) or _has_one_each(kernel.right)
    return False
