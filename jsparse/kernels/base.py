"""The kernel base class, sums and products of kernels, and user-defined kernels."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import as_float, like
from .._repr import short_repr
from .._types import Scalar, ScalarLike
from ._arguments import (
    check_positive,
    check_scalar,
    hyperparameter,
    one_table,
    two_points,
    two_tables,
)


class Kernel(eqx.Module):
    """A positive semi-definite function of two points.

    A kernel is a pytree whose leaves are its hyper-parameters: `jit` does not recompile when they
    change, `vmap` batches over them and `grad` differentiates in them. Hyper-parameters are cast to
    the dtype of the points, which is the dtype of the results. A subclass must define `__call__`.
    It may override the other methods by matrix products.
    """

    __repr__ = short_repr

    # With this, NumPy's scalars and arrays leave `*` to this class, as JAX's do.
    __array_ufunc__ = None

    # Whether the values stay equal if columns of zeros are appended to all points.
    ignores_zero_columns: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `k(x, z)` for two points, shapes `d` and `d`.

        Raises:
            ValueError: if the points are not two vectors of equal length, or a hyper-parameter
                with one value per dimension has another length.
        """

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Return `k(x_i, x_j)` for the rows of `X (n, d)`, exactly symmetric, shape `n n`.

        Derivatives and errors are as in `cross_gram`.
        """
        return mirrored(self.cross_gram(X, X))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return `k(x_i, z_j)` for the rows of `X (n, d)` and `Z (m, d)`, shape `n m`.

        Differentiable twice in `X`, `Z` and the hyper-parameters, in both modes, also at coincident
        points. A row depends only on its `x_i` and on `Z`, so rows may come in blocks.

        Raises:
            ValueError: if `X` and `Z` are not two tables with equal numbers of columns, or a
                hyper-parameter with one value per dimension has another length.
        """
        X, Z = two_tables(X, Z)
        return jax.vmap(lambda x: jax.vmap(lambda z: self(x, z))(Z))(X)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return `k(x_i, x_i)` for the rows of `X (n, d)`, shape `n`; errors as in `cross_gram`."""
        return jax.vmap(lambda x: self(x, x))(one_table(X))

    def of_prototypes(self, indices: Int[np.ndarray, " k"]) -> "Kernel":
        """Return the kernel of an expansion that keeps the prototypes with these indices.

        Only a `Mixture`, or a kernel with a mixture in it, differs from prototype to prototype.
        """
        return map_parts(lambda part: part.of_prototypes(indices), self)

    def __add__(self, other: "Kernel") -> "Kernel":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel | ScalarLike") -> "Kernel":
        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, int | float | np.number | np.ndarray | jax.Array):
            return Scaled(self, other)
        return NotImplemented

    def __rmul__(self, other: ScalarLike) -> "Kernel":
        return self * other


def parts_of(kernel: Kernel) -> dict[str, Kernel]:
    """Return the fields of a kernel that hold a kernel, by name."""
    fields = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}
    return {name: value for name, value in fields.items() if isinstance(value, Kernel)}


def map_parts(change: Callable[[Kernel], Kernel], kernel: Kernel) -> Kernel:
    """Return the kernel with `change` applied to each field that holds a kernel."""
    parts = {name: change(part) for name, part in parts_of(kernel).items()}
    return dataclasses.replace(kernel, **parts) if parts else kernel


def check_kernel(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a kernel."""
    if not isinstance(value, Kernel):
        raise ValueError(f"{name}: expected a Kernel, such as RBF(1.0), got {value!r}")


