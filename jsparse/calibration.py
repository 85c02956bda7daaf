"""Probabilities from scores; the predicted class always has the largest probability."""

import numpy as np
from jaxtyping import Float, Int

from .predictor.codes import decisions as decisions
from .predictor.codes import gaps_and_decisions
from .predictor.codes import probabilities as probabilities

PRIOR_ROWS = 10.0  # prior strength of the common slope in the slope of a class, in rows


def fit_inverse_temperatures(
    scores: Float[np.ndarray, " n *k"],
    numbers: Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " k"]:
    """Return the inverse temperature of each predicted class: the slope of largest likelihood.

    This is Platt's scaling (1999) with a slope for each predicted class: the probabilities are
    `softmax(slope * scores)`. There is no intercept, because it would move the decision. As in
    Platt's paper, labels are mixed with the uniform distribution, as if one more row had the
    uniform target, which keeps the slope finite if scores separate the classes. The slope of a
    class is shrunk to the common slope of all rows by `PRIOR_ROWS` rows with the probabilities of
    the common slope. A class that is never predicted has the common slope.

    Args:
        scores: held-out scores, shape `n` for two classes, positive for the second, else `n k`.
        numbers: number of each row's true class, shape `n`.
        weights: row weights, shape `n`; None for equal weights.
    """
    gaps, predicted = gaps_and_decisions(scores.astype(float))
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
    rows_of_class = [(predicted == c) & (w > 0) for c in range(k)]
    return np.array(
        [slope(rows, prior, prior_weight) if rows.any() else common for rows in rows_of_class]
    )


def _softmax(gaps: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    odds = np.exp(gaps)  # the largest of a row is 1
    return odds / odds.sum(axis=1, keepdims=True)


def _most_likely_slope(
    gaps: Float[np.ndarray, "n k"],
    target: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, " n"],
) -> float:
    """Return the slope for which `softmax(slope * gaps)` has the largest likelihood.

    `gaps` are scores less the row's largest score, and `target` the probabilities to match. The
    slope lies between an almost flat softmax and almost a step.
    """
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
