"""Nystroem features: an explicit feature map from the eigenvectors of `K(Z, Z)`."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, eigh, rank_cutoff, with_derivative
from .._programs import compiled
from .._types import Scalar
from ..kernels import Kernel
from .whitened import Whitened

# The number of smallest features that estimate the energy of dropped features. One feature may be
# small by chance.
_N_SMALLEST = 4


class Nystroem(Whitened):
    """`Phi = K(X, Z) T - shift`, `R = I`, with `T = U Lambda^(-1/2)` (De Brabanter 2010, eq. 5).

    Eigenvalues of `K(Z, Z)` below `rank_cutoff` are noise, and their features are dropped. `rank`
    features remain. Each row is mapped before rows are summed. Transforming
    sums of kernel columns instead would amplify rounding by `1 / lambda_min`: in float32 the error
    would be of order one, instead of about `sqrt(eps)`.

    Attributes:
        kernel: kernel of two points.
        prototypes: shape `m d`.
        transform: `T`, shape `m m`; the columns of dropped eigenvalues are zero.
        shift: vector subtracted from every row of features, shape `m`.
        present: number of prototypes whose kernel value with themselves is not 0.
        cutoff: bound below which eigenvalues are dropped.
    """

    present: Int[Array, ""]
    cutoff: Scalar

    def __init__(
        self, kernel: Kernel, prototypes: Float[Array, "m d"], *, center: bool = True
    ) -> None:
        self.kernel, self.prototypes = kernel, prototypes
        whitened = _whitened(kernel, prototypes, center)
        self.transform, self.shift, self.present, self.cutoff = whitened

    @property
    def rank(self) -> Int[Array, ""]:
        """Return the number of eigenvalues of `K(Z, Z)` above `cutoff`, whose features are used."""
        return jnp.sum(jnp.any(self.transform != 0, axis=0), dtype=jnp.int32)

    def unresolved(self, C: Float[Array, "*s"], energy: Float[Array, " p"]) -> Bool[Array, "*s"]:
        """Return for each `C` whether a dropped feature would have had a ridge factor over 1/2.

        The energy of a feature is its sum of squares over the rows. The ridge multiplies a feature
        of energy g by the factor `g / (g + 1/C)`. At the prototypes the energy is proportional to
        the eigenvalue lambda of `K(Z, Z)`. At other rows the smallest features have far more
        energy, so the smallest features that were not dropped give the factor of proportionality.
        """
        inverse = jnp.sum(jnp.square(self.transform), axis=0)  # 1 / lambda
        numbers = jnp.arange(self.n_features, dtype=jnp.int32)
        smallest = (numbers < self.rank) & (numbers >= self.rank - _N_SMALLEST)
        dropped_energy = self.cutoff * jnp.max(jnp.where(smallest, energy * inverse, 0))
        return (self.rank < self.present) & (C * dropped_energy > 1)


@functools.partial(compiled, static_argnames="center")
def _whitened(
    kernel: Kernel, prototypes: Float[Array, "m d"], center: bool
) -> tuple[Float[Array, "m m"], Float[Array, " m"], Int[Array, ""], Scalar]:
    """Return `transform`, `shift`, `present` and `cutoff` of `Nystroem`.

    The shift is the prototypes' mean feature, or 0 if `center` is False.
    """
    gram = kernel.gram(prototypes)
    transform = whitening(gram)
    present = jnp.sum(jnp.diagonal(gram) != 0, dtype=jnp.int32)  # NaN counts as present
    mean = dot(jnp.sum(gram, axis=0) / jnp.maximum(present, 1).astype(gram.dtype), transform)
    # The first column of T has length lambda_1^(-1/2).
    inverse_largest = jax.lax.stop_gradient(jnp.sum(jnp.square(transform[:, 0])))
    cutoff = rank_cutoff(
        jnp.where(inverse_largest > 0, 1 / jnp.where(inverse_largest > 0, inverse_largest, 1), 0)
    )
    return transform, mean if center else jnp.zeros_like(mean), present, cutoff


def whitening(gram: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """Return `T = U Lambda^(-1/2)` by decreasing eigenvalue; columns of dropped features are 0."""
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
    # T T' = K^(-1) determines T up to a rotation. With M = T' dK T, dT = -T M / 2 satisfies
    # d(T T') = -T M T'. It has no differences of eigenvalues, so eigenvalues may be repeated.
    return -0.5 * dot(transform, dot(transform.T, dot(tangent, transform)))
