"""Fast v-fold cross-validation of ridge machines, for a whole vector of `C` at once."""

import functools
from typing import NamedTuple, cast

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._agreement import same_rows
from .._programs import compiled
from .._repr import short_repr
from .._types import ScalarLike
from ..features import FeatureMap
from ..machines import ridge
from ..machines.checks import check_penalty, penalty_or_none
from ..machines.held_out import Sums
from ..machines.method import Metric
from ..machines.rows import Rows
from ..multiclass import Code, Decoding
from .folds import Folds
from .sharding import ShardedFolds
from .validate import FoldLosses, Kept, Scoring, WithPredictions, checked, mean_losses


class CrossValidation(NamedTuple):
    """Held-out errors and predictions of a ridge machine, for `s` values of `C` and `v` folds."""

    scores: Float[Array, " s"]  # weighted mean loss over all rows
    fold_scores: Float[Array, "s v"]  # mean loss in each fold; NaN for a fold without weight
    # Held-out predictions of all rows, for every `C`; with `keep`, for the selected `C` only.
    predictions: Float[Array, "s n *c"] | Float[Array, " n *c"]
    status: Int[Array, " s"]  # the worst stop code of all folds
    # With `keep`: the features and their sums over all rows, for `machines.fixed_size.solve`.
    sums: Sums | None = None

    __repr__ = short_repr


@same_rows
def cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
    method: ridge.Way = "auto",
    code: Code | None = None,
    decoding: Decoding = "loss",
    keep: Int[Array, "*l"] | None = None,
) -> CrossValidation:
    """Cross-validate ridge regression in the features of a map, for every `C` at once.

    As in De Brabanter 2010, Algorithm 3, one pass over the rows computes the sums of every fold.
    The sums over a fold's training rows are the total less the fold's sums (eq. 20-21).

    Args:
        feature_map: a map whose penalty is the identity, such as `Nystroem(kernel, prototypes)`.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification". With a `code`, class
            numbers 0..k-1, shape `n`. Under `jit`, a class number out of range makes all
            predictions NaN, with the status `NOT_FINITE`; outside `jit` it raises ValueError.
        folds: the division of the rows, such as `validation.folds.plain_folds` returns.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae", or "misclassification" (a fraction).
        intercept_penalty: factor of half the squared intercept in the objective, at least 0.
        mesh: devices that share the rows of every fold (static). Each device sums and predicts its
            shard, and decomposes its share of the folds.
        block_rows: number of rows of the feature matrix that are in memory at a time; by default a
            number that suits the device.
        method: "subtraction" decomposes the sums over each fold's training rows, and does not
            refine float32 solutions. "removal" removes each fold from the solution for all rows.
            "auto" is the cheaper of the two.
        code: output code of the binary problems, for several classes (`multiclass.output_code`).
            "misclassification" counts wrongly decoded classes. In another metric, the
            loss of a row is the mean over the binary problems that use the row.
        decoding: how the values of the binary problems give a class: "loss" or "hamming".
        keep: index into `C`, or one index for each problem. The result then has the predictions for
            the selected `C` only, shape `n *c`, and the sums over all rows, from which
            `machines.fixed_size.solve` computes the machine of all rows without another pass.

    Differentiable in the feature map, `C`, `X`, `y` and `weights` in both modes (the derivative of
    "misclassification" is zero). Nothing recompiles when values change; `vmap` over kernels, `C`
    and data sets works.

    Raises:
        ValueError: for shapes that do not match, folds for another number of rows, an unknown
            metric, a map whose penalty is not the identity, or (outside `jit`) values out of range.
    """
    check_penalty(feature_map)
    if method not in ("auto", "subtraction", "removal"):
        raise ValueError(f"method: expected 'auto', 'subtraction' or 'removal', got {method!r}")
    C, rows = checked(C, X, y, folds, weights, (metric,), code, mesh)
    if method == "removal" and not (code is None or code.shares_all_rows):
        raise ValueError("method: a code whose problems see different rows needs 'subtraction'")
    penalty = penalty_or_none(intercept_penalty, rows.X)
    scoring = Scoring(metric, decoding)
    return _cross_validate(feature_map, C, rows, folds, penalty, keep, scoring, method, block_rows)


@functools.partial(compiled, static_argnames=("scoring", "way", "block_rows"))
def _cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    folds: Folds | ShardedFolds,
    intercept_penalty: Float[Array, ""] | None,
    keep: Int[Array, "*l"] | None,
    scoring: Scoring,
    way: ridge.Way,
    block_rows: int | None,
) -> CrossValidation:
    n, outputs, sums = len(rows), rows.outputs, None
    if keep is None:
        on_fold: FoldLosses = WithPredictions(scoring)
    else:
        on_fold = FoldLosses(scoring, Kept(keep, jnp.zeros((), jnp.int32)))
    held = ridge.held_out(
        feature_map, C, rows.by_fold(folds), on_fold,
        way=way, intercept_penalty=intercept_penalty, block_rows=block_rows,
    )  # fmt: skip
    means, values = mean_losses(held, scoring), folds.scatter(held.kept, n)
    if keep is None:
        values = jnp.moveaxis(values, 1, 0).reshape(len(C), n, *outputs)
    else:
        values, sums = values.reshape(n, *outputs), cast(Sums | None, held.total)
    return CrossValidation(
        means.scores[:, 0], means.fold_scores[:, :, 0], values, means.status, sums
    )
