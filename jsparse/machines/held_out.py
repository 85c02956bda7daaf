"""Predictions of the rows of each fold by machines that have not seen them."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .._blocks import map_systems
from .._mesh import spread
from .._repr import short_repr
from ..features import FeatureMap
from ..normal_equations import NormalEquations
from .rows import Rows


class Which(NamedTuple):
    """Which machine each of `q` values of a row is of."""

    C: Int[Array, " q"]  # place in the vector of `C`
    size: Int[Array, " q"]  # place among the sizes

    __repr__ = short_repr


@runtime_checkable
class OnFold(Protocol):
    """Reduces the predictions of some rows of a fold, so that no table of all is in memory.

    It is a pytree, so that a method may pass it to every device of a mesh.
    """

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: Which
    ) -> tuple[PyTree, PyTree]:
        """Return sums over rows, last axis `q`, and what is kept of each row, first axis `r`.

        What is kept is summed over calls for the same rows and other machines.
        """
        ...


class Sums(NamedTuple):
    """Sums over rows, and the features that were summed."""

    features: FeatureMap
    equations: NormalEquations

    __repr__ = short_repr


class HeldOut(NamedTuple):
    """What `on_fold` returned for the rows of every fold."""

    sums: PyTree  # sums over the rows of a fold, shape `v s .. k`
    kept: PyTree  # of each row, `v r ..`
    statuses: Int[Array, " s"]  # the worst over folds
    total: Sums | None = None  # sums over all rows, if the method has them

    __repr__ = short_repr


Predict = Callable[
    [Float[Array, ""], Int[Array, ""], Rows], tuple[Float[Array, "r k l"], Int[Array, ""]]
]
"""From a `C`, the number of a fold and its rows to the values of all sizes, and a stop code."""


PredictFold = Callable[[PyTree, Rows, PyTree], tuple[Float[Array, "r s l"], Int[Array, " s"]]]
"""From what all folds share, a fold's rows and what is its own to values and stop codes."""


def each_fold(
    predict: PredictFold,
    shared: PyTree,
    per_fold: PyTree,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
) -> HeldOut:
    """Predict fold by fold, by machines of one size for every `C` at once.

    On a mesh each device has its own rows of every fold. Without `per_fold` it has whole folds, for
    methods that predict the rows of a fold together.

    Args:
        predict: see `PredictFold`; it should close over no arrays, see `spread`.
        shared: what all folds share.
        per_fold: what differs between folds, leading axis `v`; or None.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions.
    """
    mesh, whole_folds = parts.mesh, per_fold is None

    def all_folds(
        shared: PyTree, arrays: tuple[Array, Array, Array], per_fold: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        of_all, code, on_fold, which = shared

        def one_fold(fold: tuple[tuple[Array, Array, Array], PyTree]) -> tuple[PyTree, ...]:
            rows = Rows(*fold[0], code)
            values, status = predict(of_all, rows, fold[1])
            sums, kept = on_fold(rows, values, which)
            return sums, kept, status

        sums, kept, status = jax.lax.map(one_fold, (arrays, per_fold))
        if mesh is not None and not whole_folds:
            sums = jax.lax.psum(sums, mesh.axis_names)
        return sums, kept, status

    axes = ((None, 0, 0), (0, 0, 0)) if whole_folds else ((None, 1, None), (None, 1, None))
    arrays, r = (parts.X, parts.y, parts.weights), parts.weights.shape[1]
    if mesh is not None and not whole_folds and r % mesh.size:  # filled up with rows of weight 0
        fill = [(0, 0), (0, -r % mesh.size)]
        X, y = (jnp.pad(a, [*fill, *[(0, 0)] * (a.ndim - 2)], mode="edge") for a in arrays[:2])
        arrays = X, y, jnp.pad(parts.weights, fill)
    sums, kept, status = spread(all_folds, mesh, *axes)(
        (shared, parts.code, on_fold, each_C(C)), arrays, per_fold
    )
    kept = jax.tree.map(lambda a: a[:, :r], kept)
    return HeldOut(one_size(sums), kept, jnp.max(status, axis=0))


def each_C(C: Float[Array, " s"]) -> Which:
    """Return which machines values are of if there is one machine for each `C`."""
    places = jnp.arange(C.shape[0], dtype=jnp.int32)
    return Which(places, jnp.zeros_like(places))


def one_size(sums: PyTree) -> PyTree:
    """Return sums `v .. s` over folds by machines of one size as `HeldOut` has them, `v s .. 1`."""
    return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 1)[..., None], sums)


def each_fold_and_C(
    predict: Predict, C: Float[Array, " s"], parts: Rows, on_fold: OnFold
) -> HeldOut:
    """Predict every fold for every `C`, one machine after another on a CPU.

    Args:
        predict: by a machine that has not seen the fold.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions.
    """
    v, s = parts.weights.shape[0], C.shape[0]

    def one(place: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        i, fold = place
        rows = parts.fold(fold)
        values, status = predict(C[i], fold, rows)
        sizes = jnp.arange(values.shape[1], dtype=jnp.int32)
        sums, kept = on_fold(rows, values, Which(jnp.full_like(sizes, i), sizes))
        return sums, kept, status

    places = jnp.meshgrid(*(jnp.arange(k, dtype=jnp.int32) for k in (s, v)), indexing="ij")
    sums, kept, status = map_systems(one, tuple(place.reshape(-1) for place in places))

    def by_place(a: Array) -> Array:
        return a.reshape(s, v, *a.shape[1:])

    return HeldOut(
        jax.tree.map(lambda a: jnp.swapaxes(by_place(a), 0, 1), sums),
        jax.tree.map(lambda a: jnp.sum(by_place(a), axis=0), kept),
        jnp.max(status.reshape(s, v), axis=1),
    )
