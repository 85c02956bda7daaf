"""Stationary kernels: functions of the scaled distance `r = |(x - z) / lengthscale|`."""

import abc
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import as_float
from .._types import Scalar, ScalarLike
from .base import Kernel, check_columns, check_positive
from .distances import safe_sqrt, squared_distances


class Stationary(Kernel):
    """A kernel of the squared scaled distance; `profile` is all that differs.

    Attributes:
        lengthscale: unit of distance, in the units of the inputs: a scalar, or one per column.
    """

    lengthscale: Float[Array, "..."] = eqx.field(converter=as_float)

    def __check_init__(self) -> None:
        check_positive("lengthscale", self.lengthscale)

    @abc.abstractmethod
    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """The kernel as a function of the squared scaled distance; 1 at 0."""

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """`profile(|(x - z) / lengthscale|^2)`."""
        return self.profile(jnp.sum(jnp.square((x - z) / self._scale(x))))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """`K[i, j] = k(X_i, Z_j)`, by a matrix product, shape `n m`."""
        check_columns(X, Z)
        scale = self._scale(X)[None]
        return self.profile(squared_distances(X / scale, Z / scale))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """`K[i, j] = k(X_i, X_j)`, symmetric with diagonal one, shape `n n`."""
        scaled = X / self._scale(X)[None]
        s = squared_distances(scaled, scaled)
        s = 0.5 * (s + s.T)
        # The diagonal is 0 in value; its derivative is 0 too, as for the exact distance.
        off = 1.0 - jnp.eye(X.shape[0], dtype=X.dtype)
        return self.profile(s * off)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Ones."""
        return jnp.ones(X.shape[0], X.dtype)

    def _scale(self, x: Float[Array, "*n d"]) -> Float[Array, " e"]:
        scale = self.lengthscale.astype(x.dtype).reshape(-1)
        if scale.shape[0] not in (1, x.shape[-1]):
            raise ValueError(
                f"lengthscale: expected a scalar or one per column ({x.shape[-1]}), got "
                f"{scale.shape[0]}"
            )
        return scale


class RBF(Stationary):
    """`k(x, z) = exp(-|x - z|^2 / (2 lengthscale^2))`."""

    @classmethod
    def from_sigma2(cls, sigma2: ScalarLike) -> Self:
        """`exp(-|x - z|^2 / sigma2)`, the convention of the LS-SVM papers."""
        return cls(jnp.sqrt(as_float(sigma2) / 2))

    @classmethod
    def from_gamma(cls, gamma: ScalarLike) -> Self:
        """`exp(-gamma |x - z|^2)`, the convention of scikit-learn and LIBSVM."""
        return cls(jnp.sqrt(0.5 / as_float(gamma)))

    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`exp(-s / 2)`."""
        return jnp.exp(-0.5 * s)


class Laplacian(Stationary):
    """`k(x, z) = exp(-|x - z| / lengthscale)`, with the Euclidean norm.

    scikit-learn's kernel of this name takes the 1-norm. Not differentiable at coincident points,
    where derivatives are 0 by convention.
    """

    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`exp(-sqrt(s))`."""
        return _decay(s, 1.0)


class Matern32(Stationary):
    """`k(x, z) = (1 + a r) exp(-a r)`, `a = sqrt(3)`, `r = |x - z| / lengthscale`.

    Once differentiable as a random function: third derivatives at coincident points are 0 by
    convention.
    """

    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`(1 + a r) exp(-a r)`."""
        return _matern32(s, 3**0.5)


class Matern52(Stationary):
    """`k(x, z) = (1 + a r + a^2 r^2 / 3) exp(-a r)`, `a = sqrt(5)`, `r = |x - z| / lengthscale`."""

    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`(1 + a r + a^2 r^2 / 3) exp(-a r)`."""
        return _matern52(s)


class RationalQuadratic(Stationary):
    """`k(x, z) = (1 + |x - z|^2 / (2 alpha lengthscale^2))^(-alpha)`, `alpha > 0`."""

    alpha: Float[Array, "..."] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def profile(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`(1 + s / (2 alpha))^(-alpha)`."""
        alpha = self.alpha.astype(s.dtype)
        return jnp.exp(-alpha * jnp.log1p(s / (2.0 * alpha)))


# The Matern profiles as functions of s = r^2. Their derivatives in s are again such profiles, which
# stay finite at s = 0 where the chain rule through sqrt would not:
# d/ds (1 + a r) e^(-a r) = -a^2/2 e^(-a r);  d/ds Matern52 = -a^2/6 (1 + a r) e^(-a r).


def _decay(s: Float[Array, "..."], a: float) -> Float[Array, "..."]:
    return jnp.exp(-a * safe_sqrt(s))


@jax.custom_jvp
def _matern32(s: Float[Array, "..."], a: float) -> Float[Array, "..."]:
    r = a * jnp.sqrt(s)
    return (1.0 + r) * jnp.exp(-r)


@_matern32.defjvp
def _matern32_jvp(primals: tuple, tangents: tuple) -> tuple:
    s, a = primals
    return _matern32(s, a), -0.5 * a**2 * _decay(s, a) * tangents[0]


@jax.custom_jvp
def _matern52(s: Float[Array, "..."]) -> Float[Array, "..."]:
    r = 5**0.5 * jnp.sqrt(s)
    return (1.0 + r + r * r / 3.0) * jnp.exp(-r)


@_matern52.defjvp
def _matern52_jvp(primals: tuple, tangents: tuple) -> tuple:
    (s,) = primals
    return _matern52(s), -5.0 / 6.0 * _matern32(s, 5**0.5) * tangents[0]
