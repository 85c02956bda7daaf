"""Predict the rows of each fold by machines fitted without the fold."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

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

T = TypeVar("T")


class MachineIndex(NamedTuple):
    """Which machine computed each of the `q` values of a row."""

    C: Int[Array, " q"]  # index in the vector of `C`
    size: Int[Array, " q"]  # index in the machine's `Family.sizes`

    __repr__ = short_repr


@runtime_checkable
class OnFold(Protocol):
    """A function that reduces the predictions of a fold, such as to the sums of their losses.

    The predictions of all rows by all machines might not fit into memory. The function is a pytree,
    so that a method can pass it to every device of a mesh.
    """

    @property
    def wanted(self) -> Bool[Array, "s v"] | Bool[np.ndarray, "s v"] | None:
        """For each `C` and fold, whether its results are needed; None if all are.

        A method that fits every fold and `C` separately skips the other fits, and returns zeros for
        them. A method with one factorisation for every `C` may skip the folds that are wanted for
        no `C`. Methods that compute all results together ignore it.
        """
        ...

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: MachineIndex
    ) -> tuple[PyTree, PyTree]:
        """Reduce the predictions of the `q` machines `which`, of `l` outputs, at a fold's `r` rows.

        Returns:
            Two pytrees, of which the second may be None. The first holds sums over the rows, such
            as sums of losses, with last axis `q`. The second holds results for each row, such as
            the predictions of one machine, with first axis `r`.
        """
        ...

    def over_C(self, kept: PyTree) -> PyTree:
        """Join the row results of calls that reduced the machines of one `C` each.

        The row results `kept` have the leading axes `s v r`: values of `C`, folds, rows. The joined
        results have the leading axes `v r`.
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


class Solutions(NamedTuple):
    """The machines of all rows for each of `s` values of `C`, in the dual."""

    C: Float[Array, " s"]
    coefficients: Float[Array, "s n l"]
    intercepts: Float[Array, "s l"]
    relative_residual: Float[Array, " s"]  # see `dual.DualFit`
    statuses: Int[Array, " s"]

    __repr__ = short_repr


FitStart = Sums | Start | Solutions
"""What validation may compute from which a fit to all rows can start."""


class HeldOut(NamedTuple):
    """The results of `on_fold` for `v` folds of `r` rows, `s` values of `C` and `k` sizes.

    Results may be zeros where `OnFold.wanted` is False.
    """

    sums: PyTree  # sums over the rows of each fold, shape `v s .. k`
    kept: PyTree  # results for each row, the second pytree of `OnFold`, shape `v r ..`
    statuses: Int[Array, " s"]  # for each `C`, the worst stop code over folds
    total: FitStart | None = None  # what a fit to all rows can start from, if it is known

    __repr__ = short_repr

    def joined(self, other: "HeldOut") -> "HeldOut":
        """Return the sum of the results on two disjoint sets of folds, as NumPy arrays.

        Each result is zero on the folds of the other.
        """
        sums, kept = jax.tree.map(np.add, (self.sums, self.kept), (other.sums, other.kept))
        statuses: Any = np.maximum(self.statuses, other.statuses)
        return HeldOut(sums, kept, statuses, self.total)


def each_fold(
    predict: Callable[[PyTree, Rows, PyTree], tuple[Float[Array, "r s l"], Int[Array, " s"]]],
    shared: PyTree,
    per_fold: PyTree,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    *,
    at_once: int = 0,
    only_wanted: bool = False,
) -> HeldOut:
    """Predict the rows of each fold, by machines of one size for every `C` at once.

    On a mesh each device predicts a part of the rows of every fold. If `per_fold` is None, each
    device predicts whole folds, for methods that predict the rows of a fold together.

    Args:
        predict: a function of `shared`, the rows of one fold and the fold's entry of `per_fold`. It
            returns values and stop codes, and should close over no arrays, see `spread`.
        shared: any pytree.
        per_fold: a pytree with leading axis `v`, or None.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions of each fold.
        at_once: the folds are predicted together if they have at most this many rows in all, else
            one after another (static). A `predict` that fits machines is faster one by one.
        only_wanted: return zeros for the folds that are wanted for no `C`; a loop over folds skips
            them (static). With a mesh all folds are predicted.
    """
    mesh, whole_folds = parts.mesh, per_fold is None
    wanted = folds_wanted(on_fold) if only_wanted and mesh is None else None

    def all_folds(
        shared: PyTree, arrays: tuple[Array, Array, Array], per_fold: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        """Return the results of all folds, from the rows on one device."""
        shared, code, on_fold, which = shared

        def one_fold(fold: tuple[tuple[Array, Array, Array], PyTree]) -> tuple[PyTree, ...]:
            rows = Rows(*fold[0], code)
            values, status = predict(shared, rows, fold[1])
            return *on_fold(rows, values, which), status

        folds = (arrays, per_fold)
        if wanted is None:
            sums, kept, status = map_folds(one_fold, folds, at_once)
        else:
            sums, kept, status = map_folds(zeros_unless(one_fold), (folds, wanted), at_once)
        if mesh is not None and not whole_folds:
            sums = jax.lax.psum(sums, mesh.axis_names)
        return sums, kept, status

    axes = ((None, 0, 0), (0, 0, 0)) if whole_folds else ((None, 1, None), (None, 1, None))
    weights = parts.weights
    if mesh is not None and not whole_folds:  # weight 0 for the copies of rows that `spread` adds
        weights = jnp.pad(weights, [(0, 0), (0, -weights.shape[1] % mesh.size)])
    sums, kept, status = spread(all_folds, mesh, *axes)(
        (shared, parts.code, on_fold, each_C(C)), (parts.X, parts.y, weights), per_fold
    )
    return HeldOut(with_size_axis(sums), kept, jnp.max(status, axis=0))


def each_C(C: Float[Array, " s"]) -> MachineIndex:
    """Return the `MachineIndex` for one machine of each `C`."""
    indices = jnp.arange(len(C), dtype=jnp.int32)
    return MachineIndex(indices, jnp.zeros_like(indices))


def with_size_axis(sums: PyTree) -> PyTree:
    """Rearrange sums for machines of one size, shape `v .. s`, to `v s .. 1` as in `HeldOut`."""
    return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 1)[..., None], sums)


