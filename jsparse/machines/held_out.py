"""Predict the rows of each fold by machines fitted without the fold."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._blocks import map_folds, map_systems
from .._mesh import spread
from .._repr import short_repr
from ..features import FeatureMap
from ..normal_equations import NormalEquations
from .family import Family
from .rows import Rows


class MachineIndex(NamedTuple):
    """Which machine computed each of the `q` values of a row."""

    C: Int[Array, " q"]  # index in the vector of `C`
    size: Int[Array, " q"]  # index in the machine's `Family.sizes`

    __repr__ = short_repr


@runtime_checkable
class OnFold(Protocol):
    """A function that reduces the predictions of a fold, such as to the sums of their losses.

    The predictions of all rows by all machines together might not fit into memory.

    It is a pytree, so that a method can pass it to every device of a mesh.
    """

    @property
    def wanted(self) -> Bool[Array, "s v"] | Bool[np.ndarray, "s v"] | None:
        """For each `C` and fold, whether its results are needed; None if all are.

        A method that fits every fold and `C` separately skips the other fits, and its results for
        them are zeros. Methods that compute all results together ignore it.
        """
        ...

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: MachineIndex
    ) -> tuple[PyTree, PyTree]:
        """Reduce the predictions of `q` machines with `l` outputs at `r` rows of one fold.

        Args:
            rows: the rows.
            values: the predictions, shape `r q l`.
            which: the `C` and the size of each machine.

        Returns:
            Two pytrees, of which the second may be None. The first holds sums over the rows, such
            as sums of losses, with last axis `q`. The second holds results for each row, such as
            the predictions of one machine, with first axis `r`.
        """
        ...

    def over_C(self, kept: PyTree) -> PyTree:
        """Return the row results of all machines, if each call reduced the machines of one `C`.

        Args:
            kept: the row results, with leading axes over values of `C` and folds, shape `s v r ..`.

        Returns:
            A pytree with leading axes `v r`.
        """
        ...


class Sums(NamedTuple):
    """Normal equations, and the features whose products they sum."""

    features: FeatureMap
    equations: NormalEquations

    __repr__ = short_repr


class Start(NamedTuple):
    """Coefficients from which an iterative fit starts."""

    coefficients: Float[Array, "m l"]

    __repr__ = short_repr


class HeldOut(NamedTuple):
    """The results of `on_fold` for `v` folds of `r` rows, `s` values of `C` and `k` sizes.

    They may be zeros where `OnFold.wanted` is False.
    """

    sums: PyTree  # sums over the rows of each fold, shape `v s .. k`
    kept: PyTree  # results for each row, the second pytree of `OnFold`, shape `v r ..`
    statuses: Int[Array, " s"]  # for each `C`, the worst stop code over folds
    total: Sums | Start | None = None  # what a fit to all rows can start from, if it is known

    __repr__ = short_repr


def each_fold(
    predict: Callable[[PyTree, Rows, PyTree], tuple[Float[Array, "r s l"], Int[Array, " s"]]],
    shared: PyTree,
    per_fold: PyTree,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    *,
    at_once: int = 0,
) -> HeldOut:
    """Predict the rows of each fold, by machines of one size for every `C` at once.

    On a mesh each device predicts a part of the rows of every fold. If `per_fold` is None, each
    device predicts whole folds, for methods that predict the rows of a fold together.

    Args:
        predict: a function of `shared`, the rows of one fold and the fold's entry of `per_fold`. It
            returns values, shape `r s l`, and a stop code for each `C`. It should close over no
            arrays, see `spread`.
        shared: any pytree.
        per_fold: a pytree with leading axis `v`, or None.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions of each fold.
        at_once: the folds are predicted together if they have at most this many rows in all, else
            one after another (static). A `predict` that fits machines is faster one by one.
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

        sums, kept, status = map_folds(one_fold, (arrays, per_fold), at_once)
        if mesh is not None and not whole_folds:
            sums = jax.lax.psum(sums, mesh.axis_names)
        return sums, kept, status

    axes = ((None, 0, 0), (0, 0, 0)) if whole_folds else ((None, 1, None), (None, 1, None))
    arrays, r = (parts.X, parts.y, parts.weights), parts.weights.shape[1]
    if mesh is not None and not whole_folds and r % mesh.size:  # pad with rows of weight 0
        fill = [(0, 0), (0, -r % mesh.size)]
        X, y = (jnp.pad(a, [*fill, *[(0, 0)] * (a.ndim - 2)], mode="edge") for a in arrays[:2])
        arrays = X, y, jnp.pad(parts.weights, fill)
    sums, kept, status = spread(all_folds, mesh, *axes)(
        (shared, parts.code, on_fold, each_C(C)), arrays, per_fold
    )
    kept = jax.tree.map(lambda a: a[:, :r], kept)
    return HeldOut(with_size_axis(sums), kept, jnp.max(status, axis=0))


