"""Relevance of each column of a table in a kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ._repr import few_lines
from .data.schema import Schema
from .kernels import Kernel, Mixed, Product, Projected, Scaled, Sum
from .kernels.stationary import Stationary

# Of two columns in which rows differ by as many standard deviations, one with 50 times the other's
# lengthscale adds 1/2500 as much to the squared distance. The gradient search gives columns that it
# leaves out 100 times the longest lengthscale of its profile.
SWITCHED_OFF = 0.02
MOST_NAMES = 8  # written out in a line


class Relevance(dict[str, float]):
    """The relevance of each column, and the groups of columns that share one lengthscale.

    A dict from name to relevance, in the order of the columns: 1 for the most relevant column, 0
    for a column that is switched off. A search that found no better kernel leaves columns with one
    common lengthscale. Their relevance is then one number for all of them, and ranks none of them
    above another.

    Attributes:
        shared: groups of columns with one common lengthscale, the most relevant group first.
        switched_off: columns whose lengthscale is so long that the kernel does not see them.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        shared: Sequence[Sequence[str]] = (),
        switched_off: Sequence[str] = (),
    ) -> None:
        super().__init__(values)
        self.shared = tuple(tuple(group) for group in shared)
        self.switched_off = tuple(switched_off)

    @property
    def separate(self) -> tuple[str, ...]:
        """Columns with a lengthscale that no other column has, the most relevant first."""
        rest = {*self.switched_off, *(name for group in self.shared for name in group)}
        return tuple(sorted((name for name in self if name not in rest), key=lambda n: -self[n]))

    def lines(self) -> list[str]:
        """Return the three kinds of columns in words, a line for each that there is."""
        lines = []
        if self.separate:
            first = [f"{name} {self[name]:.2g}" for name in self.separate[:MOST_NAMES]]
            lines.append(_listed(first, len(self.separate)))
        for group in self.shared:
            values = sorted({f"{self[name]:.2g}" for name in group})
            names = _listed(group[:MOST_NAMES], len(group))
            lines.append(
                f"{' or '.join(values[:3])} for {len(group)} columns that share one "
                f"lengthscale: {names}"
            )
        if self.switched_off:
            off = self.switched_off
            lines.append(f"0, switched off: {_listed(off[:MOST_NAMES], len(off))}")
        return lines

    def __repr__(self) -> str:
        return few_lines([f"Relevance of {len(self)} columns", *(f"  {s}" for s in self.lines())])


def _listed(first: Sequence[str], count: int) -> str:
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return ", ".join(first) + more


def relevance_of(
    kernel: Kernel, d: int, columns: Schema | None = None, names: Sequence[Any] | None = None
) -> Relevance:
    """Return the inverse lengthscale of each column, divided by the largest.

    Of a linear metric `P'P`, the roots of its diagonal: how fast the kernel falls along a column.

    Args:
        kernel: of distances, or sums, multiples and products of such.
        d: number of columns as the kernel takes them.
        columns: those of the table, whose categories may have a column each.
        names: of the `d` columns; by default those of `columns`, or x0, x1, ..

    Returns:
        Name to relevance, in the order of the columns, and the columns that share a lengthscale.

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
        parts = dict(zip(labels, squares[:, None], strict=True))
    else:
        ends = np.cumsum([len(column.features) for column in columns.columns])
        names = [column.name for column in columns.columns]
        parts = dict(zip(names, np.split(squares, ends[:-1]), strict=True))
    return _grouped(parts)


def _grouped(parts: Mapping[str, Float[np.ndarray, " k"]]) -> Relevance:
    """From the inverse squares of each column's lengthscales."""
    lengths = {name: float(np.sqrt(part.sum())) for name, part in parts.items()}
    most = max(lengths.values())
    values = {name: value / most for name, value in lengths.items()}
    off = [name for name, value in values.items() if value < SWITCHED_OFF]
    values |= dict.fromkeys(off, 0.0)
    by_length: dict[float, list[str]] = {}
    for name, part in parts.items():
        if name not in off and np.all(part == part[0]):
            by_length.setdefault(float(part[0]), []).append(name)
    groups = [by_length[length] for length in sorted(by_length, reverse=True)]
    return Relevance(values, [group for group in groups if len(group) > 1], off)


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
