"""Intervals and sets by the papers' formulas, with loops."""

import math

import numpy as np


def smallest(values, rank):
    """The rank-th smallest, counted from 1."""
    return sorted(float(value) for value in values)[rank - 1]


def cv_plus(centres, errors, fold, coverage):
    """Barber et al. 2021, eq. 1.4 and Section 3, for one new row with its centres of each fold."""
    n = len(errors)
    upper = smallest(
        [centres[fold[i]] + errors[i] for i in range(n)], math.ceil(coverage * (n + 1) - 1e-9)
    )
    lower = smallest(
        [centres[fold[i]] - errors[i] for i in range(n)],
        math.floor((1 - coverage) * (n + 1) + 1e-9),
    )
    return lower, upper


def cross_set(scores, rows, labels, coverage):
    """Romano et al. 2020, eq. 9: labels that are as conforming as enough of the rows.

    Args:
        scores: of the classes at one new row by the machine without each row, `n k`.
        rows: of the classes at each row by the machine without it, `n k`.
        labels: the rows' classes.
    """

    def strange(own, label):
        return max(own[c] for c in range(len(own)) if c != label) - own[label]

    n, inside = len(labels), []
    for label in range(scores.shape[1]):
        less = sum(strange(rows[i], labels[i]) < strange(scores[i], label) for i in range(n))
        inside.append(less < coverage * (n + 1) - 1e-9)
    return inside


def least_squares_machine(gram, y, C, w):
    """alpha and b of the LS-SVM in the dual (De Brabanter 2010, eq. 3) by its one linear system."""
    n = len(y)
    system = np.zeros((n + 1, n + 1))
    system[0, 1:] = system[1:, 0] = 1
    system[1:, 1:] = gram + np.diag(1 / (C * w))
    solution = np.linalg.solve(system, np.concatenate([[0.0], y]))
    return solution[1:], solution[0]
