"""Rows sharded over the devices of a mesh: each device holds a part of every fold."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool

from .._arguments import on_host
from ..machines.rows import Rows
from .folds import Folds


class ShardedFolds(eqx.Module):
    """Folds of rows that `shard` has reordered: row `i` belongs to fold `i mod v`.

    `gather` and `scatter` move no row to another device.
    """

    v: int = eqx.field(static=True)  # number of folds

    @property
    def valid(self) -> Bool[Array, "1 1"]:
        """True for every row, as padding is marked by weight 0 instead."""
        return jnp.ones((1, 1), bool)

    def gather(self, x: Array) -> Array:
        """Return `x (n, ...)` laid out by folds, `(v, n / v, ...)`."""
        return jnp.swapaxes(x.reshape(-1, self.v, *x.shape[1:]), 0, 1)

    def scatter(self, values: Array, n: int) -> Array:
        """Return values `(v, n / v, ...)` in row order, `(n, ...)`."""
        return jnp.swapaxes(values, 0, 1).reshape(n, *values.shape[2:])

    def check(self, n: int) -> None:
        """Raise a `ValueError` unless `n` is a multiple of the number of folds."""
        if n % self.v:
            raise ValueError(f"folds: expected a multiple of {self.v} rows, got {n}")


def shard(mesh: Mesh, folds: Folds, rows: Rows) -> tuple[Rows, ShardedFolds]:
    """Return the rows spread over the devices, and the folds of these rows.

    The first rows of all folds come first, then their second rows, and so on, so that each device
    has an equal part of each fold. Folds are padded with rows of weight 0 to a multiple of the
    number of devices. If the mesh spans several processes, each process passes all the rows.
    """
    rows_of_device = -(-folds.index.shape[1] // mesh.size)  # of each fold
    order, valid = (a.T.reshape(-1) for a in folds.padded(rows_of_device * mesh.size))
    X, y, w = (on_host(name, getattr(rows, name))[order] for name in ("X", "y", "weights"))
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    X, y, w = (
        jax.make_array_from_callback(a.shape, sharding, a.__getitem__)
        for a in (X, y, np.where(valid, w, 0))
    )
    return Rows(X, y, w, rows.code, mesh), ShardedFolds(len(folds.index))
