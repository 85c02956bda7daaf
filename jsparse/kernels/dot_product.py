"""Kernels of the inner product of two points."""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import dot, like
from .._types import Scalar
from ._arguments import (
    check_not_negative,
    check_positive,
    check_scalar,
    degree_of,
    hyperparameter,
    one_table,
    two_points,
    two_tables,
)
from .base import Kernel


class DotProduct(Kernel):
    """`k(x, z) = profile(x'z)`."""

    ignores_zero_columns: ClassVar[bool] = True

    @abc.abstractmethod
    def profile(self, p: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Evaluate the kernel as a function of the inner product, elementwise."""

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `profile(x'z)`."""
        return self.profile(dot(*two_points(x, z)))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return `profile(x_i'z_j)` for all pairs of rows, by one matrix product, shape `n m`."""
        X, Z = two_tables(X, Z)
        return self.profile(dot(X, Z.T))

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return `profile(|x_i|^2)`, shape `n`."""
        X = one_table(X)
        return self.profile(jnp.sum(X * X, axis=1))


class Linear(DotProduct):
    """`k(x, z) = x'z + offset`.

    Attributes:
        offset: at least 0, shape `()`.

    Raises:
        ValueError: if the offset is not a scalar, or (outside `jit`) negative or not finite.
    """

    offset: Scalar = eqx.field(converter=hyperparameter, default=0.0)

    def __check_init__(self) -> None:
        check_scalar("offset", self.offset)
        check_not_negative("offset", self.offset)

    def profile(self, p: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `p + offset`."""
        return p + like(self.offset, p)


class Polynomial(DotProduct):
    """`k(x, z) = (scale x'z + offset)^degree`.

    Attributes:
        degree: whole number of at least 1. Static: another degree compiles again.
        scale: positive, shape `()`.
        offset: at least 0, shape `()`.

    Raises:
        ValueError: if the degree is not an integer of at least 1; if the scale or offset is not a
            scalar; or (outside `jit`) if one is out of range or not finite.
    """

    degree: int = eqx.field(static=True, converter=degree_of, default=2)
    scale: Scalar = eqx.field(converter=hyperparameter, default=1.0)
    offset: Scalar = eqx.field(converter=hyperparameter, default=1.0)

    def __check_init__(self) -> None:
        check_scalar("scale", self.scale)
        check_positive("scale", self.scale)
        check_scalar("offset", self.offset)
        check_not_negative("offset", self.offset)

    def profile(self, p: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `(scale p + offset)^degree`."""
        return (like(self.scale, p) * p + like(self.offset, p)) ** self.degree
