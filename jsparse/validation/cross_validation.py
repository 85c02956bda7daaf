"""Fast v-fold cross-validation for a whole vector of `C`."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .._agreement import same_rows
from .._mesh import spread
from .._numerics import as_array, as_float, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, TRUNCATED
from .._types import Key, ScalarLike
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.checks import check_labels, check_penalty, check_problem, given_penalty
from ..machines.method import Additive, Metric
from ..multiclass import Code, Decoding, decode
from ..normal_equations import NormalEquations
from ..solvers.ridge import LARGE
from .folds import Folds
from .out_of_fold import Rows, Strategy, by_classes, by_removal, by_solving, by_subtraction
from .sharding import ShardedFolds


def _misclassified(y: Array, f: Array) -> Array:
    # Classes are -1 and +1; f = 0 decides for +1, as in prediction.
    return jnp.where(jnp.isnan(f), f, jnp.where((f >= 0) == (y > 0), 0, 1).astype(f.dtype))


LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "mse": lambda y, f: jnp.square(y - f),
    "mae": lambda y, f: jnp.abs(y - f),
    "misclassification": _misclassified,
}


class CrossValidation(NamedTuple):
    """Out-of-fold errors and predictions of a ridge machine for every `C`."""

    scores: Float[Array, " s"]  # mean loss over all rows, weighted
    fold_scores: Float[Array, "s v"]  # mean loss within each fold, NaN for one without weight
    # Of each row by the model that has not seen its fold; of one C only if that was asked for.
    predictions: Float[Array, "s n *c"] | Float[Array, "n *c"]
    status: Int[Array, " s"]  # the worst over folds
    # Features and sums over all rows, if one C was asked for: what `solve` takes.
    sums: tuple[FeatureMap, NormalEquations] | None = None

    __repr__ = short_repr


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
    method: Literal["auto", "subtraction", "removal"] = "auto",
    code: Code | None = None,
    decoding: Decoding = "loss",
    keep: Int[Array, "*l"] | None = None,
) -> CrossValidation:
    """Cross-validate the ridge machine of a feature map, for every `C` at once.

    De Brabanter 2010, Algorithm 3: one pass over the rows sums every fold, and what trains for a
    fold is the total less the fold (eq. 20-21). Two ways to the same numbers, as in its Table 2:

    - subtraction: one eigendecomposition per fold serves every `C`; for few, large folds.
    - removal: one eigendecomposition in all, and each fold is removed from the full solution by the
      block form of the leave-one-out identity, `e_out = (I - H_ff)^(-1) e_f` with `H` the hat
      matrix; for small folds or few `C`.

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
        mesh: spread the rows of every fold over its devices (static): each sums and predicts its
            own rows, and decomposes its share of the folds.
        block_rows: rows in memory at a time.
        method: "auto" takes the cheaper one. By "subtraction" float32 solutions are not refined,
            as those of a fit are.
        code: several classes as several problems (`multiclass.output_code`); the pass over the rows
            then also tells the classes apart if the problems do not all see the same rows, and
            serves every problem. "misclassification" is of the decoded classes, the other metrics
            are means over the problems that see the row.
        decoding: see `multiclass.distances`.
        keep: the place in `C` of the one, or of each problem's own, whose predictions are wanted:
            they are then `n *c`, and the sums over all rows come with them, from which `solve`
            gives the machine of all rows without another pass.

    Differentiable in the feature map, `C`, `X`, `y` and `weights` in both
    modes (for the metric "misclassification" the derivative of the scores is zero). Nothing
    recompiles when values change; `vmap` over kernels, `C` and data sets works.

    Raises:
        ValueError: for shapes that do not fit, folds of other data, an unknown metric, a map whose
            penalty is not the identity, or (outside `jit`) values that make no sense.
    """
    check_penalty(feature_map)
    if method not in ("auto", "subtraction", "removal"):
        raise ValueError(f"method: expected 'auto', 'subtraction' or 'removal', got {method!r}")
    C, X, y, weights = checked(C, X, y, folds, weights, metric, code)
    whole = code is None or code.shares_all_rows
    if method == "removal" and not whole:
        raise ValueError("method: a code whose problems see different rows needs 'subtraction'")
    if method == "auto" and whole:
        r = jax.eval_shape(folds.gather, X).shape[1]
        method = cheaper(feature_map.n_features, r, C.shape[0])
    return _cross_validate(
        feature_map,
        C,
        X,
        y,
        folds,
        weights,
        given_penalty(intercept_penalty, X),
        None if code is None else code.astype(X.dtype),
        metric,
        decoding,
        method if whole else "classes",
        mesh,
        block_rows,
        keep,
    )


def checked(
    C: Array,
    X: Array,
    y: Array,
    folds: Folds | ShardedFolds | None,
    weights: Array | None,
    metric: Metric,
    code: Code | None,
) -> tuple[Array, Array, Array, Array | None]:
    """`C`, `X`, and targets and weights in its dtype, once all is seen to fit together.

    Raises:
        ValueError: if it does not.
    """
    if metric not in LOSSES:
        raise ValueError(f"metric: expected one of {sorted(LOSSES)}, got {metric!r}")
    X, C = as_float(X), as_float(C)
    if C.ndim != 1:
        raise ValueError(f"C: expected a vector, shape (s,), got shape {C.shape}")
    weights = None if weights is None else as_float(weights).astype(X.dtype)
    if folds is not None:
        folds.check(X.shape[0])
    if code is not None:
        y = as_array(y)
        check_problem(None, C, X, jnp.zeros(y.shape), weights)
        check_labels(y, code.matrix.shape[0])
        return C, X, y.astype(jnp.int32), weights
    y = as_float(y).astype(X.dtype)
    check_problem(None, C, X, y, weights)
    if metric == "misclassification" and is_concrete(y) and not np.all(np.abs(np.asarray(y)) == 1):
        raise ValueError(
            "y: expected -1 and +1 for the metric 'misclassification', got other numbers; give "
            "class numbers with a code"
        )
    return C, X, y, weights


def cheaper(p: int, r: int, s: int) -> Literal["subtraction", "removal"]:
    """By the operations for a fold of `r` rows, `p` features and `s` values of `C`."""
    if p > LARGE:  # a Cholesky factor for each fold and C, and no decomposition at all
        return "subtraction"
    decompose = 25 * p**3  # at the speed of a product, as measured on a CPU
    remove = 2 * p**2 * r + s * (2 * p * r**2 + 3 * r**3)  # rotate; hat matrices; Cholesky
    return "removal" if remove <= decompose else "subtraction"


@functools.partial(compiled, static_argnames=("metric", "decoding", "method", "mesh", "block_rows"))
def _cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""] | None,
    code: Code | None,
    metric: str,
    decoding: Decoding,
    method: str,
    mesh: Mesh | None,
    block_rows: int | None,
    keep: Int[Array, "*l"] | None,
) -> CrossValidation:
    n = X.shape[0]
    rows = rows_by_fold(X, y, folds, weights, code)
    if code is not None and method == "classes":
        strategy = by_classes(feature_map, C, rows, code, intercept_penalty, mesh, block_rows)
    elif method == "subtraction":
        strategy = by_subtraction(feature_map, C, rows, intercept_penalty, mesh, block_rows)
    else:
        strategy = by_removal(feature_map, C, rows, intercept_penalty, mesh, block_rows)

    scores, fold_scores, predictions, status = score(
        strategy, feature_map, C, rows, code, metric, decoding, mesh, keep
    )
    out, shape = folds.scatter(predictions, n), y.shape[1:] if code is None else (-1,)
    if keep is None:
        out = jnp.moveaxis(out, 1, 0).reshape(len(C), n, *shape)
        return CrossValidation(scores, fold_scores, out, status)
    total = strategy.total
    if code is None:
        total = total.with_outputs(y.shape[1:])
    out = out.reshape(n, *shape)
    return CrossValidation(scores, fold_scores, out, status, (feature_map, total))


@same_rows
@functools.partial(compiled, static_argnames=("method", "metric", "decoding", "mesh", "block_rows"))
def cross_validate_by_solving(
    method: Additive,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    code: Code | None = None,
    decoding: Decoding = "loss",
    key: Key | None = None,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
    keep: Int[Array, "*l"] | None = None,
) -> CrossValidation:
    """Cross-validate a method of one size that needs only sums, by its own solution of them.

    One pass over the rows sums every fold; what trains for a fold is the total less the fold.
    Arguments as for `cross_validate`; a code's problems must all see all rows.
    """
    n, feature_map = X.shape[0], method.features(kernel, points)
    rows = rows_by_fold(X, y, folds, weights, code)
    outputs = y.shape[1:] if code is None else (rows.y.shape[-1],)
    strategy = by_solving(method, feature_map, C, rows, code, outputs, key, mesh, block_rows)
    scores, fold_scores, predictions, status = score(
        strategy, feature_map, C, rows, code, metric, decoding, mesh, keep
    )
    out = folds.scatter(predictions, n)
    if keep is None:
        out = jnp.moveaxis(out, 1, 0).reshape(len(C), n, *outputs)
        return CrossValidation(scores, fold_scores, out, status)
    return CrossValidation(scores, fold_scores, out.reshape(n, *outputs), status)


def rows_by_fold(
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> Rows:
    """Rows laid out by folds, with the targets of every problem."""
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    if code is None:
        targets = y.reshape(n, -1)
        targets = jnp.where((w > 0)[:, None] | jnp.isfinite(targets), targets, 0)
    else:
        targets = jnp.asarray(code.matrix, X.dtype)[y]
    return Rows(
        X=folds.gather(X),
        y=folds.gather(targets),
        w=jnp.where(folds.valid, folds.gather(w), 0),
        label=None if code is None else folds.gather(y),
    )


def score(
    strategy: Strategy,
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    code: Code | None,
    metric: str,
    decoding: Decoding,
    mesh: Mesh | None,
    keep: Int[Array, "*l"] | None = None,
) -> tuple[Float[Array, " s"], Float[Array, "s v"], Float[Array, "v r *s c"], Int[Array, " s"]]:
    """Scores of the rows laid out by folds, within each fold, their predictions, and status."""

    # Loss and predictions fold by fold: where the predictions are not asked for, they need never
    # be there all at once.
    def all_folds(shared: PyTree, rows: Rows, per_fold: PyTree) -> tuple[Array, Array, Array]:
        code, common, keep = shared

        def one_fold(fold: tuple[Rows, PyTree]) -> tuple[Array, Array, Array]:
            predictions, status = strategy.predict(common, fold)
            loss = losses(metric, decoding, code, fold[0], predictions)
            if keep is not None:
                place = jnp.broadcast_to(keep, predictions.shape[2:])[None, None]
                predictions = jnp.take_along_axis(predictions, place, axis=1)[:, 0]
            return loss, predictions, status

        return jax.lax.map(one_fold, (rows, per_fold))

    # Each device has whole folds, or a part of every fold and what differs between them.
    axes = ((None, 0, 0), (0, 0, 0)) if strategy.whole_folds else ((None, 1, None), (1, 1, None))
    parts = (code, strategy.shared, keep), rows, strategy.per_fold
    loss_of, predictions, status = spread(all_folds, mesh, *axes)(*parts)
    total = strategy.total
    if total.gram.ndim > 2:  # of each class
        total = total.joined
    lost = jnp.where(feature_map.unresolved(C, total.energy), TRUNCATED, CONVERGED)
    status = jnp.maximum(jnp.max(status, axis=0), lost.astype(jnp.int32))
    fold_loss = jnp.sum(weighted(rows.w[:, :, None], loss_of), axis=1).T
    scores = jnp.sum(fold_loss, axis=1) / jnp.sum(rows.w)
    return scores, mean_of_folds(fold_loss, jnp.sum(rows.w, axis=1)), predictions, status


def weighted(w: Float[Array, "..."], loss: Float[Array, "..."]) -> Float[Array, "..."]:
    """Losses times row weights; rows without weight, which may hold anything, spoil no sum."""
    return w * jnp.where((w > 0) | jnp.isfinite(loss), loss, 0)


def mean_of_folds(
    fold_loss: Float[Array, "s v *k"], fold_weight: Float[Array, " v"]
) -> Float[Array, "s v *k"]:
    """Mean loss within each fold from its sum; NaN where no row of it has weight."""
    weight = fold_weight.reshape(1, -1, *[1] * (fold_loss.ndim - 2))
    return jnp.where(weight > 0, fold_loss / jnp.where(weight > 0, weight, 1), jnp.nan)


def standard_error(fold_scores: Float[ArrayLike, "s v *k"]) -> Float[np.ndarray, "s *k"]:
    """Of a score, from its spread over the folds, which count alike; NaN for a single one.

    Folds whose score is NaN have no rows with weight, and do not count. On the host.
    """
    given = np.asarray(fold_scores)
    count = np.sum(~np.isnan(given), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(given, axis=1) / count
        squares = np.nansum(np.square(given - np.expand_dims(mean, 1)), axis=1)
        return np.sqrt(squares / (count - 1) / count).astype(given.dtype)


def losses(
    metric: str,
    decoding: Decoding,
    code: Code | None,
    rows: Rows,
    predictions: Float[Array, "r s c"],
) -> Float[Array, "r s"]:
    """Loss of every row for every `C`."""
    if code is not None and metric == "misclassification" and rows.label is not None:
        classes = decode(jnp.asarray(code.matrix), predictions, decoding)
        wrong = (classes != rows.label[:, None]).astype(predictions.dtype)
        return jnp.where(classes < 0, jnp.nan, wrong)
    each = LOSSES[metric](rows.y[:, None, :], predictions)
    if code is None:
        return jnp.mean(each, axis=-1)
    seen = jnp.abs(rows.y)
    return jnp.sum(seen[:, None, :] * each, axis=-1) / jnp.sum(seen, axis=-1)[:, None]
