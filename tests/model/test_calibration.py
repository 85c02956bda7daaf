"""Probabilities from scores are consistent with the decisions, and have maximum likelihood."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from jsparse.calibration import PRIOR_ROWS, decisions, fit_inverse_temperatures, probabilities


def scored(k, n=400, seed=0):
    """Return scores that depend on the class (a column for each of k > 2), classes and weights."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, k, n)
    truth = np.eye(k)[numbers]
    scores = truth + rng.standard_normal((n, k)) * (1 + np.arange(k) / k)
    if k == 2:
        scores = scores[:, 1] - scores[:, 0]
    return scores, numbers, rng.choice([0.0, 1.0, 2.0], n)


def negative_log_likelihood(slope, rows):
    """Return the negative log-likelihood by loops; a row is (scores, probabilities, weight)."""
    total = 0.0
    for scores, target, weight in rows:
        odds = [np.exp(slope * (s - max(scores))) for s in scores]
        total -= weight * sum(t * np.log(o / sum(odds)) for t, o in zip(target, odds, strict=True))
    return total


def likeliest(rows):
    return minimize_scalar(negative_log_likelihood, bounds=(1e-3, 1e2), args=(rows,)).x


@pytest.mark.parametrize("k", [2, 4])
def test_slopes_are_the_likeliest_by_loops(k):
    scores, numbers, weights = scored(k)
    columns = np.stack([0 * scores, scores], axis=1) if k == 2 else scores
    rows = list(zip(columns, np.eye(k)[numbers], weights, strict=True))

    def mixed(rows, beliefs, worth):
        share = worth / (worth + sum(w for _, _, w in rows))
        return [
            (s, [(1 - share) * t + share * b for t, b in zip(target, belief, strict=True)], w)
            for (s, target, w), belief in zip(rows, beliefs, strict=True)
        ]

    common = likeliest(mixed(rows, [[1 / k] * k] * len(rows), 1.0))
    odds = np.exp(common * columns)
    worth = 1 / k + PRIOR_ROWS
    beliefs = (1 / k / k + PRIOR_ROWS * odds / odds.sum(axis=1, keepdims=True)) / worth
    expected = []
    for c in range(k):
        members = [i for i in range(len(rows)) if decisions(scores)[i] == c]
        expected.append(
            likeliest(mixed([rows[i] for i in members], [beliefs[i] for i in members], worth))
        )
    np.testing.assert_allclose(
        fit_inverse_temperatures(scores, numbers, weights), expected, rtol=1e-3
    )


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_most_probable_class_is_the_one_decided_for(k, dtype):
    scores, numbers, _ = scored(k)
    inverse_temperatures = fit_inverse_temperatures(scores, numbers)
    rng = np.random.default_rng(2)
    few = rng.integers(-2, 3, (500, k)).astype(dtype)  # many ties
    near = np.nextafter(few, rng.choice([-9, 9], few.shape)).astype(dtype)  # by one rounding
    tiny, huge = few * np.array(1e-30, dtype), few * np.array(1e30, dtype)
    for columns in (few, near, tiny, huge):
        trial = columns[:, 0] if k == 2 else columns
        p = probabilities(trial, inverse_temperatures)
        np.testing.assert_array_equal(p.argmax(axis=1), decisions(trial))
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-14)
        assert (p >= 0).all()


@pytest.mark.parametrize("n", [10, 1000])
def test_scores_that_separate_leave_some_doubt(n):
    numbers = np.arange(n) % 2
    f = np.where(numbers == 1, 1.0, -1.0)
    p = probabilities(f, fit_inverse_temperatures(f, numbers))
    # One row of no class among n; half of it on each side, and some rows that believe in as much.
    common = 0.5 / (n + 1)
    doubt = (0.25 + PRIOR_ROWS * common) / (n / 2 + 0.5 + PRIOR_ROWS)
    np.testing.assert_allclose(p.min(axis=1), doubt, rtol=1e-6)


def test_scores_that_say_nothing_or_mislead_give_no_confidence():
    scores, numbers, _ = scored(3, n=5000)
    for trial in (np.random.default_rng(3).permuted(scores, axis=0), -scores, 0 * scores):
        p = probabilities(trial, fit_inverse_temperatures(trial, numbers))
        assert p.max() < 0.45
        np.testing.assert_array_equal(p.argmax(axis=1), decisions(trial))


def test_a_class_never_decided_for_takes_the_common_slope():
    scores, numbers, _ = scored(3)
    scores[:, 2] = scores.min() - 1
    inverse_temperatures = fit_inverse_temperatures(scores, np.where(numbers == 2, 0, numbers))
    assert np.isfinite(inverse_temperatures).all()
    assert min(inverse_temperatures[:2]) <= inverse_temperatures[2] <= max(inverse_temperatures[:2])


def test_the_largest_scores_there_are_decide_without_doubt():
    huge = np.finfo(float).max
    inverse_temperatures = np.array([3.0, 0.5, 2.0])
    two = probabilities(np.array([huge, -huge, 0.0]), inverse_temperatures[:2])
    np.testing.assert_array_equal(two[:2], [[0, 1], [1, 0]])
    three = probabilities(np.array([[huge, -huge, 0.0], [-huge, 0.0, huge]]), inverse_temperatures)
    np.testing.assert_array_equal(three, [[1, 0, 0], [0, 0, 1]])
