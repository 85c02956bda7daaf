"""The programs by which rows in memory are validated on: one for each shape and method."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._programs import compiled
from .._types import Key
from ..machines.held_out import HeldOut, OnFold
from ..machines.method import Method
from ..machines.rows import Rows
from ..scaling import Standardization, standardize
from ..search.template import Template
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds
from ..validation.validate import FoldLosses, Kept, Scoring, Validation, mean_losses


@functools.partial(compiled, static_argnames="scoring")
def evaluate(
    method: Method,
    template: Template,
    points: Float[Array, "m d"] | None,
    rows: Rows,
    layout: Folds | ShardedFolds,
    key: Key | None,
    theta: Float[Array, " p"],
    C: Float[Array, " s"],
    scoring: Scoring,
    keep: Kept,
) -> Validation:
    """Return the errors of one kernel for every `C`, with the predictions of one machine.

    One program for the search and for what comes after it: out-of-fold values and the sums of all
    rows. Predictions are laid out by folds.
    """
    on_fold = FoldLosses(scoring, keep)
    return mean_losses(method.held_out(template.at(theta), points, C, rows, layout, on_fold, key))


@functools.partial(compiled, static_argnames="scoring")
def evaluate_batch(
    method: Method,
    template: Template,
    points: Float[Array, "m d"] | None,
    rows: Rows,
    layout: Folds | ShardedFolds,
    key: Key | None,
    thetas: Float[Array, "q p"],
    C: Float[Array, "q s"],
    scoring: Scoring,
) -> Validation:
    """Return the errors of kernels, each with its own vector of `C`; leading axis `q`.

    By `vmap`, for accelerators, which it fills; memory is that of `q` blocks of rows.
    """

    def one(theta: Array, c: Array) -> Validation:
        on_fold = FoldLosses(scoring)
        held = method.held_out(template.at(theta), points, c, rows, layout, on_fold, key)
        return mean_losses(held)._replace(total=None)

    return jax.vmap(one)(thetas, C)


@compiled
def hold_out(
    method: Method,
    template: Template,
    points: Float[Array, "m d"] | None,
    rows: Rows,
    layout: Folds | ShardedFolds,
    key: Key | None,
    theta: Float[Array, " p"],
    C: Float[Array, " s"],
    on_fold: OnFold,
) -> HeldOut:
    """Return what `on_fold` makes of the rows of every fold, for every `C`."""
    return method.held_out(template.at(theta), points, C, rows, layout, on_fold, key)


@functools.partial(compiled, static_argnums=2)
def target_columns(X: Float[Array, "n d"], y: Array, classes: int | None) -> Float[Array, "n c"]:
    """Return real targets as columns, and of class numbers each class against all others."""
    if classes is None:
        return y.reshape(len(X), -1)
    own = y[:, None] == jnp.arange(classes, dtype=y.dtype)[None, :]
    return jnp.where(own, 1, -1).astype(X.dtype)


some_rows = compiled(lambda arrays, rows: jax.tree.map(lambda a: a[rows], arrays))


@functools.partial(compiled, quickly=True)
def standardised(
    X: Float[Array, "r d"], weights: Float[Array, " r"]
) -> tuple[Standardization, Float[Array, "r d"]]:
    """Return the standardisation of weighted rows, and the rows standardised."""
    scaling = standardize(X, weights)
    return scaling, scaling.apply(X)