def mirrored(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Mirror the lower triangle of a Gram matrix, which makes it exactly symmetric.

    Half the sum of the matrix and its transpose is not exactly symmetric, because a fused
    multiply-add rounds only one of the two terms.
    """
    row = jnp.arange(gram.shape[0])
    return jnp.where(row[:, None] >= row[None, :], gram, gram.T)


class Combined(Kernel):
    """A kernel whose values are a function of the values of its parts: the kernels it holds."""

    @abc.abstractmethod
    def combine(self, *values: Array) -> Array:
        """Return the values of the kernel, given the values of each part."""

    @property
    def ignores_zero_columns(self) -> bool:
        """Whether columns of zeros leave the values unchanged, as they do for every part."""
        return all(part.ignores_zero_columns for part in parts_of(self).values())

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Combine the values `part(x, z)` of the parts."""
        return self.combine(*(part(x, z) for part in parts_of(self).values()))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Combine the Gram matrices of the parts."""
        return self.combine(*(part.gram(X) for part in parts_of(self).values()))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Combine the cross-Gram matrices of the parts."""
        return self.combine(*(part.cross_gram(X, Z) for part in parts_of(self).values()))

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Combine the diagonals of the parts."""
        return self.combine(*(part.diagonal(X) for part in parts_of(self).values()))


class Pair(Combined):
    """A kernel that combines two kernels."""

    left: Kernel
    right: Kernel

    def __check_init__(self) -> None:
        check_kernel("left", self.left)
        check_kernel("right", self.right)


class Sum(Pair):
    """`k(x, z) = left(x, z) + right(x, z)`."""

    def combine(self, left: Array, right: Array) -> Array:
        """Return the sum."""
        return left + right


class Product(Pair):
    """`k(x, z) = left(x, z) right(x, z)`."""

    def combine(self, left: Array, right: Array) -> Array:
        """Return the elementwise product."""
        return left * right


class Scaled(Combined):
    """A kernel times a number, `variance`; `2.0 * kernel` and `kernel * 2.0` construct it.

    Attributes:
        kernel: the kernel that is scaled.
        variance: positive, shape `()`.

    Raises:
        ValueError: if `kernel` is not a kernel, or if the variance is not a scalar or (outside
            `jit`) not positive and finite.
    """

    kernel: Kernel
    variance: Scalar = eqx.field(converter=hyperparameter)

    def __check_init__(self) -> None:
        check_kernel("kernel", self.kernel)
        check_scalar("variance", self.variance)
        check_positive("variance", self.variance)

    def combine(self, values: Array) -> Array:
        """Return the values times `variance`."""
        return like(self.variance, values) * values


def _floating_leaves(change: Callable[[Any], Array]) -> Callable[[Any], Any]:
    """Return a function that applies `change` to the real floating leaves of a pytree."""

    def is_floating(leaf: Any) -> bool:
        return eqx.is_array_like(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)

    return lambda tree: jax.tree.map(lambda leaf: change(leaf) if is_floating(leaf) else leaf, tree)


class Custom(Kernel):
    """A user's function of two points, `k(x, z) = fn(params, x, z)`.

    The function is evaluated pair by pair under `vmap`. The kernel is as differentiable and
    accurate as `fn`. `jit` compiles again for a new `fn`, so define `fn` once at module level and
    pass varying values in `params`.

    Attributes:
        fn: a function of `params` and two points of shape `d` that returns a scalar, written in
            JAX. It must be symmetric and positive semi-definite, which is not checked. Static.
        params: pytree of arrays and numbers. The floating leaves are the hyper-parameters, which
            `fn` gets in the dtype of the points.

    Raises:
        ValueError: if `fn` is not callable; at evaluation, if it does not return a real scalar.
    """

    fn: Callable[..., Any] = eqx.field(static=True)
    params: Any = eqx.field(converter=_floating_leaves(hyperparameter), default=None)

    def __check_init__(self) -> None:
        if not callable(self.fn):
            raise ValueError(f"fn: expected a function of (params, x, z), got {self.fn!r}")

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `fn(params, x, z)`."""
        x, z = two_points(x, z)
        params = _floating_leaves(lambda leaf: leaf.astype(x.dtype))(self.params)
        value = self.fn(params, x, z)
        if not eqx.is_array_like(value) or jnp.shape(value) != () or jnp.iscomplexobj(value):
            if eqx.is_array_like(value):
                value = f"{jnp.result_type(value)}{list(jnp.shape(value))}"
            raise ValueError(
                f"fn: expected a real scalar from fn(params, x, z) for points of shape {x.shape}, "
                f"got {value}"
            )
        return as_float(value).astype(x.dtype)
