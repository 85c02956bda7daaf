"""Prediction intervals and sets by the papers' formulas, with loops."""

import math


def smallest(values, rank):
    """Return the value of a rank; rank 1 is the smallest value."""
    return sorted(float(value) for value in values)[rank - 1]


def cv_plus(centres, errors, fold, coverage):
    """Return the CV+ interval of one new row (Barber et al. 2021, eq. 1.4 and Section 3).

    Args:
        centres: predictions of the new row, one by the machine without each fold.
        errors: absolute out-of-fold errors of the training rows.
        fold: fold of each training row.
        coverage: the nominal coverage.
    """
    n = len(errors)
    # Rounding may put a whole number on the wrong side: 0.9 * 10 > 9. The 1e-9 undoes that.
    upper = smallest(
        [centres[fold[i]] + errors[i] for i in range(n)], math.ceil(coverage * (n + 1) - 1e-9)
    )
    lower = smallest(
        [centres[fold[i]] - errors[i] for i in range(n)],
        math.floor((1 - coverage) * (n + 1) + 1e-9),
    )
    return lower, upper


def cross_set(scores, rows, labels, coverage):
    """Return whether each label is in the set of one new row (Romano et al. 2020, eq. 9).

    Args:
        scores: class scores of the new row, by the machine without each training row, `n k`.
        rows: class scores of each training row, by the machine without that row, `n k`.
        labels: classes of the training rows.
        coverage: the nominal coverage.
    """

    def margin_deficit(values, label):
        return max(values[c] for c in range(len(values)) if c != label) - values[label]

    n, inside = len(labels), []
    for label in range(scores.shape[1]):
        less = sum(
            margin_deficit(rows[i], labels[i]) < margin_deficit(scores[i], label) for i in range(n)
        )
        inside.append(less < coverage * (n + 1) - 1e-9)
    return inside
