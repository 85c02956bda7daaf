"""Cross-validated errors of a whole path of machines, for every number of prototypes."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import systems_at_once
from .._numerics import dot
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..machines.scdp_system import candidate_columns, intercept_path, select
from ..multiclass import Code, Decoding
from ..normal_equations import NormalEquations, accumulate_folds
from ..pursuit.path import Path
from .cross_validation import losses, mean_of_folds, weighted
from .folds import Folds
from .out_of_fold import Rows


class PathValidation(NamedTuple):
    """Out-of-fold errors with 1, 2, .. k prototypes, for every `C`."""

    scores: Float[Array, "s k"]  # mean loss over all rows, weighted
    fold_scores: Float[Array, "s v k"]  # mean loss within each fold, NaN for one without weight
    predictions: Float[Array, "s n l"] | None  # by machines of the size asked for
    status: Int[Array, " s"]  # the worst over folds


@functools.partial(
    jax.jit,
    static_argnames=("max_prototypes", "metric", "decoding", "separate", "subset", "block_rows"),
)
def cross_validate_path(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    *,
    max_prototypes: int,
    metric: str = "mse",
    nu: ScalarLike = 0.0,
    code: Code | None = None,
    decoding: Decoding = "loss",
    separate: bool = False,
    subset: int | None = None,
    key: Key | None = None,
    size: Int[Array, ""] | None = None,
    block_rows: int | None = None,
) -> PathValidation:
    """Cross-validate SCDP machines of every size (Karsmakers 2011, Algorithm 4, eq. 35-37).

    One pass over the rows sums every fold. What trains for a fold is the total less the fold; on it
    the pursuit runs anew for each `C`, and each size on its path is scored on the fold.

    On a CPU the folds come one after another, as one fills it; elsewhere they go in step.

    Args:
        kernel: kernel of two points.
        candidates: to choose prototypes from, shape `M d`.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`; -1 and +1 for "misclassification". With a `code`, class numbers.
        folds: see `validation.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        max_prototypes: longest path (static).
        metric: "mse" (the press statistic of eq. 35), "mae" or "misclassification" (static).
        nu: see `machines.scdp.fit`.
        code: of several classes, whose problems must all see all rows.
        decoding: of several classes (static).
        separate: select prototypes for each problem of the code by itself (static).
        subset: candidates looked at for each prototype, SCDPP; the same for all folds and `C`, as
            in Remark 8 (static).
        key: decides those.
        size: a number of prototypes for which the predictions of every row, by the machine that has
            not seen it, are kept.
        block_rows: rows in memory at a time (static).
    """
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    targets = y.reshape(n, -1) if code is None else jnp.asarray(code.matrix)[y]
    rows = Rows(
        X=folds.gather(X),
        y=folds.gather(targets),
        w=jnp.where(folds.valid, folds.gather(w), 0),
        label=None if code is None else folds.gather(y),
    )
    columns = candidate_columns(kernel, candidates)
    per_fold = accumulate_folds(columns, rows.X, rows.y, rows.w, block_rows=block_rows)
    total = per_fold.joined
    limit = jnp.asarray(nu, X.dtype)

    v, s = rows.w.shape[0], C.shape[0]
    problems = targets.shape[1] if separate else 1
    together = 1 if systems_at_once() == 1 else v  # folds that go in step

    def some(of: tuple[Array, Rows, NormalEquations]) -> tuple[Array, Array, Array | None]:
        """Of some folds losses, summed over the rows of each, `g k`, status, and predictions."""
        c, fold, sums = of
        train = jax.tree.map(lambda t, a: t[None] - a, total, sums)
        A, b, rounded, feature_sum = jax.vmap(lambda train: columns.posed(train, c, limit))(train)
        # One pursuit for each fold; if separate, for each problem of each fold.
        owner = jnp.repeat(jnp.arange(together, dtype=jnp.int32), problems)

        def lanes(a: Array) -> Array:  # `g .. l` to `g*l .. 1`
            return jnp.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1], 1) if separate else a

        path = select(
            A, lanes(b), rounded, owner, key, max_prototypes=max_prototypes, subset=subset
        )
        intercepts = intercept_path(
            path,
            jnp.take_along_axis(feature_sum[owner], jnp.maximum(path.support, 0), axis=1),
            lanes(train.target_sum),
            (train.weight_sum + limit)[owner],
        )
        values = path_values(kernel, candidates, path, intercepts, fold.X, owner)
        if separate:
            each = values.reshape(together, problems, *values.shape[1:-1])
            values = jnp.moveaxis(each, 1, -1)
        loss = jax.vmap(lambda fold, f: losses(metric, decoding, code, fold, f))(fold, values)
        kept = None if size is None else jnp.take(values, size - 1, axis=2)
        loss = jnp.sum(weighted(fold.w[:, :, None], loss), axis=1)
        return loss, jnp.max(path.status), kept

    def groups(a: Array) -> Array:
        return a.reshape(v // together, together, *a.shape[1:])

    grouped = jax.tree.map(groups, (rows, per_fold))
    grid = jnp.meshgrid(jnp.arange(s), jnp.arange(v // together), indexing="ij")

    def at(of: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
        c, group = of
        return some((C[c], *jax.tree.map(lambda a: a[group], grouped)))

    fold_loss, status, kept = jax.lax.map(at, tuple(a.reshape(-1) for a in grid))
    fold_loss = fold_loss.reshape(s, v, -1)
    if kept is not None:  # (s groups) g r l
        kept = kept.reshape(s, v, *kept.shape[2:])
        kept = jax.vmap(lambda values: folds.scatter(values, n))(kept)
    return PathValidation(
        scores=jnp.sum(fold_loss, axis=1) / jnp.sum(rows.w),
        fold_scores=mean_of_folds(fold_loss, jnp.sum(rows.w, axis=1)),
        predictions=kept,
        status=jnp.max(status.reshape(s, -1), axis=1),
    )


def path_values(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    path: Path,
    intercepts: Float[Array, "v k c"],
    X: Float[Array, "g r d"],
    owner: Int[Array, " v"],
) -> Float[Array, "v r k c"]:
    """Values of every machine on a batch of paths, each at its own rows of `X`, those of `owner`.

    One kernel block serves all machines of a path.
    """

    def lane(of: tuple[Array, Array, Array, Array]) -> Float[Array, "r k c"]:
        support, coefficients, intercept, own = of
        k, _, c = coefficients.shape
        columns = kernel.cross_gram(X[own], candidates[jnp.maximum(support, 0)])
        flat = jnp.moveaxis(coefficients, 1, 0).reshape(k, k * c)
        return dot(columns, flat).reshape(-1, k, c) + intercept[None]

    return jax.lax.map(lane, (path.support, path.coefficients, intercepts, owner))
