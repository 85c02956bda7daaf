"""Relevance vector machines from dense covariance matrices of the targets, in float64."""

import numpy as np


def posterior(Phi, y, w, alpha, beta):
    """Return log evidence, `s` and `q` of every column (Tipping and Faul 2003, eq. 7-9 and 18-22).

    `alpha` is infinite for columns that are not in the model. If `beta` is None, `y` holds classes
    -1 and +1: Newton's method finds the mode, and Laplace's approximation gives the evidence.
    """
    rows = np.flatnonzero(w)
    Phi, y, w = Phi[rows], y[rows], w[rows]
    active = np.flatnonzero(np.isfinite(alpha))
    A, Phi_active = np.diag(alpha[active]), Phi[:, active]
    if beta is not None:
        B, target = np.diag(beta * w), y
    else:
        mean = np.zeros(len(active))
        for _ in range(200):
            p = 1 / (1 + np.exp(-Phi_active @ mean))
            gradient = Phi_active.T @ (w * ((y > 0) - p)) - A @ mean
            hessian = Phi_active.T @ np.diag(w * p * (1 - p)) @ Phi_active + A
            mean = mean + np.linalg.solve(hessian, gradient)
        p = 1 / (1 + np.exp(-Phi_active @ mean))
        B = np.diag(w * p * (1 - p))
        target = Phi_active @ mean + np.linalg.solve(B, w * ((y > 0) - p))
    C = np.linalg.inv(B) + Phi_active @ np.linalg.inv(A) @ Phi_active.T
    if beta is not None:
        # A row of weight w counts as w rows.
        evidence = np.linalg.slogdet(C)[1] + target @ np.linalg.solve(C, target)
        evidence = -(evidence + w.sum() * np.log(2 * np.pi / beta)) / 2
        evidence -= np.sum(np.log(beta * w)) / 2
    else:
        likelihood = np.sum(w * np.log(np.where(y > 0, p, 1 - p))) - mean @ A @ mean / 2
        evidence = likelihood + (np.linalg.slogdet(A)[1] - np.linalg.slogdet(hessian)[1]) / 2
    s, q = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for i, column in enumerate(Phi.T):
        without = C - (np.outer(column, column) / alpha[i] if np.isfinite(alpha[i]) else 0)
        s[i], q[i] = (
            column @ np.linalg.solve(without, column),
            column @ np.linalg.solve(without, target),
        )
    return evidence, s, q


def gains(alpha, s, q):
    """Return the gain in log evidence at the best precision of each column, and that precision."""

    def log_evidence_term(alpha):
        finite = np.isfinite(alpha)
        a = np.where(finite, alpha, 1)
        return np.where(finite, (np.log(a) - np.log(a + s) + q**2 / (a + s)) / 2, 0)

    best = np.where(q**2 > s, s**2 / np.maximum(q**2 - s, 1e-300), np.inf)
    return log_evidence_term(best) - log_evidence_term(alpha), best
