"""Losses of predictions, row by row, and the standard error of their mean over folds."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._types import ScalarLike
from ..machines.rows import Rows
from ..multiclass import Decoding, decode


def _misclassified(y: Array, f: Array) -> Array:
    # Classes are -1 and +1; f = 0 predicts +1, as the deployed model does.
    return jnp.where(jnp.isnan(f), f, jnp.where((f >= 0) == (y > 0), 0, 1).astype(f.dtype))


def pinball(y: Any, f: Any, quantiles: Any, xp: Any = jnp) -> Any:
    """Return the pinball loss `max(q e, (q - 1) e)` of the residuals `e = y - f`.

    Its mean is least where the prediction `f` is the quantile `q` of the target `y` (Koenker and
    Bassett 1978). Arguments broadcast. `xp` is `numpy` or `jax.numpy`.
    """
    residual = y - f
    return xp.maximum(quantiles * residual, (quantiles - 1) * residual)


LOSSES: dict[str, Callable[[Array, Array, Array], Array]] = {  # of y, f and quantiles
    "mse": lambda y, f, _: jnp.square(y - f),
    "mae": lambda y, f, _: jnp.abs(y - f),
    "pinball": pinball,
    "misclassification": lambda y, f, _: _misclassified(y, f),
}


def check_metric(metric: str, quantiles: Sequence[ScalarLike]) -> None:
    """Raise a `ValueError` for an unknown metric, or for "pinball" without quantiles."""
    if metric not in LOSSES:
        raise ValueError(f"metric: expected one of {sorted(LOSSES)}, got {metric!r}")
    if metric == "pinball" and not quantiles:
        raise ValueError(
            "metric: expected 'pinball' only with a method that estimates quantiles, such as "
            "Robust(loss='quantile')"
        )


def losses(
    metric: str,
    decoding: Decoding,
    rows: Rows,
    values: Float[Array, "r q l"],
    quantiles: Sequence[ScalarLike] = (),
) -> Float[Array, "r q"]:
    """Return the loss of each of `q` machines, with `l` outputs `values`, on every row.

    "misclassification" is 1 where the decoded class is wrong. A loss in another metric is a mean
    over the `l` outputs or, with a code, over the binary problems that use the row. For "pinball",
    `quantiles` has one quantile for all outputs, or one for each output.
    """
    code, targets = rows.code, rows.target_columns
    if code is not None and metric == "misclassification":
        classes = decode(jnp.asarray(code.matrix), values, decoding)
        wrong = (classes != rows.y[:, None]).astype(values.dtype)
        return jnp.where(classes < 0, jnp.nan, wrong)
    levels = jnp.asarray(quantiles, values.dtype)[None, None]
    output_losses = LOSSES[metric](targets[:, None, :], values, levels)
    if code is None:
        return jnp.mean(output_losses, axis=-1)
    in_problem = jnp.abs(targets)  # 1 where the binary problem uses the row, else 0
    total = jnp.sum(in_problem[:, None, :] * output_losses, axis=-1)
    return total / jnp.sum(in_problem, axis=-1)[:, None]


def weighted(weights: Float[Array, "..."], loss: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return row weights times losses; 0 where the weight is 0 and the loss is not finite."""
    return weights * jnp.where((weights > 0) | jnp.isfinite(loss), loss, 0)


def standard_error(fold_scores: Float[ArrayLike, "s v *k"]) -> Float[np.ndarray, " s *k"]:
    """Return the standard error of the mean of `v` fold scores; NaN for a single fold.

    The other axes may be values of `C` and sizes. All folds have equal weight. A fold without rows
    of positive weight, whose score is NaN, is ignored.
    """
    scores = np.asarray(fold_scores)
    count = np.sum(~np.isnan(scores), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(scores, axis=1) / count
        squares = np.nansum(np.square(scores - np.expand_dims(mean, 1)), axis=1)
        return np.sqrt(squares / (count - 1) / count).astype(scores.dtype)
