"""Losses of predictions, and their means over rows and folds."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..machines.rows import Rows
from ..multiclass import Decoding, decode


def _misclassified(y: Array, f: Array) -> Array:
    # Classes are -1 and +1; f = 0 decides for +1, as in prediction.
    return jnp.where(jnp.isnan(f), f, jnp.where((f >= 0) == (y > 0), 0, 1).astype(f.dtype))


LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "mse": lambda y, f: jnp.square(y - f),
    "mae": lambda y, f: jnp.abs(y - f),
    "misclassification": _misclassified,
}


def losses(
    metric: str, decoding: Decoding, rows: Rows, values: Float[Array, "r q l"]
) -> Float[Array, "r q"]:
    """Return the loss of every row by each of `q` machines.

    "misclassification" is of the decoded classes; the other metrics are means over the outputs, of
    a code over the binary problems that see the row.
    """
    code, targets = rows.code, rows.target_columns
    if code is not None and metric == "misclassification":
        classes = decode(jnp.asarray(code.matrix), values, decoding)
        wrong = (classes != rows.y[:, None]).astype(values.dtype)
        return jnp.where(classes < 0, jnp.nan, wrong)
    of_outputs = LOSSES[metric](targets[:, None, :], values)
    if code is None:
        return jnp.mean(of_outputs, axis=-1)
    seen = jnp.abs(targets)
    return jnp.sum(seen[:, None, :] * of_outputs, axis=-1) / jnp.sum(seen, axis=-1)[:, None]


def weighted(weights: Float[Array, "..."], loss: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return losses times row weights; 0 for rows of weight 0 whose loss is not finite."""
    return weights * jnp.where((weights > 0) | jnp.isfinite(loss), loss, 0)


def standard_error(fold_scores: Float[ArrayLike, "s v *k"]) -> Float[np.ndarray, "s *k"]:
    """Return the standard error of a score from its spread over the folds; NaN for one fold.

    Folds count alike, except that a fold without weight, whose score is NaN, does not count.
    """
    scores = np.asarray(fold_scores)
    count = np.sum(~np.isnan(scores), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(scores, axis=1) / count
        squares = np.nansum(np.square(scores - np.expand_dims(mean, 1)), axis=1)
        return np.sqrt(squares / (count - 1) / count).astype(scores.dtype)
