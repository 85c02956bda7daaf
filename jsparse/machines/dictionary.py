"""Atoms of one kernel or several, and their least-squares problem, from rows or from sums."""

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
    """Atoms `k(., z)` of one kernel, or of each of several, less a constant each.

    The constants are the means over the candidates, which the intercept takes up; see
    `CandidateColumns`. Without an intercept they are 0.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    shift: Float[Array, " p"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Return the values of the atoms, those of the first kernel first."""
        return atoms(self.kernel, X, self.prototypes) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """The number of atoms."""
        return len(self.shift)

    def penalty(self) -> Float[Array, "p p"] | None:
        """Return None: the coefficients are penalised as they are."""
        return None

    def expansion(
        self, weights: Float[Array, "p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion with a prototype for each atom; see `CandidateColumns.expansion`."""
        intercept = intercept - jnp.tensordot(self.shift, weights, axes=1)
        return KernelExpansion(*every_atom(self.kernel, self.prototypes), weights, intercept)


def dictionary_columns(
    kernel: Kernel, points: Float[Array, "m d"], *, intercept: bool
) -> DictionaryColumns:
    """Return the atoms of points; with an intercept, less their means over the points."""
    values = atoms(kernel, points, points)
    shift = jnp.mean(values, axis=0) if intercept else jnp.zeros_like(values[0])
    return DictionaryColumns(kernel, points, shift)


class System(NamedTuple):
    """The normal equations of the atoms, with the intercept eliminated."""

    A: Float[Array, "p p"]
    b: Float[Array, "p c"]
    rounded: Float[Array, " p"]  # size of the numbers whose difference the diagonal of A is
    ridge: Float[Array, ""]

    __repr__ = short_repr


class Design(NamedTuple):
    """Atoms and targets of the rows times the roots of their weights; centred for an intercept."""

    D: Float[Array, "n p"]
    y: Float[Array, "n c"]

    __repr__ = short_repr


def design_of(
    columns: DictionaryColumns,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
    *,
    intercept: bool,
) -> Design:
    """Return the least-squares problem whose normal equations are a `System`."""
    D, y, root = columns(X), y.reshape(len(X), -1), jnp.sqrt(w)[:, None]
    D = jnp.where(root > 0, D, 0)
    if intercept:
        share = w / jnp.sum(w)
        D, y = (a - dot(share, a)[None, :] for a in (D, y))
    return Design(root * D, root * y)


def of_unit_length(system: System) -> tuple[System, Float[Array, " p"]]:
    """Return the system of atoms of unit length, and the factor of each atom.

    The factor is 0 for atoms that are rounding noise.
    """
    diagonal = jnp.diagonal(system.A)
    nonzero = diagonal > conjugate.NOISE * epsilon(diagonal.dtype) * system.rounded
    factor = jnp.where(nonzero, jax.lax.rsqrt(jnp.where(nonzero, diagonal + system.ridge, 1)), 0)
    A = system.A + system.ridge * jnp.eye(len(diagonal), dtype=diagonal.dtype)
    A = A * factor[:, None] * factor[None, :]
    rounded = system.rounded * jnp.square(factor)
    return System(A, system.b * factor[:, None], rounded, system.ridge), factor
