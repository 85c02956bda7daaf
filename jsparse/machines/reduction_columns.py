"""Kernel columns that a reduction sums over rows."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from .._numerics import dot, eigh, epsilon, times_power
from .._programs import compiled
from .._repr import short_repr
from ..kernels import Kernel
from ..normal_equations import NormalEquations, accumulate
from .scdp_system import CandidateColumns, candidate_columns

_SQUARES_RESOLVED = 1e-10  # an epsilon below it resolves sums of squares of kernel columns


class PrototypeTargets(NamedTuple):
    """The targets of the rows that are prototypes."""

    values: Float[Array, "M *c"]  # weighted means over the rows equal to each prototype
    weights: Float[Array, " M"]  # of these rows; 0 if the prototype is no row

    __repr__ = short_repr


class ReductionColumns(CandidateColumns):
    """Kernel columns, with the targets of the rows that are prototypes where they are needed.

    In float32 the columns are rotated to the eigenvectors of `K(Z, Z)`, in which they are nearly
    orthogonal. Sums of squares then keep the digits of every direction, however small it is beside
    the largest, and the factor of the system has the digits of the columns themselves.

    Attributes:
        rotation: the eigenvectors, shape `M M`; None in float64.
        targets: see `PrototypeTargets`; None where they are not needed.
    """

    rotation: Float[Array, "M M"] | None = None
    targets: PrototypeTargets | None = None

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """Return `K(X, Z)` less the constants, rotated."""
        columns = super().__call__(X)
        return columns if self.rotation is None else dot(columns, self.rotation)

    def with_targets(self, targets: PrototypeTargets) -> "ReductionColumns":
        """Return the columns with other targets."""
        return dataclasses.replace(self, targets=targets)

    def targets_times(self, exponent: Int[Array, " 1"]) -> "ReductionColumns":
        """Return the columns of targets times `2^exponent`."""
        if self.targets is None:
            return self
        values = times_power(self.targets.values[None], exponent)[0]
        return self.with_targets(self.targets._replace(values=values))

    def sums_over_prototypes(self) -> NormalEquations:
        """Return the sums over the rows that are prototypes, in place of those over all rows."""
        assert self.targets is not None
        values = self.targets.values.reshape(len(self.prototypes), -1)
        return accumulate(self, self.prototypes, values, self.targets.weights)


@compiled
def reduction_columns(kernel: Kernel, prototypes: Float[Array, "M d"]) -> ReductionColumns:
    """Return the columns to sum for some prototypes."""
    columns = candidate_columns(kernel, prototypes)
    gram = columns.gram
    rotation = eigh(gram)[1] if epsilon(gram.dtype) > _SQUARES_RESOLVED else None
    return ReductionColumns(columns.kernel, columns.prototypes, gram, columns.shift, rotation)


@compiled
def prototype_targets(
    prototypes: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"],
) -> PrototypeTargets:
    """Return the targets and weights of the rows that are equal to a prototype.

    Args:
        prototypes: shape `M d`.
        X: inputs, shape `n d`.
        y: targets, shape `n *c`.
        weights: row weights, shape `n`; a row of weight 0 is absent.
    """
    y_present = jnp.where((weights > 0)[:, None], y.reshape(len(y), -1), 0)
    summands = jnp.concatenate([weights[:, None], weights[:, None] * y_present], axis=1)
    hashes = _hash(X)

    # Most rows have a hash of their own. Where several rows have it, their elements are compared.
    def one(point: tuple[Float[Array, " d"], Array]) -> Float[Array, " q"]:
        z, hash_of_z = point
        hits = hashes == hash_of_z
        equal = jax.lax.cond(
            jnp.sum(hits, dtype=jnp.int32) > 1,
            lambda: jnp.all(z[None] == X, axis=1),
            lambda: hits & jnp.all(z == X[jnp.argmax(hits)]),
        )
        return dot(equal.astype(X.dtype), summands)

    totals = jax.lax.map(one, (prototypes, _hash(prototypes)))
    w = totals[:, 0]
    values = totals[:, 1:] / jnp.where(w > 0, w, 1)[:, None]
    return PrototypeTargets(values.reshape(-1, *y.shape[1:]), w)


def _hash(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """Return a number for each row: equal for equal rows, and hardly ever for different rows."""
    X = X + 0.0  # -0 becomes 0
    bits = jax.lax.bitcast_convert_type(X, jnp.uint32).reshape(len(X), -1)
    factors = np.random.default_rng(0).integers(2**31, size=bits.shape[1], dtype=np.uint32)
    mixed = (bits ^ (bits >> 15)) * (2 * factors + 1)[None]
    return jnp.sum(mixed ^ (mixed >> 13), axis=1, dtype=jnp.uint32)
