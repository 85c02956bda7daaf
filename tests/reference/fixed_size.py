"""Naive float64 NumPy versions of De Brabanter 2010, Sections 2, 3 and 6, by loops."""

import numpy as np
from reference.kernels import gaussian


def nystroem(X, Z, lengthscale):
    """Return the features of eq. 5, untruncated: lambda_i^(-1/2) sum_k u_ki k(z_k, x)."""
    values, vectors = np.linalg.eigh(gaussian(Z, Z, lengthscale))
    return gaussian(X, Z, lengthscale) @ vectors / np.sqrt(values)


def ridge(Phi, y, C, intercept_penalty, weights=None):
    """Return the weights and then the intercept, by eq. 7 with any penalty of the intercept."""
    n, p = Phi.shape
    w = np.ones(n) if weights is None else weights
    Phi_e = np.hstack([Phi, np.ones((n, 1))])
    R = np.diag([1.0] * p + [intercept_penalty])
    return np.linalg.solve(Phi_e.T @ (w[:, None] * Phi_e) + R / C, Phi_e.T @ (w * y))


def dual(K, y, C, weights=None):
    """Return `alpha` and `b`, the solution of the KKT system of Section 2.2 (eq. 3)."""
    n = len(y)
    w = np.ones(n) if weights is None else weights
    A = np.zeros((n + 1, n + 1))
    A[0, 1:] = A[1:, 0] = 1
    A[1:, 1:] = K + np.diag(1 / (C * w))
    solution = np.linalg.solve(A, np.concatenate([[0.0], y]))
    return solution[1:], solution[0]


def cross_validate(Phi, y, C, assignment, intercept_penalty, weights=None):
    """Return out-of-fold predictions, from one refit without each fold."""
    w = np.ones(len(y)) if weights is None else weights
    out = np.empty(len(y))
    for fold in np.unique(assignment):
        test = assignment == fold
        solution = ridge(Phi[~test], y[~test], C, intercept_penalty, w[~test])
        out[test] = Phi[test] @ solution[:-1] + solution[-1]
    return out