def each_size(C_index: Int[Array, ""], n_sizes: int) -> MachineIndex:
    """Return the `MachineIndex` for one machine of each size, all with one `C`."""
    sizes = jnp.arange(n_sizes, dtype=jnp.int32)
    return MachineIndex(jnp.full_like(sizes, C_index), sizes)


def each_fold_and_C(
    fit: Callable[[Float[Array, ""], Int[Array, ""]], Family],
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
) -> HeldOut:
    """Predict every fold for every `C`, by one fit for each pair; on a CPU one after another.

    The function `fit` of one `C` and the number of a fold returns the machines fitted without this
    fold. Other arguments are as for `each_fold`.
    """

    def one(pair: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        i, fold = pair
        return on_held_out_rows(fit(C[i], fold), parts.fold(fold), on_fold, i)

    s, v = len(C), len(parts.weights)
    predict = where_wanted(one, on_fold.wanted)
    return over_C_and_folds(map_systems(predict, C_and_folds(s, v)), on_fold, s, v)


def on_held_out_rows(
    family: Family, rows: Rows, on_fold: OnFold, C_index: Int[Array, ""]
) -> tuple[PyTree, PyTree, Int[Array, ""]]:
    """Return what `on_fold` computes from the values of machines at a fold, and their stop code.

    The machines of every size of the `family` were fitted without the rows, with one `C`.
    """
    values = family.values(rows.X)
    return *on_fold(rows, values, each_size(C_index, values.shape[1])), family.status


def where_wanted(
    function: Callable[[tuple[Array, Array]], PyTree],
    wanted: Bool[Array, "s v"] | Bool[np.ndarray, "s v"] | None,
) -> Callable[[tuple[Array, Array]], PyTree]:
    """Change a function of a pair of `C_and_folds` to return zeros for pairs that are not wanted.

    A loop over pairs skips pairs that are not wanted; a batch of pairs computes all.
    """
    if wanted is None:
        return function
    is_wanted, or_zeros = jnp.asarray(wanted), zeros_unless(function)
    return lambda pair: or_zeros((pair, is_wanted[pair]))


def zeros_unless(function: Callable[[Any], T]) -> Callable[[tuple[Any, Bool[Array, ""]]], T]:
    """Return a function of an argument and a flag: `function`, or zeros if the flag is False.

    A loop skips the calls whose flag is False; a batch computes all.
    """

    def or_zeros(argument_and_flag: tuple[Any, Bool[Array, ""]]) -> T:
        argument, flag = argument_and_flag
        shapes = jax.eval_shape(function, argument)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return jax.lax.cond(flag, function, lambda _: zeros, argument)

    return or_zeros


def folds_wanted(on_fold: OnFold) -> Bool[Array, " v"] | None:
    """Return whether each fold is wanted for any `C`; None if all are."""
    return None if on_fold.wanted is None else jnp.any(jnp.asarray(on_fold.wanted), axis=0)


def C_and_folds(s: int, v: int) -> tuple[Int[Array, " sv"], Int[Array, " sv"]]:
    """Return all pairs of one of `s` values of `C` and one of `v` folds, or groups of folds.

    The first array has the indices of `C`, the second the numbers of the folds.
    """
    C_index, fold = jnp.indices((s, v), dtype=jnp.int32).reshape(2, -1)
    return C_index, fold


def over_C_and_folds(
    results: tuple[PyTree, PyTree, Array], on_fold: OnFold, s: int, v: int
) -> HeldOut:
    """Return the `HeldOut` of results for the pairs of `C_and_folds(s, v)`.

    The results are sums and row results of `on_fold`, and stop codes; their leading axis runs over
    the pairs.
    """
    sums, kept, status = jax.tree.map(lambda a: a.reshape(s, v, *a.shape[1:]), results)
    return HeldOut(
        jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), sums),
        None if kept is None else on_fold.over_C(kept),
        jnp.max(status, axis=1),
    )
