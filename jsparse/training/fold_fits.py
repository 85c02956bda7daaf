"""Predictions of held-out rows, for which the host calls a compiled fit for each fold and `C`.

The same program then makes the last fit to all rows, unless binary problems differ in `C`. A
program of all folds, such as `source.evaluate`, would contain the fit once more, and for some
methods compiling the fit takes longer than running it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._lapack_threads import LARGE_SYSTEM
from .._programs import compiled
from .._runtime import usable_cores
from .._threads import map_in_threads
from ..machines.family import Family
from ..machines.held_out import HeldOut, OnFold, on_held_out_rows, over_C_and_folds
from ..machines.method import Method
from ..machines.rows import Rows
from ..search.problem import Problem
from ..validation.folds import Folds

# Limit of the rows of all concurrent fits together. A fit to more rows shares its operations among
# the cores well, and takes more memory.
_ROWS_AT_ONCE = 1 << 16


def held_out_by_fits(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    rows: Rows,
    folds: Folds,
    on_fold: OnFold,
) -> HeldOut:
    """Predict each fold by machines from `Method.fits_over_C`.

    They may differ from the machines of `Method.held_out`. Only the folds that `on_fold.wanted`
    names are fitted; at least one must be. On a CPU, cores share the folds. The function runs on
    the host, so no array may be traced.

    Args:
        problem: the method, the template, the points and the key.
        theta: the kernel as a point of the template.
        C: weights of the data-fit term.
        rows: the rows, on one device.
        folds: the folds of the rows.
        on_fold: reduces the predictions of each fold.
    """
    kernel, s, v = problem.template.at(theta), len(C), len(folds.index)
    wanted = np.ones((s, v), bool) if on_fold.wanted is None else np.asarray(on_fold.wanted)
    index, valid = (np.asarray(a) for a in folds)

    def results_of_fold(fold: int) -> dict[tuple[int, int], PyTree]:
        """Return the results of a fold for each wanted `C`, by the numbers of both."""
        training_rows = rows.without(index[fold, valid[fold]])
        part = Folds(index[fold : fold + 1], valid[fold : fold + 1])
        C_indices = np.flatnonzero(wanted[:, fold])
        families = problem.method.fits_over_C(
            kernel, problem.points, C[C_indices], training_rows, problem.key
        )
        results = {}
        for i, family in zip(C_indices, families, strict=True):
            result = _reduce_fold(family, rows, part, on_fold, np.int32(i))
            results[int(i), fold] = jax.tree.map(np.asarray, result)
        return results

    fitted = np.flatnonzero(np.any(wanted, axis=0)).tolist()
    threads = _folds_at_once(problem.method, len(rows))
    parts = map_in_threads(results_of_fold, fitted, threads)
    results = {pair: result for part in parts for pair, result in part.items()}
    zeros = jax.tree.map(np.zeros_like, next(iter(results.values())))
    all_results = [results.get(pair, zeros) for pair in np.ndindex(s, v)]
    stacked: Any = jax.tree.map(lambda *arrays: np.stack(arrays), *all_results)
    return _join(stacked, on_fold, s, v)


def _folds_at_once(method: Method, n: int) -> int:
    """Return how many folds to fit at the same time on a CPU, if each fit reads `n` rows."""
    if method.largest_system(n) >= LARGE_SYSTEM:
        return 1  # LAPACK has several threads, see `_lapack_threads`
    return max(1, min(usable_cores(), _ROWS_AT_ONCE // n))


@compiled
def _reduce_fold(
    family: Family, rows: Rows, fold: Folds, on_fold: OnFold, C_index: Int[Array, ""]
) -> tuple[PyTree, PyTree, Int[Array, ""]]:
    """Return what `on_fold` makes of the predictions of a fold, and the machines' stop code."""
    return on_held_out_rows(family, rows.by_fold(fold).fold(jnp.int32(0)), on_fold, C_index)


@functools.partial(compiled, static_argnums=(2, 3))
def _join(results: tuple[PyTree, PyTree, Array], on_fold: OnFold, s: int, v: int) -> HeldOut:
    """Return the `HeldOut` of results for each of `s` values of `C` and `v` folds."""
    return over_C_and_folds(results, on_fold, s, v)
