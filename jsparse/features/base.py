"""The protocol of feature maps: features of rows, a penalty, and conversion to an expansion."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._repr import short_repr
from ..expansion import KernelExpansion


class FeatureMap(eqx.Module):
    """A map from rows to features `Phi(X)`, with the penalty `1/2 w' R w` of their weights `w`.

    A linear machine in the features converts to a kernel expansion.
    """

    __repr__ = short_repr

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return the features of the rows of `X`, shape `n p`."""

    @property
    @abc.abstractmethod
    def n_features(self) -> int:
        """Return the number of features `p`."""

    def unresolved(self, C: Float[Array, "*s"], energy: Float[Array, " p"]) -> Bool[Array, "*s"]:
        """Return for each `C` whether features lost to rounding would have changed the model.

        By default the answer is False.

        Args:
            C: weights of the data-fit term.
            energy: sum of squares of each feature over the rows, `NormalEquations.energy`.
        """
        return jnp.zeros(C.shape, bool)

    def penalty(self) -> Float[Array, "p p"] | None:
        """Return the penalty matrix `R`; by default None, the identity."""
        return None

    @abc.abstractmethod
    def expansion(
        self, weights: Float[Array, " p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the model `Phi(x)' weights + intercept` as a kernel expansion."""
