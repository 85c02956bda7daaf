"""A kernel of the distance for points with columns of numbers and columns of category codes."""

import operator
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Scalar
from ._arguments import one_table, two_points, two_tables
from .base import Combined, Kernel, map_parts, mirrored, parts_of
from .distances import matching, squared_distances
from .stationary import Stationary


def _column_numbers(columns: Iterable[int]) -> tuple[int, ...]:
    """Return the columns as a tuple; raise ValueError unless they are increasing indices."""
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

    The first sum is over columns of numbers, the second over columns of categories. `profile` is
    the function of the squared distance that defines `kernel`. The value equals `kernel` at points
    whose categories are coded by indicator columns, divided by the lengthscale of their column. The
    kernel is therefore positive semi-definite, but the indicators are never formed. With `RBF`,
    each category column in which two points differ divides the kernel by `exp(1 / l_c^2)`.

    Codes are only compared, so they must not be scaled, and derivatives in them are 0. In all other
    arguments the kernel is as differentiable as `kernel`.

    Attributes:
        kernel: a kernel of the distance, such as `RBF`, with one lengthscale or one for every
            column.
        columns: the indices of the columns that hold category codes (static).

    Raises:
        ValueError: for a kernel that is not a function of the distance, or columns that are not
            increasing; at evaluation, for points whose number of columns does not fit.
    """

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True, converter=_column_numbers)

    def __check_init__(self) -> None:
        if not isinstance(self.kernel, Stationary):
            raise ValueError(
                "kernel: expected a kernel of the distance, such as RBF(1.0), for columns of "
                f"categories, got {type(self.kernel).__name__}"
            )

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `k(x, z)` by the formula above."""
        x, z = two_points(x, z)
        scale, is_code = self._lengthscales(x), self._is_code(len(x))
        squares = jnp.where(is_code, 2 * (x != z).astype(x.dtype), jnp.square(x - z))
        return self._stationary.profile(jnp.sum(squares / jnp.square(scale)))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Return the Gram matrix, exactly symmetric and with an exact unit diagonal."""
        X = one_table(X)
        values = mirrored(self.cross_gram(X, X))
        return jnp.where(jnp.eye(X.shape[0], dtype=bool), 1, values)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return `k(x_i, z_j)`, by a matrix product and an elementwise pass per column of codes."""
        X, Z = two_tables(X, Z)
        numbers, codes = np.flatnonzero(~self._is_code(X.shape[1])), np.array(self.columns)
        scale = self._lengthscales(X)
        s = squared_distances(
            X[:, numbers], Z[:, numbers], scale[numbers], snap=self._stationary._cusp
        )
        X_codes, Z_codes = X[:, codes], Z[:, codes]
        rates = 2 / jnp.square(scale[codes])
        # Each code takes one pass over the matrix; a matrix product would need indicators.
        for c in range(len(codes)):
            s = s + jnp.where(X_codes[:, c, None] == Z_codes[None, :, c], 0, rates[c])
        return self._stationary.profile(s)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the diagonal of the Gram matrix, `n` ones."""
        X = one_table(X)
        self._lengthscales(X)  # checks their number
        return jnp.ones(X.shape[0], X.dtype)

    @property
    def _stationary(self) -> Stationary:
        assert isinstance(self.kernel, Stationary)
        return self.kernel

    def _lengthscales(self, points: Float[Array, "*n d"]) -> Float[Array, " d"]:
        scale = matching(self._stationary.lengthscale, points)
        return jnp.broadcast_to(scale, points.shape[-1:])

    def _is_code(self, d: int) -> np.ndarray:
        """Return whether each of the `d` columns of the points holds codes."""
        if self.columns[-1] >= d:
            raise ValueError(
                f"columns: expected numbers of the {d} columns of the points, got {self.columns}"
            )
        return np.isin(np.arange(d), self.columns)


def with_categories(kernel: Kernel, columns: tuple[int, ...]) -> Kernel:
    """Return the kernel with its kernels of the distance made to compare codes in these columns.

    Raises:
        ValueError: if a part is not a function of the distance, or compares codes in other columns.
    """
    match kernel:
        case Mixed() if kernel.columns == columns:
            return kernel
        case Stationary():
            return Mixed(kernel, columns)
        case Combined():
            return map_parts(lambda part: with_categories(part, columns), kernel)
    what = type(kernel).__name__
    if isinstance(kernel, Mixed):
        what = f"a kernel that compares the columns {kernel.columns}"
    raise ValueError(
        f"kernel: expected a kernel of the distance, such as RBF, as columns {columns} hold "
        f"categories, got {what}; or code each category by an indicator column"
    )


def categorical_columns(kernel: Any) -> tuple[int, ...]:
    """Return the indices of the columns in which a kernel compares codes; () if there are none.

    Raises:
        ValueError: if one part of the kernel compares codes, and another part treats the columns as
            numbers or compares codes in other columns.
    """
    leaves = _leaves(kernel)
    columns = next((leaf.columns for leaf in leaves if isinstance(leaf, Mixed)), ())
    if columns:
        with_categories(kernel, columns)
        if any(isinstance(leaf, Stationary) for leaf in leaves):
            raise ValueError(
                f"kernel: expected every part to compare codes in the columns {columns}, as one "
                "part does"
            )
    return columns


def _leaves(kernel: Any) -> list[Any]:
    """Return the kernels that sums, products and multiples combine, or the kernel alone."""
    if isinstance(kernel, Combined):
        return [leaf for part in parts_of(kernel).values() for leaf in _leaves(part)]
    return [kernel]
