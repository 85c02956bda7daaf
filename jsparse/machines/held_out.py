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
from .family import Family
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


def each_fold(
    predict: Callable[[PyTree, Rows, PyTree], tuple[Float[Array, "r s l"], Int[Array, " s"]]],
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
        predict: from `shared`, the rows of a fold and its entry of `per_fold` to values and stop
            codes. It should close over no arrays, see `spread`.
        shared: any pytree.
        per_fold: a pytree whose leading axis `v` is that of the folds; or None.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions.
    """
    mesh, whole_folds = parts.mesh, per_fold is None

    def all_folds(
        shared: PyTree, arrays: tuple[Array, Array, Array], per_fold: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        shared, code, on_fold, which = shared

        def one_fold(fold: tuple[tuple[Array, Array, Array], PyTree]) -> tuple[PyTree, ...]:
            rows = Rows(*fold[0], code)
            values, status = predict(shared, rows, fold[1])
            return *on_fold(rows, values, which), status

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


def each_size(place_of_C: Int[Array, ""], n_sizes: int) -> Which:
    """Return which machines values are of if there is one `C`, and a machine of each size."""
    sizes = jnp.arange(n_sizes, dtype=jnp.int32)
    return Which(jnp.full_like(sizes, place_of_C), sizes)


def each_fold_and_C(
    fit: Callable[[Float[Array, ""], Int[Array, ""]], Family],
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
) -> HeldOut:
    """Predict every fold for every `C`, one machine after another on a CPU.

    From a `C` and the number of a fold, `fit` gives machines that have not seen the fold.
    """

    def one(place: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        i, fold = place
        rows, family = parts.fold(fold), fit(C[i], fold)
        values = family.values(rows.X)
        return *on_fold(rows, values, each_size(i, values.shape[1])), family.status

    s, v = len(C), len(parts.weights)
    return over_C_and_folds(map_systems(one, C_and_folds(s, v)), s, v)


def C_and_folds(s: int, v: int) -> tuple[Int[Array, " sv"], Int[Array, " sv"]]:
    """Return all pairs of a place in `C` and the number of a fold, or of a group of folds."""
    i, fold = jnp.meshgrid(*(jnp.arange(k, dtype=jnp.int32) for k in (s, v)), indexing="ij")
    return i.reshape(-1), fold.reshape(-1)


def over_C_and_folds(results: tuple[PyTree, PyTree, Array], s: int, v: int) -> HeldOut:
    """Return what `on_fold` returned for `C_and_folds`, and stop codes, as `HeldOut`."""
    sums, kept, status = jax.tree.map(lambda a: a.reshape(s, v, *a.shape[1:]), results)
    return HeldOut(
        jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), sums),
        jax.tree.map(lambda a: jnp.sum(a, axis=0), kept),
        jnp.max(status, axis=1),
    )
