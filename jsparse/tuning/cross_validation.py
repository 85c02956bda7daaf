"""Fast v-fold cross-validation for a whole vector of `C`."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._blocks import systems_at_once
from .._numerics import as_float, dot, epsilon, is_concrete, like
from .._status import CONVERGED, TRUNCATED, status_of
from .._types import ScalarLike
from ..features import FeatureMap
from ..machines.fixed_size import check_labels, check_penalty, check_problem
from ..multiclass import Code, Decoding, decode, solve_code
from ..normal_equations import (
    NormalEquations,
    accumulate,
    accumulate_folds,
    accumulate_groups,
)
from ..solvers.ridge import Ridge, quadratic_form, rank_one_weight, spectrum
from .folds import Folds

Metric = Literal["mse", "mae", "misclassification"]


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
    fold_scores: Float[Array, "s v"]  # mean loss within each fold
    predictions: Float[Array, "s n *c"]  # of each row by the model that has not seen its fold
    status: Int[Array, " s"]  # the worst over folds


def cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    intercept_penalty: ScalarLike = 0.0,
    block_rows: int | None = None,
    method: Literal["auto", "subtraction", "removal"] = "auto",
    code: Code | None = None,
    decoding: Decoding = "loss",
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
        folds: see `tuning.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae", or "misclassification" (a fraction).
        intercept_penalty: see `ridge`.
        block_rows: rows in memory at a time.
        method: "auto" takes the cheaper one.
        code: several classes as several problems (`multiclass.output_code`); the pass over the rows
            then also tells the classes apart if the problems do not all see the same rows, and
            serves every problem. "misclassification" is of the decoded classes, the other metrics
            are means over the problems that see the row.
        decoding: see `multiclass.distances`.

    Differentiable in the feature map, `C`, `X`, `y` and `weights` in both modes (for the metric
    "misclassification" the derivative of the scores is zero). Nothing recompiles when values
    change; `vmap` over kernels, `C` and data sets works.

    Raises:
        ValueError: for shapes that do not fit, folds of other data, an unknown metric, a map whose
            penalty is not the identity, or (outside `jit`) values that make no sense.
    """
    if metric not in LOSSES:
        raise ValueError(f"metric: expected one of {sorted(LOSSES)}, got {metric!r}")
    check_penalty(feature_map)
    if method not in ("auto", "subtraction", "removal"):
        raise ValueError(f"method: expected 'auto', 'subtraction' or 'removal', got {method!r}")
    X, C = as_float(X), as_float(C)
    if C.ndim != 1:
        raise ValueError(f"C: expected a vector, shape (s,), got shape {C.shape}")
    y, weights = _checked(C, X, y, folds, weights, metric, code)
    whole = code is None or code.shares_all_rows
    if method == "removal" and not whole:
        raise ValueError("method: a code whose problems see different rows needs 'subtraction'")
    if method == "auto" and whole:
        method = _cheaper(feature_map.n_features, folds.index.shape[1], C.shape[0])
    return _cross_validate(
        feature_map,
        C,
        X,
        y,
        folds,
        weights,
        like(intercept_penalty, X),
        None if code is None else code.astype(X.dtype),
        metric,
        decoding,
        method if whole else "classes",
        block_rows,
    )


def _checked(
    C: Array,
    X: Array,
    y: Array,
    folds: Folds,
    weights: Array | None,
    metric: Metric,
    code: Code | None,
) -> tuple[Array, Array | None]:
    """Targets and weights in the dtype of `X`, once all is seen to fit together."""
    weights = None if weights is None else as_float(weights).astype(X.dtype)
    n = X.shape[0]
    rows = np.asarray(folds.index) if is_concrete(folds.index) else np.zeros(1)
    if not (rows.size and 0 <= rows.min() <= rows.max() < n):
        raise ValueError(f"folds: expected row numbers 0 to {n - 1}, folds of other data came")
    if code is not None:
        y = jnp.asarray(y)
        check_problem(None, C, X, jnp.zeros(y.shape), weights)
        check_labels(y, code.matrix.shape[0])
        return y.astype(jnp.int32), weights
    y = as_float(y).astype(X.dtype)
    check_problem(None, C, X, y, weights)
    if metric == "misclassification" and is_concrete(y) and not np.all(np.abs(np.asarray(y)) == 1):
        raise ValueError(
            "y: expected -1 and +1 for the metric 'misclassification', got other numbers; give "
            "class numbers with a code"
        )
    return y, weights


