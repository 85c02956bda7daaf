"""Nystroem features by a Cholesky factor, for many prototypes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import cholesky_shift, dot
from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap


class Triangular(FeatureMap):
    """`Phi = K(X, Z) L^-T - shift`, `R = I`, with `K(Z, Z) + noise I = L L'`.

    The machines of `Nystroem`, up to the noise: the rounding of the largest eigenvalue, at which
    `Nystroem` leaves features out, or of distances. A factorisation of `m^3 / 3` operations in
    place of an eigendecomposition of some 25 m^3.

    Attributes:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        transform: `L^-T`, shape `m m`.
        shift: subtracted from every row of features, shape `m`.

    Differentiable as `Nystroem` is.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    transform: Float[Array, "m m"]
    shift: Float[Array, " m"]

    def __init__(self, kernel: Kernel, prototypes: Float[Array, "m d"]) -> None:
        gram = kernel.gram(prototypes)
        m = len(gram)
        one = jnp.eye(m, dtype=gram.dtype)
        lower = jnp.linalg.cholesky(gram + cholesky_shift(gram) * one)
        self.kernel, self.prototypes = kernel, prototypes
        self.transform = jax.scipy.linalg.solve_triangular(lower, one, lower=True).T
        self.shift = dot(jnp.mean(gram, axis=0), self.transform)

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """`K(X, Z) L^-T - shift`, shape `n m`."""
        return dot(self.kernel.cross_gram(X, self.prototypes), self.transform) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """Number of features: `m`."""
        return self.prototypes.shape[0]

    def penalty(self) -> Float[Array, "p p"] | None:
        """None: the identity."""
        return None

    def expansion(
        self, weights: Float[Array, "p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Coefficients `L^-T w`; the shift moves into the intercept."""
        return KernelExpansion(
            self.kernel,
            self.prototypes,
            dot(self.transform, weights),
            intercept - dot(self.shift, weights),
        )
