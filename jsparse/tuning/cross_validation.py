"""Fast v-fold cross-validation for a whole vector of `C`."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import systems_at_once
from .._numerics import dot, epsilon, like
from .._status import CONVERGED, PRECISION_LOST, status_of
from .._types import ScalarLike
from ..features import FeatureMap
from ..normal_equations import NormalEquations, accumulate, accumulate_folds
from ..solvers.ridge import Ridge, quadratic_form, spectrum
from .folds import Folds

Metric = Literal["mse", "mae", "misclassification"]

LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "mse": lambda y, f: jnp.square(y - f),
    "mae": lambda y, f: jnp.abs(y - f),
    # Classes are -1 and +1; f = 0 decides for +1, as in prediction.
    "misclassification": lambda y, f: jnp.where((f >= 0) == (y > 0), 0, 1).astype(f.dtype),
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
    y: Float[Array, "n *c"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    intercept_penalty: ScalarLike = 0.0,
    block_rows: int | None = None,
    method: Literal["auto", "subtraction", "removal"] = "auto",
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
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification".
        folds: see `tuning.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae", or "misclassification" (a fraction).
        intercept_penalty: see `ridge`.
        block_rows: rows in memory at a time.
        method: "auto" takes the cheaper one.

    Differentiable in the feature map, `C`, `X`, `y` and `weights` in both modes (for the metric
    "misclassification" the derivative of the scores is zero). Nothing recompiles when values
    change; `vmap` over kernels, `C` and data sets works.

    Raises:
        ValueError: if the metric is unknown or the penalty of the map is not the identity.
    """
    if metric not in LOSSES:
        raise ValueError(f"metric: expected one of {sorted(LOSSES)}, got {metric!r}")
    if feature_map.penalty() is not None:
        raise ValueError(
            "feature_map: expected one penalised by the identity (Nystroem, Linear), got "
            f"{type(feature_map).__name__}; Nystroem gives the same models"
        )
    if method == "auto":
        method = _cheaper(feature_map.n_features, folds.index.shape[1], C.shape[0])
    return _cross_validate(
        feature_map, C, X, y, folds, weights, like(intercept_penalty, X), metric, method, block_rows
    )


def _cheaper(p: int, r: int, s: int) -> Literal["subtraction", "removal"]:
    """By the operations for a fold of `r` rows, `p` features and `s` values of `C`."""
    decompose = 25 * p**3  # at the speed of a product, as measured on a CPU
    remove = 2 * p**2 * r + s * (2 * p * r**2 + 3 * r**3)  # rotate; hat matrices; Cholesky
    return "removal" if remove <= decompose else "subtraction"


@functools.partial(jax.jit, static_argnames=("metric", "method", "block_rows"))
def _cross_validate(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    folds: Folds,
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""],
    metric: str,
    method: str,
    block_rows: int | None,
) -> CrossValidation:
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    Xf, yf = folds.gather(X), folds.gather(y.reshape(n, -1))
    wf = jnp.where(folds.valid, folds.gather(w), 0)

    if method == "subtraction":
        per_fold = accumulate_folds(feature_map, Xf, yf, wf, block_rows=block_rows)
        total = jax.tree.map(lambda a: jnp.sum(a, axis=0), per_fold)
        predictions, status = _by_subtraction(
            feature_map, C, Xf, per_fold, total, intercept_penalty, block_rows
        )
    else:
        # Only the total is needed: the sums of many small folds would cost more than all the rest.
        rows = (a.reshape(-1, *a.shape[2:]) for a in (Xf, yf, wf))
        total = accumulate(feature_map, *rows, block_rows=block_rows)
        predictions, status = _by_removal(feature_map, C, Xf, yf, wf, total, intercept_penalty)

    lost = jnp.where(feature_map.unresolved(C, total.weight_sum), PRECISION_LOST, CONVERGED)
    status = jnp.maximum(status, lost.astype(jnp.int32))
    loss = jnp.mean(LOSSES[metric](yf[:, :, None, :], predictions), axis=-1)
    fold_loss = jnp.sum(wf[:, :, None] * loss, axis=1).T
    fold_weight = jnp.sum(wf, axis=1)[None, :]
    out = jnp.moveaxis(folds.scatter(predictions, n), 1, 0)
    return CrossValidation(
        scores=jnp.sum(fold_loss, axis=1) / jnp.sum(fold_weight),
        fold_scores=fold_loss / jnp.where(fold_weight > 0, fold_weight, 1),
        predictions=out.reshape(C.shape[0], n, *y.shape[1:]),
        status=status,
    )


def _by_subtraction(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "v r d"],
    per_fold: NormalEquations,
    total: NormalEquations,
    intercept_penalty: Float[Array, ""],
    block_rows: int | None,
) -> tuple[Float[Array, "v r s c"], Int[Array, " s"]]:
    s, c = C.shape[0], total.cross.shape[1]

    def solve(fold: NormalEquations) -> Ridge:
        return (total - fold).solve(C, intercept_penalty)

    solutions = jax.lax.map(solve, per_fold, batch_size=systems_at_once())

    def predict(fold: tuple[Array, Array, Array]) -> Float[Array, "r s c"]:
        rows, weights, intercept = fold
        columns = jnp.moveaxis(weights, 0, 1).reshape(-1, s * c)
        model = feature_map.expansion(columns, intercept.reshape(s * c))
        return model(rows, block_rows=block_rows).reshape(-1, s, c)

    predictions = jax.lax.map(predict, (X, solutions.weights, solutions.intercept))
    return predictions, jnp.max(solutions.status, axis=0)


def _by_removal(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    X: Float[Array, "v r d"],
    y: Float[Array, "v r c"],
    w: Float[Array, "v r"],
    total: NormalEquations,
    intercept_penalty: Float[Array, ""],
) -> tuple[Float[Array, "v r s c"], Int[Array, " s"]]:
    full = total.solve(C, intercept_penalty)
    f, N, shifts = total.feature_sum, total.weight_sum, 1 / C
    centred = spectrum(total.gram - f[:, None] * f[None, :] / N)
    denominator = N + intercept_penalty * shifts
    alpha = (intercept_penalty * shifts / (N * denominator))[:, None, None]
    r = X.shape[1]
    noise = 4 * r * epsilon(X.dtype)

    def remove(fold: tuple[Array, Array, Array]) -> tuple[Float[Array, "r s c"], Array]:
        rows, targets, weights = fold
        phi = feature_map(rows)
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
        hat = hat + (1 / denominator)[:, None, None]

        fitted = dot(phi[None], full.weights) + full.intercept[:, None, :]
        error = targets[None] - fitted
        root = jnp.sqrt(weights)[None, :, None]
        scaled = root * hat * jnp.swapaxes(root, 1, 2)
        factor = jnp.linalg.cholesky((1 + noise) * jnp.eye(r, dtype=phi.dtype)[None] - scaled)
        solved = jax.scipy.linalg.cho_solve((factor, True), root * error)
        out = error + dot(hat, root * solved)
        pivots = jnp.min(jnp.diagonal(factor, axis1=1, axis2=2), axis=1)
        return jnp.swapaxes(targets[None] - out, 0, 1), jnp.square(pivots)

    predictions, pivots = jax.lax.map(remove, (X, y, w))
    # A pivot 1 - h at the level of rounding: the fold's rows are interpolated, and what the model
    # without them says is not in these numbers any more.
    lost = jnp.any(pivots < 8 * noise, axis=0)
    failed = ~jnp.all(jnp.isfinite(predictions), axis=(0, 1, 3))
    return predictions, jnp.maximum(status_of(failed, lost), full.status)