def _cheaper(p: int, r: int, s: int) -> Literal["subtraction", "removal"]:
    """By the operations for a fold of `r` rows, `p` features and `s` values of `C`."""
    decompose = 25 * p**3  # at the speed of a product, as measured on a CPU
    remove = 2 * p**2 * r + s * (2 * p * r**2 + 3 * r**3)  # rotate; hat matrices; Cholesky
    return "removal" if remove <= decompose else "subtraction"


@functools.partial(jax.jit, static_argnames=("metric", "decoding", "method", "block_rows"))
def _cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""],
    code: Code | None,
    metric: str,
    decoding: Decoding,
    method: str,
    block_rows: int | None,
) -> CrossValidation:
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    targets = y.reshape(n, -1) if code is None else jnp.asarray(code.matrix)[y]
    rows = Rows(
        X=folds.gather(X),
        y=folds.gather(targets),
        w=jnp.where(folds.valid, folds.gather(w), 0),
        label=None if code is None else folds.gather(y),
    )
    if code is not None and method == "classes":
        way = _by_classes(feature_map, C, rows, code, intercept_penalty, block_rows)
    elif method == "subtraction":
        way = _by_subtraction(feature_map, C, rows, intercept_penalty, block_rows)
    else:
        way = _by_removal(feature_map, C, rows, intercept_penalty, block_rows)

    # Loss and predictions fold by fold: where the predictions are not asked for, they need never
    # be there all at once.
    def one_fold(fold: tuple[Rows, PyTree]) -> tuple[Array, Array, Array]:
        predictions, status = way.predict(fold)
        return _losses(metric, decoding, code, fold[0], predictions), predictions, status

    loss, predictions, status = jax.lax.map(one_fold, (rows, way.per_fold))
    lost = jnp.where(feature_map.unresolved(C, way.energy), TRUNCATED, CONVERGED)
    status = jnp.maximum(jnp.max(status, axis=0), lost.astype(jnp.int32))
    fold_loss = jnp.sum(rows.w[:, :, None] * loss, axis=1).T
    fold_weight = jnp.sum(rows.w, axis=1)[None, :]
    out = jnp.moveaxis(folds.scatter(predictions, n), 1, 0)
    return CrossValidation(
        scores=jnp.sum(fold_loss, axis=1) / jnp.sum(rows.w),
        fold_scores=fold_loss / jnp.where(fold_weight > 0, fold_weight, 1),
        predictions=out.reshape(C.shape[0], n, *(y.shape[1:] if code is None else (-1,))),
        status=status,
    )


class Rows(NamedTuple):
    """Rows laid out by folds, or those of one fold."""

    X: Float[Array, "*v r d"]
    y: Float[Array, "*v r c"]
    w: Float[Array, "*v r"]
    label: Int[Array, "*v r"] | None


class Way(NamedTuple):
    """How the rows of a fold are predicted without it."""

    per_fold: PyTree  # what differs between folds, leading axis `v`
    predict: Callable[[tuple[Rows, PyTree]], tuple[Float[Array, "r s c"], Int[Array, " s"]]]
    energy: Float[Array, " p"]  # of the features over all rows


def _losses(
    metric: str,
    decoding: Decoding,
    code: Code | None,
    rows: Rows,
    predictions: Float[Array, "r s c"],
) -> Float[Array, "r s"]:
    if code is not None and metric == "misclassification" and rows.label is not None:
        classes = decode(jnp.asarray(code.matrix), predictions, decoding)
        wrong = (classes != rows.label[:, None]).astype(predictions.dtype)
        return jnp.where(jnp.any(jnp.isnan(predictions), axis=-1), jnp.nan, wrong)
    loss = LOSSES[metric](rows.y[:, None, :], predictions)
    if code is None:
        return jnp.mean(loss, axis=-1)
    seen = jnp.abs(rows.y)
    return jnp.sum(seen[:, None, :] * loss, axis=-1) / jnp.sum(seen, axis=-1)[:, None]


def _by_subtraction(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    intercept_penalty: Float[Array, ""],
    block_rows: int | None,
) -> Way:
    per_fold = accumulate_folds(feature_map, rows.X, rows.y, rows.w, block_rows=block_rows)
    total = jax.tree.map(lambda a: jnp.sum(a, axis=0), per_fold)

    def solve(fold: NormalEquations) -> Ridge:
        return (total - fold).solve(C, intercept_penalty)

    solutions = jax.lax.map(solve, per_fold, batch_size=systems_at_once())
    return _solved(feature_map, solutions, total, block_rows)


