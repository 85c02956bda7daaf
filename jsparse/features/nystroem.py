"""Nystroem features: an explicit feature map from the eigenvectors of the prototypes' Gram matrix."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, rank_cutoff
from ..expansion import KernelExpansion
from ..kernels import Kernel
from .base import FeatureMap


class Nystroem(FeatureMap):
    """`Phi = K(X, Z) T - shift`, `R = I`, with `T = U Lambda^(-1/2)` (De Brabanter 2010, eq. 5).

    Build it with `nystroem`. Features are mapped row by row, not by transforming summed kernel
    columns: in float32 the row form has an error of about `sqrt(eps)` where the summed form has one
    of order one, because the transform amplifies rounding by `1 / lambda_min`.

    Attributes:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        transform: `T`, shape `m m`; the columns of dropped eigenvalues are zero.
        shift: subtracted from every row of features, shape `m`.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    transform: Float[Array, "m m"]
    shift: Float[Array, " m"]

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


def nystroem(kernel: Kernel, prototypes: Float[Array, "m d"], *, center: bool = True) -> Nystroem:
    """The Nystroem feature map of a kernel on prototypes (De Brabanter 2010, eq. 5).

    The paper's `phi_i(x) = lambda_i^(-1/2) sum_k u_ki k(z_k, x)`. Eigenvalues below
    `rank_cutoff` (a small constant times eps times the largest) are noise and their features are
    dropped; `Nystroem.rank` says how many stay.

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        center: subtract from the features their mean over the prototypes. It changes no model with
            an unpenalised intercept, and saves digits: sums of centred features cancel less. Turn
            it off for eq. 7 to the letter, whose penalised intercept depends on the origin.

    Differentiable in the kernel and in the prototypes, in both modes. Predictions do not depend on
    the rotation of the features, so the derivative is taken in the rotation in which it is simplest;
    it holds the dropped eigenvalues' space fixed.
    """
    gram = kernel.gram(prototypes)
    transform = whitening(gram)
    if center:
        shift = dot(jnp.mean(gram, axis=0), transform)
    else:
        shift = jnp.zeros(prototypes.shape[0], gram.dtype)
    return Nystroem(kernel, prototypes, transform, shift)


@jax.custom_jvp
def whitening(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """`T = U Lambda^(-1/2)` with `T' K T = I` on the kept eigenspace, largest eigenvalue first."""
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    kept = eigenvalues > rank_cutoff(eigenvalues[0], gram.shape[0])
    scale = jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, eigenvalues, 1)), 0)
    return vectors * scale[None, :]


@whitening.defjvp
def _whitening_jvp(
    primals: tuple[Float[Array, "m m"]], tangents: tuple[Float[Array, "m m"]]
) -> tuple[Float[Array, "m m"], Float[Array, "m m"]]:
    # T T' = K^(-1) fixes T up to a rotation. d(T T') = -T M T' with M = T' dK T is met by
    # dT = -T M / 2, which needs no eigenvalue differences and so survives repeated eigenvalues.
    transform = whitening(primals[0])
    inner = dot(transform.T, dot(tangents[0], transform))
    return transform, -0.5 * dot(transform, inner)
