"""The rows that a machine is fitted to: inputs, targets, weights and output code in one pytree."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._numerics import as_array
from .._repr import short_repr
from ..multiclass import Code


@runtime_checkable
class FoldLayout(Protocol):
    """How rows are laid out by folds; see `validation.folds.Folds`."""

    @property
    def valid(self) -> Any:
        """False at padding, shape `v r`."""
        ...

    def gather(self, x: Array) -> Array:
        """Return `x (n, ...)` laid out by folds, `(v, r, ...)`."""
        ...

    def scatter(self, values: Array, n: int) -> Array:
        """Return values `(v, r, ...)` in the order of the rows, `(n, ...)`."""
        ...


class Rows(eqx.Module):
    """Weighted rows; laid out by folds, all arrays but the code have a leading axis `v`.

    Attributes:
        X: inputs in the units of the points, shape `n d`.
        y: targets, shape `n` or `n c`; with a code, class numbers, shape `n`.
        weights: row weights, shape `n`; a row of weight 0 is absent.
        code: several classes as several binary problems.
        mesh: the devices over which the rows are spread (static).
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
        """The shape of one row's targets: `()`, `(c,)`, or `(l,)` problems of a code."""
        if self.code is not None:
            return (self.code.matrix.shape[1],)
        return self.y.shape[self.weights.ndim :]

    @property
    def targets(self) -> Float[Array, "..."]:
        """Real targets, shape `n *outputs`: with a code, those of every binary problem."""
        if self.code is None:
            return self.y
        return jnp.asarray(self.code.matrix, self.dtype)[self.y]

    @property
    def target_columns(self) -> Float[Array, "*v n l"]:
        """The targets with a column for each output."""
        return self.targets.reshape(*self.weights.shape, -1)

    @property
    def problem_weights(self) -> Float[Array, "..."]:
        """Row weights; a column for each binary problem if some problems leave out classes."""
        if self.code is None or self.code.shares_all_rows:
            return self.weights
        return self.weights[..., None] * jnp.abs(self.targets)

    def with_weights(self, weights: Float[Array, "*v n"]) -> "Rows":
        """Return the same rows with other weights."""
        return Rows(self.X, self.y, weights, self.code, self.mesh)

    def without_fold(self, layout: FoldLayout, fold: Int[Array, ""]) -> "Rows":
        """Return the rows with weight 0 for the rows of one fold."""
        valid = jnp.asarray(layout.valid)
        in_fold = (jnp.arange(len(valid), dtype=jnp.int32) == fold)[:, None] & valid
        held_out = layout.scatter(in_fold, len(self))
        return self.with_weights(jnp.where(held_out, 0, self.weights))

    def by_fold(self, layout: FoldLayout) -> "Rows":
        """Return the rows laid out by folds; padding has weight 0.

        Targets of weight 0 that are not finite become 0, so that they reach no sum.
        """
        y = as_array(self.y)
        if self.code is None:
            absent = (self.weights <= 0).reshape(-1, *[1] * (y.ndim - 1))
            y = jnp.where(absent & ~jnp.isfinite(y), 0, y)
        weights = jnp.where(layout.valid, layout.gather(self.weights), 0)
        return Rows(layout.gather(self.X), layout.gather(y), weights, self.code, self.mesh)

    def fold(self, fold: Int[Array, ""]) -> "Rows":
        """Return the rows of one fold, of rows laid out by folds."""
        return Rows(self.X[fold], self.y[fold], self.weights[fold], self.code, self.mesh)


def rows_of(
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    code: Code | None = None,
    mesh: Mesh | None = None,
) -> Rows:
    """Return rows of arrays; without weights, each row counts 1."""
    weights = jnp.ones(X.shape[0], X.dtype) if weights is None else weights
    return Rows(X, y, weights, code, mesh)
