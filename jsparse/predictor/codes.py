"""From values of the machine to decisions and probabilities, in NumPy or JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np


def check_code(matrix: np.ndarray, k: int) -> np.ndarray:
    """Return an output code for `k` classes, shape `k l`; raise ValueError if it is invalid."""
    if matrix.ndim != 2 or len(matrix) != k or matrix.shape[1] < 1:
        raise ValueError(f"code: expected shape ({k}, problems), got {matrix.shape}")
    if not np.isin(matrix, (-1, 0, 1)).all():
        raise ValueError("code: expected entries -1, 0 and +1 only")
    one_sided = ~((matrix == 1).any(axis=0) & (matrix == -1).any(axis=0))
    if one_sided.any():
        raise ValueError(
            f"code: problem {int(np.argmax(one_sided))} lacks a class of +1 or a class of -1"
        )
    absent = ~matrix.any(axis=1)
    if absent.any():
        raise ValueError(f"code: class {int(np.argmax(absent))} is in no problem")
    if len(np.unique(matrix, axis=0)) < k:
        raise ValueError("code: expected a different row for each class, got two equal rows")
    return matrix


def distances(
    matrix: Any, values: Any, decoding: str, xp: Any = np, dot: Callable[..., Any] = np.matmul
) -> Any:
    """Return the distance of the values from each class's code, smallest for the best class.

    - "hamming": the number of problems whose value has another sign than the code. A problem that
      leaves the class out counts one half. At a tie the class of the smaller "loss" is nearer.
    - "loss": mean of `(1 - code value)^2` over problems (Allwein et al. 2000), which is the loss of
      the LS-SVM. A problem that leaves the class out counts 1, the loss at 0.

    Differentiable in `values` for "loss".

    Args:
        matrix: the output code of `k` classes as `l` binary problems, shape `k l`.
        values: values of the machine for the problems, shape `*n l`.
        decoding: "hamming" or "loss".
        xp: `numpy` or `jax.numpy`.
        dot: the matrix product.

    Returns:
        Shape `*n k`.
    """
    k, problems = matrix.shape
    lead = values.shape[:-1]
    flat = values.reshape(-1, problems)
    # As M^2 = |M|, matrix products sum (1 - M f)^2 over the problems without an n x k x l array.
    used = xp.abs(matrix)
    squares = dot(xp.square(flat), used.T) - 2 * dot(flat, matrix.T)
    loss = 1 + squares / problems
    if decoding == "hamming":
        signs = xp.where(flat >= 0, 1, -1).astype(flat.dtype)
        wrong = (problems - dot(signs, matrix.T)) / 2
        # The maximum is selected by index, because the derivative of `jnp.max` compares numbers
        # that fusions may round differently.
        farthest = xp.argmax(loss, axis=1, keepdims=True)
        loss = wrong + 0.25 * loss / (1 + xp.take_along_axis(loss, farthest, axis=1))
    return loss.reshape(*lead, k)


def decisions(scores: Any) -> Any:
    """Return the number of each row's predicted class, shape `n`.

    Scores of shape `n` are for two classes: class 1 is predicted where the score is at least 0. For
    scores of shape `n k` it is the class of the largest score, the first of them at a tie.
    """
    return (scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


def probabilities(scores: Any, inverse_temperatures: Any, xp: Any = np) -> Any:
    """Return class probabilities, shape `n k`; the largest belongs to `decisions(scores)`.

    Args:
        scores: shape `n` for two classes, positive for the second, else `n k`.
        inverse_temperatures: factor of a row's scores for each predicted class, shape `k`.
        xp: `numpy`, which computes in float64, or `jax.numpy`, which computes in the scores' dtype
            and is differentiable in scores and inverse temperatures. Derivatives jump where the
            decision changes, because the inverse temperature changes.
    """
    scores = scores.astype(float) if xp is np else scores
    with np.errstate(over="ignore"):  # for huge scores the odds are 0
        gaps, predicted = gaps_and_decisions(scores, xp)
        slope = xp.asarray(inverse_temperatures, dtype=gaps.dtype)[predicted]
        odds = xp.exp(slope[:, None] * gaps)
    # At a tie the predicted class leads by a few units of rounding.
    odds = xp.minimum(odds, 1 - 4 * float(xp.finfo(odds.dtype).eps))
    odds = xp.where(xp.arange(gaps.shape[1])[None] == predicted[:, None], 1, odds)
    return odds / odds.sum(axis=1, keepdims=True)


def gaps_and_decisions(scores: Any, xp: Any = np) -> tuple[Any, Any]:
    """Return each class's score less the predicted class's, shape `n k`, and `decisions(scores)`.

    For two classes, scores of shape `n`, class 0 counts as having the score 0.
    """
    predicted = decisions(scores)
    two_classes = scores.ndim == 1
    columns = xp.stack([xp.zeros_like(scores), scores], axis=1) if two_classes else scores
    return columns - xp.take_along_axis(columns, predicted[:, None], axis=1), predicted