def each_C(C: Float[Array, " s"]) -> MachineIndex:
    """Return the `MachineIndex` for one machine of each `C`."""
    places = jnp.arange(C.shape[0], dtype=jnp.int32)
    return MachineIndex(places, jnp.zeros_like(places))


def with_size_axis(sums: PyTree) -> PyTree:
    """Rearrange the sums for machines of one size, shape `v .. s`, to `v s .. 1` as in `HeldOut`.

    The axis of `C` becomes the second axis, and an axis of one size is appended.
    """
    return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 1)[..., None], sums)


def each_size(place_of_C: Int[Array, ""], n_sizes: int) -> MachineIndex:
    """Return the `MachineIndex` for one machine of each size, all with the same `C`."""
    sizes = jnp.arange(n_sizes, dtype=jnp.int32)
    return MachineIndex(jnp.full_like(sizes, place_of_C), sizes)


def each_fold_and_C(
    fit: Callable[[Float[Array, ""], Int[Array, ""]], Family],
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
) -> HeldOut:
    """Predict every fold for every `C`, by one fit for each; on a CPU one fit after another.

    Args:
        fit: a function of one `C` and the number of a fold, which returns the machines fitted
            without this fold.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions of each fold.
    """

    def one(place: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        i, fold = place
        rows, family = parts.fold(fold), fit(C[i], fold)
        values = family.values(rows.X)
        return *on_fold(rows, values, each_size(i, values.shape[1])), family.status

    s, v = len(C), len(parts.weights)
    predict = where_wanted(one, on_fold.wanted)
    return over_C_and_folds(map_systems(predict, C_and_folds(s, v)), on_fold, s, v)


def where_wanted(
    function: Callable[[tuple[Array, Array]], PyTree],
    wanted: Bool[Array, "s v"] | Bool[np.ndarray, "s v"] | None,
) -> Callable[[tuple[Array, Array]], PyTree]:
    """Return a function of a pair of `C_and_folds` that is zero at pairs that are not wanted.

    In a loop over pairs the function is not computed there; a batch of pairs computes all.
    """
    if wanted is None:
        return function
    is_wanted = jnp.asarray(wanted)

    def or_zeros(place: tuple[Array, Array]) -> PyTree:
        shapes = jax.eval_shape(function, place)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return jax.lax.cond(is_wanted[place], function, lambda _: zeros, place)

    return or_zeros


def C_and_folds(s: int, v: int) -> tuple[Int[Array, " sv"], Int[Array, " sv"]]:
    """Return all pairs of an index in `C` and the number of a fold, or of a group of folds."""
    i, fold = jnp.meshgrid(*(jnp.arange(k, dtype=jnp.int32) for k in (s, v)), indexing="ij")
    return i.reshape(-1), fold.reshape(-1)


def over_C_and_folds(
    results: tuple[PyTree, PyTree, Array], on_fold: OnFold, s: int, v: int
) -> HeldOut:
    """Return the `HeldOut` of results for the pairs of `C_and_folds`.

    Args:
        results: sums, row results and stop codes, each with a leading axis over the `s v` pairs.
        on_fold: the function that returned the sums and row results.
        s: number of values of `C`.
        v: number of folds.
    """
    sums, kept, status = jax.tree.map(lambda a: a.reshape(s, v, *a.shape[1:]), results)
    return HeldOut(
        jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), sums),
        None if kept is None else on_fold.over_C(kept),
        jnp.max(status, axis=1),
    )
