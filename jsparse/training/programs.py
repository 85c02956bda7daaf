"""The programs that validate: one for each shape and method."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._programs import compiled
from .._repr import short_repr
from .._types import Key
from ..machines.from_sums import FromSums
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method
from ..machines.rows import Rows
from ..scaling import Standardization, standardize
from ..search.template import Template
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds
from ..validation.validate import FoldLosses, Validation, mean_losses


class RowsOfFolds(NamedTuple):
    """A kernel and the rows that its machines are fitted to and predict, fold by fold."""

    method: Method
    template: Template
    points: Float[Array, "m d"] | None
    rows: Rows
    layout: Folds | ShardedFolds
    key: Key | None
    theta: Any  # the kernel as a point of the template, or several points, shape `*q p`

    __repr__ = short_repr

    def held_out(self, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
        """Predict the rows of each fold for every `C`, see `Method.held_out`."""
        kernel = self.template.at(self.theta)
        layout = self.rows, self.layout
        return self.method.held_out(kernel, self.points, C, *layout, on_fold, self.key)


class SumsOfFolds(NamedTuple):
    """Features, their sums over the rows of every part, and the rows to predict, by part."""

    method: FromSums
    sums: Sums
    parts: Rows  # of fewer parts than were summed if some are not validated
    key: Key | None

    __repr__ = short_repr

    def held_out(self, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
        """Predict the rows of each part for every `C`, see `FromSums.held_out_from_sums`."""
        features, sums = self.sums
        if self.parts.code is None:  # one target is a column, as solutions have it
            sums = sums._replace(
                cross=sums.cross[..., None],
                target_square=sums.target_square[..., None],
                target_sum=sums.target_sum[..., None],
            )
        per_fold = jax.tree.map(lambda a: a[: self.parts.weights.shape[0]], sums)
        total = Sums(features, sums.joined)
        return self.method.held_out_from_sums(total, per_fold, C, self.parts, on_fold, self.key)


HeldOutRows = RowsOfFolds | SumsOfFolds


@compiled
def evaluate(held_out: HeldOutRows, C: Float[Array, " s"], on_fold: FoldLosses) -> Validation:
    """Return the errors of one kernel for every `C`, with the predictions of one machine.

    One program for the search and for what comes after it: out-of-fold values and the sums of all
    rows. Predictions are laid out by folds.
    """
    return mean_losses(held_out.held_out(C, on_fold))


@compiled
def evaluate_batch(
    held_out: RowsOfFolds, C: Float[Array, "q s"], on_fold: FoldLosses
) -> Validation:
    """Return the errors of `q` kernels, each with its own vector of `C`; leading axis `q`.

    By `vmap`, for accelerators, which it fills; memory is that of `q` blocks of rows.
    """

    def one(theta: Array, C: Array) -> Validation:
        validation = mean_losses(held_out._replace(theta=theta).held_out(C, on_fold))
        return validation._replace(total=None)

    return jax.vmap(one)(held_out.theta, C)


@compiled
def hold_out(held_out: HeldOutRows, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
    """Return what `on_fold` makes of the rows of every fold, for every `C`."""
    return held_out.held_out(C, on_fold)


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
