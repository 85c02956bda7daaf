"""Linear features: `Phi = X` with penalty `R = I`."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import kernels
from .._numerics import dot
from ..expansion import KernelExpansion
from .base import FeatureMap


class Linear(FeatureMap):
    """`Phi = X - shift`, `R = I`: the linear machine in the primal.

    The expansion has one prototype per output, the weight vector, because `w'x = k(w, x)` for the
    linear kernel. No expansion can be sparser.

    Attributes:
        shift: vector subtracted from every row, shape `d`; zero for standardised inputs.
    """

    shift: Float[Array, " d"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return `X - shift`, shape `n d`."""
        return X - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """Return the number of columns `d`."""
        return self.shift.shape[0]

    def expansion(
        self, weights: Float[Array, " p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion whose prototypes are the weight vectors, one for each output."""
        intercept = intercept - dot(self.shift, weights)
        if weights.ndim == 1:
            prototypes, coefficients = weights[None, :], jnp.ones(1, weights.dtype)
        else:
            prototypes, coefficients = weights.T, jnp.eye(weights.shape[1], dtype=weights.dtype)
        return KernelExpansion(kernels.Linear(), prototypes, coefficients, intercept)
