"""Nystroem features: an explicit feature map from the eigenvectors of `K(Z, Z)`."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, eigh, rank_cutoff, with_derivative
from .._programs import compiled
from .._types import Scalar
from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap

# number of features that represent the dropped ones; a single one may be small by accident
_LAST = 4


class Nystroem(FeatureMap):
    """`Phi = K(X, Z) T - shift`, `R = I`, with `T = U Lambda^(-1/2)` (De Brabanter 2010, eq. 5).

    Eigenvalues of `K(Z, Z)` below `rank_cutoff` are noise and their features are dropped; `rank`
    says how many stay. Features are mapped row by row, not by transforming summed kernel
    columns: in float32 the row form has an error of about `sqrt(eps)` where the summed form has one
    of order one, because the transform amplifies rounding by `1 / lambda_min`.

    Attributes:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        transform: `T`, shape `m m`; the columns of dropped eigenvalues are zero.
        shift: subtracted from every row of features, shape `m`.
        cutoff: eigenvalues below it were dropped.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    transform: Float[Array, "m m"]
    shift: Float[Array, " m"]
    cutoff: Scalar

    def __init__(
        self, kernel: Kernel, prototypes: Float[Array, "m d"], *, center: bool = True
    ) -> None:
        self.kernel = kernel
        self.prototypes = prototypes
        self.transform, self.shift, self.cutoff = _whitened(kernel, prototypes, center)

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """`K(X, Z) T - shift`, shape `n m`."""
        return dot(self.kernel.cross_gram(X, self.prototypes), self.transform) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """Number of features: `m`, dropped ones (identically zero) included."""
        return self.prototypes.shape[0]

    @property
    def rank(self) -> Int[Array, ""]:
        """Effective rank: the number of eigenvalues of `K(Z, Z)` above the noise of the dtype."""
        return jnp.sum(jnp.any(self.transform != 0, axis=0), dtype=jnp.int32)

    def unresolved(self, C: Float[Array, "*s"], energy: Float[Array, " p"]) -> Bool[Array, "*s"]:
        """Return whether a dropped feature would have had a ridge factor of at least one half.

        The ridge multiplies a feature of energy g by the factor `g / (g + 1/C)`. At the prototypes
        the energy is proportional to the eigenvalue lambda of `K(Z, Z)`; at other rows the smallest
        features have far more energy. The proportionality is therefore estimated from the last
        features that were kept.
        """
        inverse = jnp.sum(jnp.square(self.transform), axis=0)  # 1 / lambda
        place = jnp.arange(self.n_features, dtype=jnp.int32)
        last = (place < self.rank) & (place >= self.rank - _LAST)
        dropped = self.cutoff * jnp.max(jnp.where(last, energy * inverse, 0))
        return (self.rank < self.n_features) & (C * dropped > 1)

    def penalty(self) -> Float[Array, "p p"] | None:
        """None: the identity."""
        return None

    def expansion(
        self, weights: Float[Array, "p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Coefficients `T w`; the shift moves into the intercept."""
        return KernelExpansion(
            self.kernel,
            self.prototypes,
            dot(self.transform, weights),
            intercept - dot(self.shift, weights),
        )


@functools.partial(compiled, static_argnames="center")
def _whitened(
    kernel: Kernel, prototypes: Float[Array, "m d"], center: bool
) -> tuple[Float[Array, "m m"], Float[Array, " m"], Scalar]:
    """Transform, shift and cutoff, in one program."""
    gram = kernel.gram(prototypes)
    transform = whitening(gram)
    mean = dot(jnp.mean(gram, axis=0), transform)
    # The first column of T has length lambda_1^(-1/2).
    first = jax.lax.stop_gradient(jnp.sum(jnp.square(transform[:, 0])))
    cutoff = rank_cutoff(jnp.where(first > 0, 1 / jnp.where(first > 0, first, 1), 0))
    return transform, mean if center else jnp.zeros_like(mean), cutoff


def whitening(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """`T = U Lambda^(-1/2)` with `T' K T = I` on the kept eigenspace, largest eigenvalue first."""
    return with_derivative(_whitening, _whitening_derivative, gram)


def _whitening(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    eigenvalues, vectors = eigh(gram)
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    resolved = eigenvalues > rank_cutoff(eigenvalues[0])
    scale = jnp.where(resolved, 1 / jnp.sqrt(jnp.where(resolved, eigenvalues, 1)), 0)
    return vectors * scale[None, :]


def _whitening_derivative(
    transform: Float[Array, "m m"], _: Array, tangent: Float[Array, "m m"]
) -> Float[Array, "m m"]:
    # T T' = K^(-1) fixes T up to a rotation. d(T T') = -T M T' with M = T' dK T is met by
    # dT = -T M / 2, which needs no eigenvalue differences and so survives repeated eigenvalues.
    return -0.5 * dot(transform, dot(transform.T, dot(tangent, transform)))
