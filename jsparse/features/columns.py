"""Kernel columns: `Phi = K(X, Z)` with penalty `R = K(Z, Z)`."""

from jaxtyping import Array, Float

from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap


class KernelColumns(FeatureMap):
    """`Phi = K(X, Z)`, `R = K(Z, Z)` (Karsmakers 2011, Theorem 1): weights are coefficients.

    Models and penalty are equal to the models and penalty of `Nystroem`. A row costs one matrix
    product less, but the condition number is squared: prefer `Nystroem` in float32.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return `K(X, Z)`, shape `n m`."""
        return self.kernel.cross_gram(X, self.prototypes)

    @property
    def n_features(self) -> int:
        """Return the number of prototypes `m`."""
        return self.prototypes.shape[0]

    def penalty(self) -> Float[Array, "p p"] | None:
        """Return `K(Z, Z)`."""
        return self.kernel.gram(self.prototypes)

    def expansion(
        self, weights: Float[Array, " p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion whose coefficients are the weights."""
        return KernelExpansion(self.kernel, self.prototypes, weights, intercept)
