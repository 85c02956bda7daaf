"""From values of the machine to decisions and probabilities, in NumPy or JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np


def check_code(matrix: np.ndarray, k: int) -> np.ndarray:
    """Return a matrix of codes for `k` classes; raise ValueError unless it is a valid code."""
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

    - "hamming": the number of problems whose sign disagrees. A problem that leaves the class out
      counts one half. Among classes with equal numbers, the smaller "loss" counts as nearer.
    - "loss": mean squared error `(1 - matrix f)^2` over problems (Allwein et al. 2000), which is
      the loss of the LS-SVM. A problem that leaves the class out counts 1, the loss at 0.

    Differentiable in `values` for "loss".

    Args:
        matrix: the code, shape `k l`.
        values: values of the problems, shape `*n l`.
        decoding: name of the distance.
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
        place = xp.argmax(loss, axis=1, keepdims=True)
        loss = wrong + 0.25 * loss / (1 + xp.take_along_axis(loss, place, axis=1))
    return loss.reshape(*lead, k)


def decisions(scores: Any) -> Any:
    """Return class numbers: the largest score, the first at a tie. For two classes `f >= 0`.

    `scores` has shape `n` for two classes, positive for the second, else `n k`; of NumPy or JAX.
    """
    return (scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


def probabilities(scores: Any, inverse_temperatures: Any, xp: Any = np) -> Any:
    """Return class probabilities, shape `n k`; the largest belongs to `decisions(scores)`.

    Args:
        scores: shape `n` for two classes, positive for the second, else `n k`.
        inverse_temperatures: a slope for each predicted class, shape `k`.
        xp: `numpy`, which computes in float64, or `jax.numpy`, which computes in the scores' dtype
            and is differentiable in scores and inverse temperatures. Derivatives jump where the
            decision changes, because the slope changes.
    """
    scores = scores.astype(float) if xp is np else scores
    with np.errstate(over="ignore"):  # for huge scores the odds are 0
        gaps, decided = gaps_and_decisions(scores, xp)
        slope = xp.asarray(inverse_temperatures, dtype=gaps.dtype)[decided]
        odds = xp.exp(slope[:, None] * gaps)
    # At a tie the predicted class leads by a few units of rounding.
    odds = xp.minimum(odds, 1 - 4 * float(xp.finfo(odds.dtype).eps))
    odds = xp.where(xp.arange(gaps.shape[1])[None] == decided[:, None], 1, odds)
    return odds / odds.sum(axis=1, keepdims=True)


def gaps_and_decisions(scores: Any, xp: Any = np) -> tuple[Any, Any]:
    """Return scores less the predicted class's score, at most 0, and the decisions."""
    decided = decisions(scores)
    two_classes = scores.ndim == 1
    columns = xp.stack([xp.zeros_like(scores), scores], axis=1) if two_classes else scores
    return columns - xp.take_along_axis(columns, decided[:, None], axis=1), decided
