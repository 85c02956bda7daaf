"""Kernel columns: `Phi = K(X, Z)` with penalty `R = K(Z, Z)`."""

from jaxtyping import Array, Float

from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap


class KernelColumns(FeatureMap):
    """`Phi = K(X, Z)`, `R = K(Z, Z)` (Karsmakers 2011, Theorem 1): weights are coefficients.

    Spans the same models with the same penalty as `Nystroem`, one matrix product cheaper per row,
    at the squared condition number: prefer `Nystroem` in float32.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """`K(X, Z)`, shape `n m`."""
        return self.kernel.cross_gram(X, self.prototypes)

    @property
    def n_features(self) -> int:
        """Number of prototypes `m`."""
        return self.prototypes.shape[0]

    def penalty(self) -> Float[Array, "p p"] | None:
        """`K(Z, Z)`."""
        return self.kernel.gram(self.prototypes)

    def expansion(
        self, weights: Float[Array, "p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion whose coefficients are the weights."""
        return KernelExpansion(self.kernel, self.prototypes, weights, intercept)
