"""Least squares on the atoms of one kernel or of several, from rows or from sums over rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import dot, epsilon
from .._repr import short_repr
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..pursuit import conjugate
from .family import atoms, every_atom


class DictionaryColumns(FeatureMap):
    """Features `k(x, z) - constant`, one for each atom: a prototype `z` with a kernel `k`.

    The constant of an atom is its mean over the prototypes, see `CandidateColumns`. Without an
    intercept all constants are 0.

    Attributes:
        kernel: kernel of two points, or a `Mixture` for a dictionary of several.
        prototypes: shape `m d`.
        shift: the constant of each of the `p` atoms; `p` is `m` times the number of kernels.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    shift: Float[Array, " p"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return the features of rows; the columns of the first kernel come first."""
        return atoms(self.kernel, X, self.prototypes) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """The number of atoms."""
        return len(self.shift)

    def expansion(
        self, weights: Float[Array, " p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the machine `features @ weights + intercept`, with a prototype for each atom.

        Its intercept absorbs the constants that the features subtract from the atoms.
        """
        intercept = intercept - jnp.tensordot(self.shift, weights, axes=1)
        return KernelExpansion(*every_atom(self.kernel, self.prototypes), weights, intercept)


def dictionary_columns(
    kernel: Kernel, points: Float[Array, "m d"], *, intercept: bool
) -> DictionaryColumns:
    """Return the `DictionaryColumns` of the points, for machines with or without an intercept."""
    values = atoms(kernel, points, points)
    shift = jnp.mean(values, axis=0) if intercept else jnp.zeros_like(values[0])
    return DictionaryColumns(kernel, points, shift)


class System(NamedTuple):
    """The normal equations `(A + ridge I) w = b` of `p` atoms for `c` targets.

    The intercept, if any, is eliminated.
    """

    A: Float[Array, "p p"]
    b: Float[Array, "p c"]
    rounded: Float[Array, " p"]  # diagonal of A before centring, whose rounding A inherits
    ridge: Float[Array, ""]  # the method's `ridge` times the sum of the row weights

    __repr__ = short_repr


class Design(NamedTuple):
    """The least-squares problem `min |D w - y|^2` whose normal equations are a `System`."""

    D: Float[Array, "n p"]  # atoms at the rows, times the square roots of the weights
    y: Float[Array, "n c"]  # targets, times the square roots of the weights

    __repr__ = short_repr


def design_of(
    columns: DictionaryColumns,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    *,
    intercept: bool,
) -> Design:
    """Return the `Design` of rows with weights `w`, centred if the machine has an intercept."""
    D, y, root = columns(X), y.reshape(len(X), -1), jnp.sqrt(w)[:, None]
    D = jnp.where(root > 0, D, 0)
    if intercept:
        share = w / jnp.sum(w)
        D, y = (a - dot(share, a)[None, :] for a in (D, y))
    return Design(root * D, root * y)


def of_unit_length(system: System) -> tuple[System, Float[Array, " p"]]:
    """Return the system of atoms scaled to unit length, and the factor that scales each atom.

    The returned `A` includes the ridge. The factor is 0 for atoms whose values are rounding noise.
    """
    diagonal = jnp.diagonal(system.A)
    nonzero = diagonal > conjugate.NOISE * epsilon(diagonal.dtype) * system.rounded
    factor = jnp.where(nonzero, jax.lax.rsqrt(jnp.where(nonzero, diagonal + system.ridge, 1)), 0)
    A = system.A + system.ridge * jnp.eye(len(diagonal), dtype=diagonal.dtype)
    A = A * factor[:, None] * factor[None, :]
    rounded = system.rounded * jnp.square(factor)
    return System(A, system.b * factor[:, None], rounded, system.ridge), factor