def _by_classes(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    code: Code,
    intercept_penalty: Float[Array, ""],
    block_rows: int | None,
) -> Way:
    assert rows.label is not None
    (v, r, d), k = rows.X.shape, code.matrix.shape[0]
    group = jnp.arange(v, dtype=jnp.int32)[:, None] * k + rows.label
    sums = accumulate_groups(
        feature_map,
        rows.X.reshape(v * r, d),
        jnp.zeros((v * r, 0), rows.X.dtype),
        rows.w.reshape(-1),
        jnp.where(rows.w > 0, group, -1).reshape(-1),
        n_groups=v * k,
        block_rows=block_rows,
    )
    per_fold = jax.tree.map(lambda a: a.reshape(v, k, *a.shape[1:]), sums)
    total = jax.tree.map(lambda a: jnp.sum(a, axis=0), per_fold)

    def solve(fold: NormalEquations) -> Ridge:
        return solve_code(code, total - fold, C, intercept_penalty)

    every = jax.tree.map(lambda a: jnp.sum(a, axis=0), total)
    return _solved(feature_map, jax.lax.map(solve, per_fold), every, block_rows)


def _solved(
    feature_map: FeatureMap, solutions: Ridge, total: NormalEquations, block_rows: int | None
) -> Way:
    """Predict each fold by its own solution."""

    def predict(fold: tuple[Rows, Ridge]) -> tuple[Float[Array, "r s c"], Int[Array, " s"]]:
        rows, solution = fold
        s, p, c = solution.weights.shape
        columns = jnp.moveaxis(solution.weights, 0, 1).reshape(p, s * c)
        model = feature_map.expansion(columns, solution.intercept.reshape(s * c))
        return model(rows.X, block_rows=block_rows).reshape(-1, s, c), solution.status

    return Way(solutions, predict, total.energy)


def _by_removal(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    intercept_penalty: Float[Array, ""],
    block_rows: int | None,
) -> Way:
    # Only the total is needed: the sums of many small folds would cost more than all the rest.
    flat = (a.reshape(-1, *a.shape[2:]) for a in (rows.X, rows.y, rows.w))
    total = accumulate(feature_map, *flat, block_rows=block_rows)
    full = total.solve(C, intercept_penalty)
    f, N, shifts = total.feature_sum, total.weight_sum, 1 / C
    centred = spectrum(total.gram - f[:, None] * f[None, :] / N)
    alpha = rank_one_weight(N, intercept_penalty, C)[:, None, None]
    r = rows.X.shape[1]
    noise = 4 * r * epsilon(rows.X.dtype)

    def remove(fold: tuple[Rows, None]) -> tuple[Float[Array, "r s c"], Int[Array, " s"]]:
        rows, _ = fold
        phi = feature_map(rows.X)
        # The hat matrix among the fold's rows, H = q' M^(-1) q + 1/(N + p/C) with M and q as in
        # `ridge`: a quadratic form in [phi - f/N, f], and a rank-one term if the intercept is
        # penalised.
        corners = jnp.concatenate([(phi - f[None, :] / N).T, f[:, None]], axis=1)
        form = quadratic_form(centred, corners, shifts)
        inner, edge, corner = form[:, :r, :r], form[:, :r, r:], form[:, r:, r:]
        edge_t = jnp.swapaxes(edge, 1, 2)
        q = edge + alpha * corner
        hat = inner + alpha * (edge + edge_t) + alpha**2 * corner
        hat = hat - alpha / (1 + alpha * corner) * (q * jnp.swapaxes(q, 1, 2))
        hat = hat + (1 / (N + intercept_penalty * shifts))[:, None, None]

        fitted = dot(phi[None], full.weights) + full.intercept[:, None, :]
        error = rows.y[None] - fitted
        root = jnp.sqrt(rows.w)[None, :, None]
        scaled = root * hat * jnp.swapaxes(root, 1, 2)
        factor = jnp.linalg.cholesky((1 + noise) * jnp.eye(r, dtype=phi.dtype)[None] - scaled)
        solved = jax.scipy.linalg.cho_solve((factor, True), root * error)
        # Once against the matrix without its guard.
        rest = root * error - solved + dot(scaled, solved)
        solved = solved + jax.scipy.linalg.cho_solve((factor, True), rest)
        pivots = jnp.min(jnp.diagonal(factor, axis1=1, axis2=2), axis=1)
        out = error + dot(hat, root * solved)
        predictions = jnp.swapaxes(rows.y[None] - out, 0, 1)
        # A pivot 1 - h at the level of rounding: the fold's rows are interpolated, and what the
        # model without them says is not in these numbers any more.
        lost = jnp.square(pivots) < 16 * noise
        failed = ~jnp.all(jnp.isfinite(predictions), axis=(0, 2))
        return predictions, jnp.maximum(status_of(failed, lost), full.status)

    return Way(None, remove, total.energy)
