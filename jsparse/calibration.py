"""Probabilities from scores; the predicted class always has the largest probability."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

# An array of NumPy, or of JAX within a JAX program.
Scores = Float[np.ndarray, "n *k"] | Float[Array, "n *k"]
Decisions = Int[np.ndarray, " n"] | Int[Array, " n"]

PRIOR_ROWS = 10.0  # prior strength of the common slope in the slope of a class, in rows


def decisions(scores: Scores) -> Decisions:
    """Return class numbers: the largest score, the first at a tie. For two classes `f >= 0`."""
    return (scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


def fit_inverse_temperatures(
    scores: Float[np.ndarray, " n *k"],
    numbers: Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " k"]:
    """Return for each predicted class the slope that maximises the likelihood of the softmax.

    This is Platt's scaling (1999) with a slope for each predicted class: the probabilities are
    `softmax(slope * scores)`. There is no intercept, because it would move the decision. Targets
    are smoothed as by Platt: a row's target is its label mixed with the uniform distribution, as if
    one more row had the uniform target. This keeps the slope finite if scores separate the classes.
    The slope of a class is shrunk to the common slope by `PRIOR_ROWS` rows that have the
    probabilities of the common slope.

    Args:
        scores: held-out scores, shape `n` for two classes, positive for the second, else `n k`.
        numbers: class numbers, shape `n`.
        weights: row weights, shape `n`.
    """
    gaps, decided = _gaps(scores.astype(float), np)
    k = gaps.shape[1]
    w = np.ones(len(gaps)) if weights is None else weights
    one_hot = np.eye(k)[numbers]

    def slope(rows: np.ndarray, prior: np.ndarray, prior_weight: float) -> float:
        share = prior_weight / (prior_weight + w[rows].sum())
        target = (1 - share) * one_hot[rows] + share * prior[rows]
        return _most_likely_slope(gaps[rows], target, w[rows])

    uniform = np.full_like(gaps, 1 / k)
    common = slope(w > 0, uniform, 1.0)
    prior_weight = 1 / k + PRIOR_ROWS
    prior = (uniform / k + PRIOR_ROWS * _softmax(common * gaps)) / prior_weight
    groups = [(decided == c) & (w > 0) for c in range(k)]
    return np.array([slope(g, prior, prior_weight) if g.any() else common for g in groups])


def probabilities(scores: Scores, inverse_temperatures: Any, xp: Any = np) -> Any:
    """Return class probabilities, shape `n k`; the largest belongs to `decisions(scores)`.

    Args:
        scores: shape `n` for two classes, positive for the second, else `n k`.
        inverse_temperatures: result of `fit_inverse_temperatures`, shape `k`.
        xp: `numpy`, which computes in float64, or `jax.numpy`, which computes in the scores' dtype
            and is differentiable in scores and inverse temperatures. Derivatives jump where the
            decision changes, because the slope changes.
    """
    scores = scores.astype(float) if xp is np else scores
    with np.errstate(over="ignore"):  # for huge scores the odds are 0
        gaps, decided = _gaps(scores, xp)
        slope = xp.asarray(inverse_temperatures, dtype=gaps.dtype)[decided]
        odds = xp.exp(slope[:, None] * gaps)
    # At a tie the predicted class leads by a few units of rounding.
    odds = xp.minimum(odds, 1 - 4 * float(xp.finfo(odds.dtype).eps))
    odds = xp.where(xp.arange(gaps.shape[1])[None] == decided[:, None], 1, odds)
    return odds / odds.sum(axis=1, keepdims=True)


def _softmax(gaps: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    odds = np.exp(gaps)  # the largest of a row is 1
    return odds / odds.sum(axis=1, keepdims=True)


def _gaps(scores: Scores, xp: Any) -> tuple[Any, Any]:
    """Return scores less the predicted class's score, at most 0, and the decisions."""
    decided = decisions(scores)
    two_classes = scores.ndim == 1
    columns = xp.stack([xp.zeros_like(scores), scores], axis=1) if two_classes else scores
    return columns - xp.take_along_axis(columns, decided[:, None], axis=1), decided


def _most_likely_slope(
    gaps: Float[np.ndarray, "n k"],
    target: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
) -> float:
    """Return the slope of largest likelihood, between an almost flat softmax and almost a step."""
    largest_gap = -gaps.min()
    if largest_gap == 0:
        return 1.0

    def derivative(log_slope: float) -> float:
        excess = _softmax(np.exp(log_slope) * gaps) - target
        return float(weights @ np.sum(excess * gaps, axis=1))

    from scipy.optimize import root_scalar  # slow to import, and often not needed

    low, high = np.log([1e-3 / largest_gap, 1e6 / largest_gap])
    if derivative(low) >= 0:
        return float(np.exp(low))
    if derivative(high) <= 0:
        return float(np.exp(high))
    return float(np.exp(root_scalar(derivative, bracket=(low, high), xtol=1e-12).root))
