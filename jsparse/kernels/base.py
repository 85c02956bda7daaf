"""Kernels: a function of two points, its Gram matrices, and the algebra of kernels."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_float, is_concrete, like
from .._types import Scalar, ScalarLike


class Kernel(eqx.Module):
    """A positive semi-definite function of two points, `k(x, z)`.

    Hyper-parameters are leaves, so `grad` with respect to a kernel works, and `vmap` over a kernel
    whose leaves have a leading axis. They are cast to the dtype of the data. `+` adds kernels, `*`
    multiplies them or scales by a positive number. Gram matrices are differentiable in both modes
    with respect to the points and the hyper-parameters.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`k(x, z)` of two points."""

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """`K[i, j] = k(X_i, Z_j)`, shape `n m`."""
        check_columns(X, Z)
        return jax.vmap(lambda x: jax.vmap(lambda z: self(x, z))(Z))(X)

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """`K[i, j] = k(X_i, X_j)`, exactly symmetric, shape `n n`."""
        K = self.cross_gram(X, X)
        return 0.5 * (K + K.T)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """`k(X_i, X_i)`, shape `n`."""
        return jax.vmap(lambda x: self(x, x))(X)

    def __add__(self, other: "Kernel") -> "Kernel":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel | ScalarLike") -> "Kernel":
        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    def __rmul__(self, other: ScalarLike) -> "Kernel":
        return Scaled(self, other)


class Sum(Kernel):
    """`k(x, z) = left(x, z) + right(x, z)`."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`left(x, z) + right(x, z)`."""
        return self.left(x, z) + self.right(x, z)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Sum of the cross Gram matrices."""
        return self.left.cross_gram(X, Z) + self.right.cross_gram(X, Z)

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Sum of the Gram matrices."""
        return self.left.gram(X) + self.right.gram(X)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Sum of the diagonals."""
        return self.left.diagonal(X) + self.right.diagonal(X)


class Product(Kernel):
    """`k(x, z) = left(x, z) right(x, z)`."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`left(x, z) right(x, z)`."""
        return self.left(x, z) * self.right(x, z)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Elementwise product of the cross Gram matrices."""
        return self.left.cross_gram(X, Z) * self.right.cross_gram(X, Z)

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Elementwise product of the Gram matrices."""
        return self.left.gram(X) * self.right.gram(X)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Product of the diagonals."""
        return self.left.diagonal(X) * self.right.diagonal(X)


class Scaled(Kernel):
    """`k(x, z) = variance * kernel(x, z)`, `variance > 0`."""

    kernel: Kernel
    variance: Float[Array, "..."] = eqx.field(converter=as_float)

    def __check_init__(self) -> None:
        check_positive("variance", self.variance)

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`variance * kernel(x, z)`."""
        return like(self.variance, x) * self.kernel(x, z)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Scaled cross Gram matrix."""
        return like(self.variance, X) * self.kernel.cross_gram(X, Z)

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Scaled Gram matrix."""
        return like(self.variance, X) * self.kernel.gram(X)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Scaled diagonal."""
        return like(self.variance, X) * self.kernel.diagonal(X)


class Custom(Kernel):
    """`k(x, z) = function(params, x, z)`: a user's own function of two points.

    Attributes:
        function: jittable, returns a scalar; keep one function object, as a new one recompiles.
        params: any pytree of arrays; its leaves are the hyper-parameters.
    """

    function: Callable[[Any, Array, Array], Scalar] = eqx.field(static=True)
    params: Any = None

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`function(params, x, z)`, checked to be a scalar."""
        value = jnp.asarray(self.function(self.params, x, z))
        if value.shape != ():
            raise ValueError(f"kernel function: expected a scalar, got shape {value.shape}")
        return value.astype(x.dtype)


def check_columns(X: Float[Array, "n d"], Z: Float[Array, "m e"]) -> None:
    """Raise unless `X` and `Z` have the same number of columns."""
    if X.shape[1] != Z.shape[1]:
        raise ValueError(f"X and Z: expected the same columns, got {X.shape} and {Z.shape}")


def check_positive(name: str, value: Array, *, zero: bool = False) -> None:
    """Raise unless a hyper-parameter is finite and positive (or zero); silent while tracing."""
    if not is_concrete(value) or not isinstance(value, jax.Array | np.ndarray):
        return
    v = np.asarray(value)
    if not (np.isfinite(v).all() and ((v >= 0) if zero else (v > 0)).all()):
        kind = "at least 0" if zero else "positive"
        raise ValueError(f"{name}: expected finite and {kind}, got {v}")
