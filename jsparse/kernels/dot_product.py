"""Kernels of the inner product."""

import equinox as eqx
from jaxtyping import Array, Float

from .._numerics import as_float, dot
from .._types import Scalar
from .base import Kernel, check_columns, check_positive


class Linear(Kernel):
    """`k(x, z) = x'z + offset`, `offset >= 0`."""

    offset: Float[Array, "..."] = eqx.field(converter=as_float, default=0.0)

    def __check_init__(self) -> None:
        check_positive("offset", self.offset, zero=True)

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`x'z + offset`."""
        return dot(x, z) + self.offset.astype(x.dtype)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """`X Z' + offset`, shape `n m`."""
        check_columns(X, Z)
        return dot(X, Z.T) + self.offset.astype(X.dtype)


class Polynomial(Kernel):
    """`k(x, z) = (scale x'z + offset)^degree`, `scale > 0`, `offset >= 0`, `degree >= 1`."""

    degree: int = eqx.field(static=True, default=2)
    scale: Float[Array, "..."] = eqx.field(converter=as_float, default=1.0)
    offset: Float[Array, "..."] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self) -> None:
        if not isinstance(self.degree, int) or self.degree < 1:
            raise ValueError(f"degree: expected an integer of at least 1, got {self.degree!r}")
        check_positive("scale", self.scale)
        check_positive("offset", self.offset, zero=True)

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`(scale x'z + offset)^degree`."""
        return self._power(dot(x, z))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """`(scale X Z' + offset)^degree`, shape `n m`."""
        check_columns(X, Z)
        return self._power(dot(X, Z.T))

    def _power(self, inner: Float[Array, "..."]) -> Float[Array, "..."]:
        return (self.scale.astype(inner.dtype) * inner + self.offset.astype(inner.dtype)) ** (
            self.degree
        )
