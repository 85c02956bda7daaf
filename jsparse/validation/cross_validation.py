"""Fast v-fold cross-validation of ridge machines for a whole vector of `C`."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from .._agreement import same_rows
from .._programs import compiled
from .._repr import short_repr
from .._types import ScalarLike
from ..features import FeatureMap
from ..machines import ridge
from ..machines.checks import check_penalty, given_penalty
from ..machines.held_out import Sums, Which
from ..machines.method import Metric
from ..machines.rows import Rows
from ..multiclass import Code, Decoding
from .folds import Folds
from .sharding import ShardedFolds
from .validate import FoldLosses, Kept, Scoring, checked, mean_losses


class CrossValidation(NamedTuple):
    """Out-of-fold errors and predictions of a ridge machine for every `C`."""

    scores: Float[Array, " s"]  # mean loss over all rows, weighted
    fold_scores: Float[Array, "s v"]  # mean loss within each fold, NaN for one without weight
    # Of each row by the model that has not seen its fold; of one C only if that was asked for.
    predictions: Float[Array, "s n *c"] | Float[Array, "n *c"]
    status: Int[Array, " s"]  # the worst over folds
    # Features and sums over all rows, if one C was asked for: what `solve` takes.
    sums: Sums | None = None

    __repr__ = short_repr


class _AllPredictions(eqx.Module):
    """The losses of `FoldLosses`, with the predictions for every `C`."""

    losses: FoldLosses

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: Which
    ) -> tuple[PyTree, PyTree]:
        return self.losses(rows, values, which)[0], values


@same_rows
def cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
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
    """Cross-validate the ridge machine of a feature map, for every `C` at once.

    De Brabanter 2010, Algorithm 3: one pass over the rows sums every fold, and the training sums of
    a fold are the total less the fold (eq. 20-21). For the two methods, subtraction and removal,
    see `machines.ridge.held_out`.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification". With a `code`, class
            numbers 0..k-1, shape `n`.
        folds: see `validation.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae", or "misclassification" (a fraction).
        intercept_penalty: see `ridge`.
        mesh: devices that share the rows of every fold (static); each sums and predicts its shard,
            and decomposes its share of the folds.
        block_rows: rows in memory at a time.
        method: "auto" takes the cheaper one. "subtraction" does not refine float32 solutions.
        code: several classes as several problems (`multiclass.output_code`). "misclassification"
            is of the decoded classes; the other metrics are means over the problems that see the
            row.
        decoding: see `multiclass.distances`.
        keep: the place in `C`, or the place for each problem, whose predictions are kept. They are
            then `n *c`, and come with the sums over all rows, from which `solve` gives the machine
            of all rows without another pass.

    Differentiable in the feature map, `C`, `X`, `y` and `weights` in both modes (the derivative of
    "misclassification" is zero). Nothing recompiles when values change; `vmap` over kernels, `C`
    and data sets works.

    Raises:
        ValueError: for shapes that do not fit, folds of other data, an unknown metric, a map whose
            penalty is not the identity, or (outside `jit`) values that make no sense.
    """
    check_penalty(feature_map)
    if method not in ("auto", "subtraction", "removal"):
        raise ValueError(f"method: expected 'auto', 'subtraction' or 'removal', got {method!r}")
    C, rows = checked(C, X, y, folds, weights, (metric,), code, mesh)
    if method == "removal" and not (code is None or code.shares_all_rows):
        raise ValueError("method: a code whose problems see different rows needs 'subtraction'")
    penalty = given_penalty(intercept_penalty, rows.X)
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
        on_fold = _AllPredictions(FoldLosses(scoring))
    else:
        on_fold = FoldLosses(scoring, Kept(keep, jnp.zeros((), jnp.int32)))
    held = ridge.held_out(
        feature_map, C, rows.by_fold(folds), on_fold,
        way=way, intercept_penalty=intercept_penalty, block_rows=block_rows,
    )  # fmt: skip
    means, values = mean_losses(held), folds.scatter(held.kept, n)
    if keep is None:
        values = jnp.moveaxis(values, 1, 0).reshape(len(C), n, *outputs)
    else:
        values, sums = values.reshape(n, *outputs), held.total
    return CrossValidation(
        means.scores[:, 0], means.fold_scores[:, :, 0], values, means.status, sums
    )
