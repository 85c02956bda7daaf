"""Training rows in one pytree: inputs, targets, weights, output code and mesh."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._numerics import as_array
from .._repr import short_repr
from ..multiclass import Code


@runtime_checkable
class FoldLayout(Protocol):
    """A division of `n` rows into `v` folds of up to `r` rows; see `validation.folds.Folds`."""

    @property
    def valid(self) -> Any:
        """Whether each place of a fold holds a row, not padding; shape `v r`."""
        ...

    def gather(self, x: Array) -> Array:
        """Return an array of all rows, shape `n ..`, laid out by folds, shape `v r ..`."""
        ...

    def scatter(self, values: Array, n: int) -> Array:
        """Return an array laid out by folds, shape `v r ..`, in row order, shape `n ..`."""
        ...


class Rows(eqx.Module):
    """Weighted rows. If they are laid out by folds, `X`, `y` and `weights` have a leading axis `v`.

    Attributes:
        X: inputs in scaled units, as the prototypes are, shape `n d`.
        y: targets, shape `n` or `n c`; with a code, class numbers, shape `n`.
        weights: row weights, shape `n`; a row of weight 0 is absent.
        code: turns class numbers into targets of binary problems; None for real targets.
        mesh: the devices over which the rows are spread; None for one device (static).
    """

    X: Float[Array, "*v n d"]
    y: Float[Array, "..."] | Int[Array, "..."]
    weights: Float[Array, "*v n"]
    code: Code | None = None
    mesh: Mesh | None = eqx.field(static=True, default=None)

    __repr__ = short_repr

    def __len__(self) -> int:
        return self.weights.shape[-1]

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the inputs."""
        return self.X.dtype

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of one row's targets: `()`, `(c,)`, or `(l,)` with a code of `l` problems."""
        if self.code is not None:
            return (self.code.matrix.shape[1],)
        return self.y.shape[self.weights.ndim :]

    @property
    def targets(self) -> Float[Array, "..."]:
        """Real targets, shape `n *outputs`: with a code, the targets of every binary problem."""
        if self.code is None:
            return self.y
        return jnp.asarray(self.code.matrix, self.dtype)[self.y]

    @property
    def target_columns(self) -> Float[Array, "*v n l"]:
        """Real targets with a column for each output, even if there is only one output."""
        return self.targets.reshape(*self.weights.shape, -1)

    @property
    def problem_weights(self) -> Float[Array, "..."]:
        """Row weights, shape `n`; or `n l` if some binary problems leave out classes."""
        if self.code is None or self.code.shares_all_rows:
            return self.weights
        return self.weights[..., None] * jnp.abs(self.targets)

    def with_weights(self, weights: Float[Array, "*v n"]) -> "Rows":
        """Return the rows with other weights."""
        return Rows(self.X, self.y, weights, self.code, self.mesh)

    def without(self, numbers: Int[np.ndarray, " r"]) -> "Rows":
        """Return all rows, with weight 0 for the rows with the given numbers; on the host."""
        weights = np.array(self.weights)
        weights[numbers] = 0
        return self.with_weights(jax.device_put(weights))

    def without_fold(self, layout: FoldLayout, fold: Int[Array, ""]) -> "Rows":
        """Return all rows, with weight 0 for the rows of one fold."""
        valid = jnp.asarray(layout.valid)
        in_fold = (jnp.arange(len(valid), dtype=jnp.int32) == fold)[:, None] & valid
        held_out = layout.scatter(in_fold, len(self))
        return self.with_weights(jnp.where(held_out, 0, self.weights))

    def by_fold(self, layout: FoldLayout) -> "Rows":
        """Return the rows laid out by folds; padding has weight 0.

        Targets that are not finite become 0 in rows of weight 0, so that they cannot reach sums.
        """
        y = as_array(self.y)
        if self.code is None:
            absent = (self.weights <= 0).reshape(-1, *[1] * (y.ndim - 1))
            y = jnp.where(absent & ~jnp.isfinite(y), 0, y)
        weights = jnp.where(layout.valid, layout.gather(self.weights), 0)
        return Rows(layout.gather(self.X), layout.gather(y), weights, self.code, self.mesh)

    def fold(self, fold: Int[Array, ""]) -> "Rows":
        """Return the rows of one fold; `self` must be laid out by folds."""
        return Rows(self.X[fold], self.y[fold], self.weights[fold], self.code, self.mesh)


def rows_of(
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    code: Code | None = None,
) -> Rows:
    """Return the `Rows` of some arrays; without weights, each row has weight 1."""
    weights = jnp.ones(X.shape[0], X.dtype) if weights is None else weights
    return Rows(X, y, weights, code)
