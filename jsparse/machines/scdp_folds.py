"""Held-out predictions by SCDP machines of every size, from the sums of each fold."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .._blocks import systems_at_once
from .._numerics import dot
from ..kernels import Kernel
from ..normal_equations import NormalEquations
from ..pursuit.path import Path
from .held_out import HeldOut, OnFold, Which
from .rows import Rows
from .scdp_system import CandidateColumns

Paths = Callable[[NormalEquations, Float[Array, ""]], tuple[Path, Float[Array, "v k c"]]]
"""From a batch of sums and a `C` to the paths and their intercepts, see `SCDP.paths`."""


def predict_folds(
    paths: Paths,
    columns: CandidateColumns,
    total: NormalEquations,
    per_fold: NormalEquations,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
) -> HeldOut:
    """Predict every fold by the paths of the total less the fold (Karsmakers 2011, Algorithm 4).

    On a CPU the folds come one after another, as one fills it; elsewhere the paths of all folds go
    in step. Arguments as for `FromSums.held_out_from_sums`.
    """
    v, s = parts.weights.shape[0], C.shape[0]
    together = 1 if systems_at_once() == 1 else v

    def grouped(a: Array) -> Array:
        return a[:v].reshape(v // together, together, *a.shape[1:])

    rows = parts.X, parts.y, parts.weights
    groups = jax.tree.map(grouped, (rows, per_fold))

    def predict(place: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, ""]]:
        i, group = place
        rows, fold_sums = jax.tree.map(lambda a: a[group], groups)
        rest = jax.tree.map(lambda t, a: t[None] - a, total, fold_sums)
        path, intercepts = paths(rest, C[i])
        problems = len(path.support) // together  # that select separately
        fold = jnp.repeat(jnp.arange(together, dtype=jnp.int32), problems)
        values = path_values(columns.kernel, columns.prototypes, path, intercepts, rows[0], fold)
        if problems > 1:
            values = jnp.moveaxis(values.reshape(together, problems, *values.shape[1:3]), 1, -1)
        sizes = jnp.arange(values.shape[2], dtype=jnp.int32)
        which = Which(jnp.full_like(sizes, i), sizes)

        def reduce(rows: tuple[Array, Array, Array], values: Array) -> tuple[PyTree, PyTree]:
            return on_fold(Rows(*rows, parts.code, parts.mesh), values, which)

        sums, kept = jax.vmap(reduce)(rows, values)
        return sums, kept, jnp.max(path.status)

    numbers = (jnp.arange(k, dtype=jnp.int32) for k in (s, v // together))
    places = jnp.meshgrid(*numbers, indexing="ij")
    sums, kept, status = jax.lax.map(predict, tuple(place.reshape(-1) for place in places))

    def by_place(a: Array) -> Array:  # `(s groups) together ..` to `s v ..`
        return a.reshape(s, v, *a.shape[2:])

    return HeldOut(
        jax.tree.map(lambda a: jnp.swapaxes(by_place(a), 0, 1), sums),
        jax.tree.map(lambda a: jnp.sum(by_place(a), axis=0), kept),
        jnp.max(status.reshape(s, -1), axis=1),
    )


def path_values(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    path: Path,
    intercepts: Float[Array, "v k c"],
    X: Float[Array, "g r d"],
    fold: Int[Array, " v"],
) -> Float[Array, "v r k c"]:
    """Return the values of every machine on a batch of paths, each at the rows of its fold.

    One kernel block serves all machines of a path.
    """

    def one(of: tuple[Array, Array, Array, Array]) -> Float[Array, "r k c"]:
        support, coefficients, intercept, fold = of
        k, _, c = coefficients.shape
        columns = kernel.cross_gram(X[fold], candidates[jnp.maximum(support, 0)])
        flat = jnp.moveaxis(coefficients, 1, 0).reshape(k, k * c)
        return dot(columns, flat).reshape(-1, k, c) + intercept[None]

    return jax.lax.map(one, (path.support, path.coefficients, intercepts, fold))
