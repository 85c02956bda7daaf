"""Relevance of each column of a table in a kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ._repr import few_lines
from .kernels import Kernel, Mixed, Product, Projected, Scaled, Sum
from .kernels.stationary import Stationary
from .predictor.schema import Schema

# If rows differ in two columns by equal numbers of standard deviations, a column with 50 times the
# lengthscale adds 1/2500 of the squared distance. The gradient search switches columns off by
# giving them 100 times the longest lengthscale of its profile.
SWITCHED_OFF = 0.02
MOST_NAMES = 8  # number of names in a line


class Relevance(dict[str, float]):
    """The relevance of each column, and the groups of columns that share one lengthscale.

    The dict maps names to relevance, in the order of the columns: 1 for the most relevant column, 0
    for a column that is switched off. If a search finds no better kernel, columns share one
    lengthscale. They then have equal relevance, and are not ranked.

    Attributes:
        shared: groups of columns with one common lengthscale, the most relevant group first.
        switched_off: columns whose lengthscale is so long that they hardly change the kernel.
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
        """Return columns whose lengthscale no other column has, the most relevant first."""
        not_separate = {*self.switched_off, *(name for group in self.shared for name in group)}
        separate = (name for name in self if name not in not_separate)
        return tuple(sorted(separate, key=lambda name: -self[name]))

    def lines(self) -> list[str]:
        """Return the separate, shared and switched-off columns in words, a line for each group."""
        lines = []
        if self.separate:
            lines.append(_listed([f"{name} {self[name]:.2g}" for name in self.separate]))
        for group in self.shared:
            values = sorted({f"{self[name]:.2g}" for name in group})
            lines.append(
                f"{' or '.join(values[:3])} for {len(group)} columns that share one "
                f"lengthscale: {_listed(group)}"
            )
        if self.switched_off:
            lines.append(f"0, switched off: {_listed(self.switched_off)}")
        return lines

    def __repr__(self) -> str:
        return few_lines([f"Relevance of {len(self)} columns", *(f"  {s}" for s in self.lines())])


def _listed(names: Sequence[str]) -> str:
    hidden = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")


def relevance_of(
    kernel: Kernel, d: int, columns: Schema | None = None, names: Sequence[Any] | None = None
) -> Relevance:
    """Return the inverse lengthscale of each column, divided by the largest; see `Model.relevance`.

    For a linear metric `P'P` the inverse lengthscales are the roots of its diagonal, which state
    how fast the kernel falls along a column. `d` is the number of the kernel's inputs; a column of
    categories in a table of the schema `columns` may have several. With `names`, one for each
    input, the schema is not used. Raise ValueError for a common lengthscale of all columns, a
    kernel without lengthscales, or names that are not `d` different ones.
    """
    inverse_squares = _inverse_squares(kernel, d)
    if not _has_column_lengthscales(kernel):
        raise ValueError(
            "relevance: expected a kernel with one lengthscale for each column, got one common "
            f"lengthscale; start from a kernel such as RBF(jnp.full({d}, 1.0))"
        )
    if names is not None or columns is None:
        labels = [f"x{i}" for i in range(d)] if names is None else [str(name) for name in names]
        if len(labels) != d or len(set(labels)) < d:
            raise ValueError(f"names: expected {d} different names, got {labels}")
        by_column = dict(zip(labels, inverse_squares[:, None], strict=True))
    else:
        ends = np.cumsum([len(column.features) for column in columns.columns])
        names = [column.name for column in columns.columns]
        by_column = dict(zip(names, np.split(inverse_squares, ends[:-1]), strict=True))
    return _grouped(by_column)


def _grouped(inverse_squares: Mapping[str, Float[np.ndarray, " k"]]) -> Relevance:
    """Return the relevance of each column; group columns that share one lengthscale.

    `inverse_squares` has `1 / lengthscale^2` of each feature of a column. A column of categories
    has several features.
    """
    inverse_lengths = {name: float(np.sqrt(s.sum())) for name, s in inverse_squares.items()}
    largest = max(inverse_lengths.values())
    values = {name: value / largest for name, value in inverse_lengths.items()}
    switched_off = [name for name, value in values.items() if value < SWITCHED_OFF]
    values |= dict.fromkeys(switched_off, 0.0)
    by_inverse_square: dict[float, list[str]] = {}
    for name, s in inverse_squares.items():
        if name not in switched_off and np.all(s == s[0]):
            by_inverse_square.setdefault(float(s[0]), []).append(name)
    # The largest inverse square belongs to the shortest lengthscale.
    groups = [names for _, names in sorted(by_inverse_square.items(), reverse=True)]
    return Relevance(values, [group for group in groups if len(group) > 1], switched_off)


def _inverse_squares(kernel: Kernel, d: int) -> Float[np.ndarray, " d"]:
    """Return `1 / lengthscale^2` of each of the kernel's `d` inputs.

    Values of the factors of a product are added; values of a sum's terms are averaged, weighted by
    their variances. Raise ValueError for a kernel without lengthscales.
    """
    match kernel:
        case Stationary():
            return np.broadcast_to(1 / np.square(np.asarray(kernel.lengthscale, float)), d)
        case Mixed() | Scaled():
            return _inverse_squares(kernel.kernel, d)
        case Projected():
            inverse_squares = _inverse_squares(kernel.kernel, len(kernel.matrix))
            return inverse_squares @ np.square(np.asarray(kernel.matrix, float))
        case Product():  # the product of two RBF kernels is an RBF kernel with these values
            return _inverse_squares(kernel.left, d) + _inverse_squares(kernel.right, d)
        case Sum():
            parts = kernel.left, kernel.right
            squares = [_inverse_squares(part, d) for part in parts]
            return np.average(squares, axis=0, weights=[_variance(part) for part in parts])
    raise ValueError(
        "relevance: expected a kernel of distances, such as RBF, or sums, multiples and products "
        f"of such kernels, got {type(kernel).__name__}, which has no lengthscales"
    )


def _variance(kernel: Kernel) -> float:
    """Return `k(x, x)` of a stationary kernel."""
    match kernel:
        case Scaled():
            return float(kernel.variance) * _variance(kernel.kernel)
        case Product():
            return _variance(kernel.left) * _variance(kernel.right)
        case Sum():
            return _variance(kernel.left) + _variance(kernel.right)
    return _variance(kernel.kernel) if isinstance(kernel, Projected) else 1.0


def _has_column_lengthscales(kernel: Kernel) -> bool:
    """Return whether a part of the kernel has a lengthscale for each column, or a matrix."""
    match kernel:
        case Stationary():
            return kernel.lengthscale.ndim == 1
        case Projected():
            return True
        case Mixed() | Scaled():
            return _has_column_lengthscales(kernel.kernel)
        case Sum() | Product():
            return _has_column_lengthscales(kernel.left) or _has_column_lengthscales(kernel.right)
    return False
