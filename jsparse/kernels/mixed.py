"""A kernel of the distance, for points some of whose columns hold codes of categories."""

import operator
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Scalar
from ._arguments import one_table, two_points, two_tables
from .base import Kernel, Product, Scaled, Sum, mirrored
from .distances import matching, squared_distances
from .stationary import Stationary


def _column_numbers(columns: Iterable[int]) -> tuple[int, ...]:
    try:
        numbers = tuple(map(operator.index, columns))
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 0 or list(numbers) != sorted(set(numbers)):
        raise ValueError(
            f"columns: expected numbers of columns, increasing and at least one, got {columns!r}"
        )
    return numbers


class Mixed(Kernel):
    """`k(x, z) = profile(sum_j (x_j - z_j)^2 / l_j^2 + sum_c 2 [x_c != z_c] / l_c^2)`.

    The first sum is over columns of numbers, the second over columns of categories. The value is
    that of `kernel`, a function `profile` of the squared distance, for points whose categories are
    coded by indicator columns, divided by the lengthscale of their column. The indicators are never
    formed. So the kernel is positive semi-definite. With `RBF`, each column in which two points
    disagree divides the kernel by `exp(1 / l_c^2)`.

    Codes are only compared: they must not be scaled, and derivatives in them are 0. In all else the
    kernel is as differentiable as `kernel`.

    Attributes:
        kernel: a kernel of the distance, such as `RBF`, with one lengthscale or one for every
            column.
        columns: the numbers of the columns that hold codes (static).

    Raises:
        ValueError: for a kernel that is not a function of the distance, or columns that are not
            increasing; at evaluation, for points with too few columns.
    """

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True, converter=_column_numbers)

    def __check_init__(self) -> None:
        if not isinstance(self.kernel, Stationary):
            raise ValueError(
                "kernel: expected one of the distance, such as RBF(1.0), for columns of "
                f"categories, got {type(self.kernel).__name__}"
            )

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Evaluate the formula from the differences."""
        x, z = two_points(x, z)
        scale, codes = self._scale(x), self._codes(len(x))
        apart = jnp.where(codes, 2 * (x != z).astype(x.dtype), jnp.square(x - z))
        return self._stationary.profile(jnp.sum(apart / jnp.square(scale)))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Gram matrix, exactly symmetric and with an exact unit diagonal."""
        X = one_table(X)
        values = mirrored(self.cross_gram(X, X))
        return jnp.where(jnp.eye(X.shape[0], dtype=bool), 1, values)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Cross-Gram matrix by a matrix product and a pass over the codes; see `Kernel`."""
        X, Z = two_tables(X, Z)
        numbers, codes = np.flatnonzero(~self._codes(X.shape[1])), np.array(self.columns)
        scale = self._scale(X)
        s = squared_distances(
            X[:, numbers], Z[:, numbers], scale[numbers], snap=self._stationary._cusp
        )
        X_codes, Z_codes = X[:, codes], Z[:, codes]
        rates = 2 / jnp.square(scale[codes])
        for c in range(
            len(codes)
        ):  # one pass over the matrix, where a product would need indicators
            s = s + jnp.where(X_codes[:, c, None] == Z_codes[None, :, c], 0, rates[c])
        return self._stationary.profile(s)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Ones."""
        X = one_table(X)
        self._scale(X)
        return jnp.ones(X.shape[0], X.dtype)

    @property
    def _stationary(self) -> Stationary:
        assert isinstance(self.kernel, Stationary)
        return self.kernel

    def _scale(self, points: Float[Array, "*n d"]) -> Float[Array, " d"]:
        scale = matching(self._stationary.lengthscale, points)
        return jnp.broadcast_to(scale, points.shape[-1:])

    def _codes(self, d: int) -> np.ndarray:
        if self.columns[-1] >= d:
            raise ValueError(
                f"columns: expected numbers of the {d} columns of the points, got {self.columns}"
            )
        return np.isin(np.arange(d), self.columns)


def with_categories(kernel: Kernel, columns: tuple[int, ...]) -> Kernel:
    """Return the kernel such that all its parts compare codes in these columns.

    Raises:
        ValueError: for parts that are not functions of the distance, or that compare other columns.
    """
    match kernel:
        case Mixed() if kernel.columns == columns:
            return kernel
        case Stationary():
            return Mixed(kernel, columns)
        case Scaled():
            return Scaled(with_categories(kernel.kernel, columns), kernel.variance)
        case Sum() | Product():
            parts = (with_categories(part, columns) for part in (kernel.left, kernel.right))
            return type(kernel)(*parts)
    what = type(kernel).__name__
    if isinstance(kernel, Mixed):
        what = f"one that compares the columns {kernel.columns}"
    raise ValueError(
        f"kernel: expected one of the distance, such as RBF, as the columns {columns} hold "
        f"categories, got {what}; or give each category a column of its own"
    )


def categorical_columns(kernel: Any) -> tuple[int, ...]:
    """Return the columns in which a kernel compares codes; they must not be scaled.

    Raises:
        ValueError: if parts of the kernel treat them as numbers, or compare other columns.
    """
    columns = _all_columns(kernel)
    if columns:
        with_categories(kernel, columns)
        if any(isinstance(part, Stationary) for part in _bare(kernel)):
            raise ValueError(
                f"kernel: expected every part of it to compare codes in the columns {columns}, as "
                "one of them does"
            )
    return columns


def _all_columns(kernel: Any) -> tuple[int, ...]:
    match kernel:
        case Mixed():
            return kernel.columns
        case Scaled():
            return _all_columns(kernel.kernel)
        case Sum() | Product():
            return _all_columns(kernel.left) or _all_columns(kernel.right)
    return ()


def _bare(kernel: Kernel) -> list[Kernel]:
    match kernel:
        case Scaled():
            return _bare(kernel.kernel)
        case Sum() | Product():
            return _bare(kernel.left) + _bare(kernel.right)
    return [kernel]
