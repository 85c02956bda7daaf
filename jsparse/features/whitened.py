"""Features by a matrix that turns `K(Z, Z)` into the identity."""

from jaxtyping import Array, Float

from .._numerics import dot
from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap


class Whitened(FeatureMap):
    """`Phi = K(X, Z) T - shift`, `R = I`, with `T' K(Z, Z) T = I` to rounding.

    A map may drop features. The columns of `T` for dropped features are 0.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    transform: Float[Array, "m m"]
    shift: Float[Array, " m"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return the features `K(X, Z) T - shift`, a row for each row of `X`."""
        return dot(self.kernel.cross_gram(X, self.prototypes), self.transform) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """Return the number of features, `m`. It includes dropped features, which are zero."""
        return self.prototypes.shape[0]

    def expansion(
        self, weights: Float[Array, " p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion with coefficients `T w`; the shift moves into the intercept."""
        return KernelExpansion(
            self.kernel,
            self.prototypes,
            dot(self.transform, weights),
            intercept - dot(self.shift, weights),
        )
