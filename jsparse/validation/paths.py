"""Cross-validated errors of a whole path of machines, for every number of prototypes."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._agreement import same_rows
from .._blocks import map_systems, systems_at_once
from .._numerics import dot
from .._programs import compiled
from .._repr import short_repr
from .._types import Key
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.method import Additive, PathMethod, values_of_fit
from ..machines.scdp import SCDP
from ..machines.scdp_system import CandidateColumns
from ..multiclass import Code, Decoding
from ..normal_equations import NormalEquations, accumulate_folds
from ..pursuit.path import Path
from .cross_validation import Metric, losses, mean_of_folds, rows_by_fold, weighted
from .folds import Folds
from .out_of_fold import Rows
from .sharding import ShardedFolds


class PathValidation(NamedTuple):
    """Out-of-fold errors with 1, 2, .. k prototypes, for every `C`."""

    scores: Float[Array, "s k"]  # mean loss over all rows, weighted
    fold_scores: Float[Array, "s v k"]  # mean loss within each fold, NaN for one without weight
    predictions: Float[Array, "s n l"] | None  # by machines of the size asked for
    status: Int[Array, " s"]  # the worst over folds
    reported: Float[Array, "s k"] | None = None  # the scores in another metric
    fold_reported: Float[Array, "s v k"] | None = None  # the same within each fold

    __repr__ = short_repr


_STATIC = ("method", "metric", "reported", "decoding", "mesh", "block_rows")


@same_rows
@functools.partial(compiled, static_argnames=_STATIC)
def cross_validate_path(
    method: PathMethod,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    reported: Metric | None = None,
    code: Code | None = None,
    decoding: Decoding = "loss",
    key: Key | None = None,
    size: Int[Array, ""] | None = None,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> PathValidation:
    """Cross-validate machines of every size (Karsmakers 2011, Algorithm 4, eq. 35-37).

    One pass over the rows sums every fold. What trains for a fold is the total less the fold; on it
    the pursuit runs again for each `C`, and each size on its path is scored on the fold.

    On a CPU the folds come one after another, as one fills it; elsewhere they go in step.

    Args:
        method: `SCDP`, `KSP`, `KMP` or `KBP`, settled, with `max_prototypes` a number (static).
        kernel: kernel of two points.
        candidates: to choose prototypes from, shape `M d`.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification". With a `code`, class
            numbers.
        folds: see `validation.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse" (the press statistic of eq. 35), "mae" or "misclassification" (static).
        reported: another metric in which every machine is scored as well (static).
        code: of several classes, whose problems must all see all rows.
        decoding: of several classes (static).
        key: decides the random subsets; the same for all folds and `C`, as in Remark 8.
        size: a number of prototypes for which the predictions of every row, by the machine that has
            not seen it, are kept.
        mesh: its devices share the rows that are summed (static); see `cross_validate`.
        block_rows: rows in memory at a time (static).
    """
    rows = rows_by_fold(X, y, folds, weights, code)
    assert isinstance(method, Additive)
    columns = method.features(kernel, candidates)
    per_fold = accumulate_folds(columns, rows.X, rows.y, rows.w, mesh=mesh, block_rows=block_rows)
    several = code is not None or y.ndim == 2
    found = score_paths(
        method, columns, C, per_fold, per_fold.joined, rows, code, metrics_of(metric, reported),
        decoding, key, size, several=several,
    )  # fmt: skip
    if found.predictions is None:
        return found
    n = X.shape[0]
    in_rows = jax.vmap(lambda values: folds.scatter(values, n))(found.predictions)
    return found._replace(predictions=in_rows)


def score_paths(
    method: PathMethod,
    columns: FeatureMap,
    C: Float[Array, " s"],
    per_fold: NormalEquations,
    total: NormalEquations,
    rows: Rows,
    code: Code | None,
    metrics: tuple[Metric, ...],
    decoding: Decoding,
    key: Key | None,
    size: Int[Array, ""] | None,
    *,
    several: bool,
) -> PathValidation:
    """Scores of the rows laid out by folds, from the sums; predictions laid out like the rows."""
    if isinstance(method, SCDP):
        assert isinstance(columns, CandidateColumns)
        separate = several and method.selection == "separate"
        return _score_scdp(
            method, columns, C, per_fold, total, rows, code, metrics, decoding, key, size,
            separate=separate,
        )  # fmt: skip
    assert isinstance(method, Additive)
    v, s = rows.w.shape[0], C.shape[0]

    def at(of: tuple[Array, Array]) -> tuple[Array, Array, Float[Array, "r l"] | None]:
        c, fold = of
        own, sums = jax.tree.map(lambda a: a[fold], (rows, per_fold))
        fitted = method.solve(columns, total - sums, C[c], code, key=key)
        values = values_of_fit(fitted, own.X)
        loss = weighted(own.w[:, None], losses_in(metrics, decoding, code, own, values))
        at_size = None if size is None else jnp.take(values, method.place_of(size), axis=1)
        return jnp.sum(loss, axis=0), fitted.status, at_size

    grid = jnp.meshgrid(jnp.arange(s), jnp.arange(v), indexing="ij")
    fold_loss, status, at_size = map_systems(at, tuple(a.reshape(-1) for a in grid))
    if at_size is not None:
        at_size = at_size.reshape(s, v, *at_size.shape[1:])
    return path_validation(
        fold_loss.reshape(s, v, len(metrics), -1), rows.w, at_size, status.reshape(s, v)
    )


def _score_scdp(
    method: SCDP,
    columns: CandidateColumns,
    C: Float[Array, " s"],
    per_fold: NormalEquations,
    total: NormalEquations,
    rows: Rows,
    code: Code | None,
    metrics: tuple[Metric, ...],
    decoding: Decoding,
    key: Key | None,
    size: Int[Array, ""] | None,
    *,
    separate: bool,
) -> PathValidation:
    v, s = rows.w.shape[0], C.shape[0]
    problems = rows.y.shape[-1] if separate else 1
    together = 1 if systems_at_once() == 1 else v  # folds that go in step

    def some(
        of: tuple[Array, Rows, NormalEquations],
    ) -> tuple[Array, Array, Float[Array, "g r l"] | None]:
        """Of some folds losses, summed over the rows of each, `g k`, status, and predictions."""
        c, fold, sums = of
        train = jax.tree.map(lambda t, a: t[None] - a, total, sums)
        path, intercepts = method.paths(columns, train, c, key, separate=separate)
        owner = jnp.repeat(jnp.arange(together, dtype=jnp.int32), problems)
        values = path_values(columns.kernel, columns.prototypes, path, intercepts, fold.X, owner)
        if separate:
            each = values.reshape(together, problems, *values.shape[1:-1])
            values = jnp.moveaxis(each, 1, -1)
        loss = jax.vmap(lambda rows, f: losses_in(metrics, decoding, code, rows, f))(fold, values)
        at_size = None if size is None else jnp.take(values, size - 1, axis=2)
        loss = jnp.sum(weighted(fold.w[:, :, None], loss), axis=1)
        return loss, jnp.max(path.status), at_size

    def groups(a: Array) -> Array:
        return a.reshape(v // together, together, *a.shape[1:])

    grouped = jax.tree.map(groups, (rows, per_fold))
    grid = jnp.meshgrid(jnp.arange(s), jnp.arange(v // together), indexing="ij")

    def at(of: tuple[Array, Array]) -> tuple[Array, Array, Float[Array, "g r l"] | None]:
        c, group = of
        return some((C[c], *jax.tree.map(lambda a: a[group], grouped)))

    fold_loss, status, at_size = jax.lax.map(at, tuple(a.reshape(-1) for a in grid))
    if at_size is not None:  # (s groups) g r l
        at_size = at_size.reshape(s, v, *at_size.shape[2:])
    return path_validation(
        fold_loss.reshape(s, v, len(metrics), -1), rows.w, at_size, status.reshape(s, -1)
    )


def metrics_of(metric: Metric, reported: Metric | None) -> tuple[Metric, ...]:
    """Return the metrics in which machines are scored, the first of them decisive."""
    return (metric,) if reported in (None, metric) else (metric, reported)


def losses_in(
    metrics: tuple[Metric, ...],
    decoding: Decoding,
    code: Code | None,
    rows: Rows,
    values: Float[Array, "r k c"],
) -> Float[Array, "r qk"]:
    """Return the loss of every row for every size, of each metric one after the other."""
    each = [losses(metric, decoding, code, rows, values) for metric in metrics]
    return jnp.concatenate(each, axis=1)


def path_validation(
    fold_loss: Float[Array, "s v q k"],
    w: Float[Array, "v r"],
    predictions: Float[Array, "s ..."] | None,
    status: Int[Array, "s g"],
) -> PathValidation:
    """From the losses in one or two metrics, summed over the rows of each fold."""
    weight = jnp.sum(w, axis=1)
    scores = [jnp.sum(loss, axis=1) / jnp.sum(w) for loss in jnp.unstack(fold_loss, axis=2)]
    by_fold = [mean_of_folds(loss, weight) for loss in jnp.unstack(fold_loss, axis=2)]
    found = PathValidation(scores[0], by_fold[0], predictions, jnp.max(status, axis=1))
    if len(scores) == 1:
        return found
    return found._replace(reported=scores[1], fold_reported=by_fold[1])


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

    def one(of: tuple[Array, Array, Array, Array]) -> Float[Array, "r k c"]:
        support, coefficients, intercept, own = of
        k, _, c = coefficients.shape
        columns = kernel.cross_gram(X[own], candidates[jnp.maximum(support, 0)])
        flat = jnp.moveaxis(coefficients, 1, 0).reshape(k, k * c)
        return dot(columns, flat).reshape(-1, k, c) + intercept[None]

    return jax.lax.map(one, (path.support, path.coefficients, intercepts, owner))
