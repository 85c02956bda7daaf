"""Kernels of the distance between two points.

All are functions of the squared scaled distance `s = |(x - z) / lengthscale|^2`, not of its square
root. A kernel that is smooth in `s` therefore has exact derivatives at coincident points.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._numerics import like, with_derivative
from .._types import Scalar
from ._arguments import (
    check_positive,
    check_scalar,
    hyperparameter,
    one_table,
    two_points,
    two_tables,
)
from .base import Kernel, mirrored
from .distances import Lengthscale, matching, safe_sqrt, squared_distance, squared_distances


class Stationary(Kernel):
    """`k(x, z) = profile(|(x - z) / lengthscale|^2)` with `profile(0) = 1`.

    Attributes:
        lengthscale: positive, in the units of the inputs; shape `()`, or `d`, one per dimension.

    Raises:
        ValueError: if the lengthscale has another shape, or (outside `jit`) is not positive and
            finite.
    """

    lengthscale: Lengthscale = eqx.field(converter=hyperparameter)

    # Whether the profile behaves like sqrt(s) at 0.
    _cusp: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.lengthscale.ndim > 1:
            raise ValueError(
                "lengthscale: expected a scalar or shape (d,), one value per dimension; got shape "
                f"{self.lengthscale.shape} (a batch of kernels is made by jax.vmap)"
            )
        check_positive("lengthscale", self.lengthscale)

    @property
    def ignores_zero_columns(self) -> bool:
        """Whether columns of zeros leave the values unchanged: not if each has a lengthscale."""
        return self.lengthscale.ndim == 0

    @abc.abstractmethod
    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Evaluate the kernel as a function of the squared scaled distance, elementwise."""

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `profile(|(x - z) / lengthscale|^2)`, from the differences."""
        return self.profile(squared_distance(*two_points(x, z), self.lengthscale))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Return the Gram matrix, exactly symmetric and with an exact unit diagonal."""
        X = one_table(X)
        values = mirrored(self.cross_gram(X, X))
        return jnp.where(jnp.eye(X.shape[0], dtype=bool), 1, values)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return `k(x_i, z_j)` for all pairs of rows, by one matrix product, shape `n m`."""
        X, Z = two_tables(X, Z)
        return self.profile(squared_distances(X, Z, self.lengthscale, snap=self._cusp))

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the diagonal of the Gram matrix, `n` ones."""
        X = one_table(X)
        matching(self.lengthscale, X)
        return jnp.ones(X.shape[0], X.dtype)


class RBF(Stationary):
    """`k(x, z) = exp(-|(x - z) / lengthscale|^2 / 2)`."""

    @classmethod
    def from_sigma2(cls, sigma2: ArrayLike) -> "RBF":
        """Return the kernel `exp(-|x - z|^2 / sigma2)` of LS-SVM papers.

        `sigma2` is positive, of shape `()`, or of shape `d` for one value per dimension.
        """
        sigma2 = hyperparameter(sigma2)
        check_positive("sigma2", sigma2)
        return cls(jnp.sqrt(sigma2 / 2))

    @classmethod
    def from_gamma(cls, gamma: ArrayLike) -> "RBF":
        """Return scikit-learn's kernel `exp(-gamma |x - z|^2)`.

        `gamma` is positive, of shape `()`, or of shape `d` for one value per dimension.
        """
        gamma = hyperparameter(gamma)
        check_positive("gamma", gamma)
        return cls(jnp.sqrt(0.5 / gamma))

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `exp(-s / 2)`."""
        return jnp.exp(-0.5 * s)


class Laplacian(Stationary):
    """`k(x, z) = exp(-|x - z| / lengthscale)` with the Euclidean norm (scikit-learn's has the L1).

    It has a cusp at coincident points, where derivatives do not exist and are set to 0. In `gram`
    and `cross_gram`, points coincide if the rounding error exceeds their distance: at about
    `sqrt(eps)` times their distance from the mean.
    """

    _cusp: ClassVar[bool] = True

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `exp(-r)` with `r = sqrt(s)`."""
        return _matern12(s)


class Matern32(Stationary):
    """`k(x, z) = (1 + r) exp(-r)`, `r = sqrt(3) |x - z| / lengthscale`.

    First and second derivatives are exact at coincident points; third derivatives do not exist.
    """

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `(1 + r) exp(-r)` with `r = sqrt(3 s)`."""
        return _matern32(3 * s)


class Matern52(Stationary):
    """`k(x, z) = (1 + r + r^2 / 3) exp(-r)`, `r = sqrt(5) |x - z| / lengthscale`."""

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `(1 + r + r^2 / 3) exp(-r)` with `r = sqrt(5 s)`."""
        return _matern52(5 * s)


class RationalQuadratic(Stationary):
    """`k(x, z) = (1 + |x - z|^2 / (2 alpha lengthscale^2))^(-alpha)`.

    Attributes:
        alpha: positive, shape `()`. Small values give heavy tails; the limit of large values is
            `RBF`.
    """

    alpha: Scalar = eqx.field(converter=hyperparameter, default=1.0)

    def __check_init__(self) -> None:
        check_scalar("alpha", self.alpha)
        check_positive("alpha", self.alpha)

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return `(1 + s / (2 alpha))^(-alpha)`."""
        alpha = like(self.alpha, s)
        return jnp.exp(-alpha * jnp.log1p(s / (2 * alpha)))


# Matern profiles in t = r^2. The derivative of each profile is a multiple of the previous profile,
# so the first derivative that divides by r is the second derivative of `_matern32`:
#     d/dt (1 + r + t/3) exp(-r) = -(1 + r) exp(-r) / 6,   d/dt (1 + r) exp(-r) = -exp(-r) / 2.


def _matern12(t: Float[Array, "*s"]) -> Float[Array, "*s"]:
    return jnp.exp(-safe_sqrt(t))


def _matern32(t: Float[Array, "*s"]) -> Float[Array, "*s"]:
    def value(t: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r = safe_sqrt(t)
        return (1 + r) * jnp.exp(-r)

    return with_derivative(value, lambda _, t, dt: -0.5 * _matern12(t) * dt, t)


def _matern52(t: Float[Array, "*s"]) -> Float[Array, "*s"]:
    def value(t: Float[Array, "*s"]) -> Float[Array, "*s"]:
        r = safe_sqrt(t)
        return (1 + r + t / 3) * jnp.exp(-r)

    return with_derivative(value, lambda _, t, dt: -(1 / 6) * _matern32(t) * dt, t)
