"""Relevance vector machines from their covariances, row by row, in float64."""

import numpy as np


def posterior(Phi, y, w, alpha, beta):
    """Log evidence, `s` and `q` of every column (Tipping and Faul 2003, eq. 7-9 and 18-22).

    `alpha` is infinite for columns that are not in the model; `beta` is None for classes -1 and +1,
    whose mode is found by Newton's method and whose evidence is Laplace's.
    """
    rows = np.flatnonzero(w)
    Phi, y, w = Phi[rows], y[rows], w[rows]
    there = np.flatnonzero(np.isfinite(alpha))
    A, own = np.diag(alpha[there]), Phi[:, there]
    if beta is not None:
        B, target = np.diag(beta * w), y
    else:
        mean = np.zeros(len(there))
        for _ in range(200):
            p = 1 / (1 + np.exp(-own @ mean))
            slope = own.T @ (w * ((y > 0) - p)) - A @ mean
            curve = own.T @ np.diag(w * p * (1 - p)) @ own + A
            mean = mean + np.linalg.solve(curve, slope)
        p = 1 / (1 + np.exp(-own @ mean))
        B = np.diag(w * p * (1 - p))
        target = own @ mean + np.linalg.solve(B, w * ((y > 0) - p))
    C = np.linalg.inv(B) + own @ np.linalg.inv(A) @ own.T
    if beta is not None:
        # A row of weight w counts as w rows.
        evidence = np.linalg.slogdet(C)[1] + target @ np.linalg.solve(C, target)
        evidence = -(evidence + w.sum() * np.log(2 * np.pi / beta)) / 2
        evidence -= np.sum(np.log(beta * w)) / 2
    else:
        likelihood = np.sum(w * np.log(np.where(y > 0, p, 1 - p))) - mean @ A @ mean / 2
        evidence = likelihood + (np.linalg.slogdet(A)[1] - np.linalg.slogdet(curve)[1]) / 2
    s, q = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for i, column in enumerate(Phi.T):
        without = C - (np.outer(column, column) / alpha[i] if np.isfinite(alpha[i]) else 0)
        s[i], q[i] = (
            column @ np.linalg.solve(without, column),
            column @ np.linalg.solve(without, target),
        )
    return evidence, s, q


def gains(alpha, s, q):
    """What the best precision of each column would add to the log evidence, and that precision."""

    def share(alpha):
        return (np.log(alpha) - np.log(alpha + s) + q**2 / (alpha + s)) / 2

    best = np.where(q**2 > s, s**2 / np.maximum(q**2 - s, 1e-300), np.inf)
    with np.errstate(invalid="ignore"):
        then = np.where(np.isfinite(best), share(np.where(np.isfinite(best), best, 1)), 0)
        now = np.where(np.isfinite(alpha), share(np.where(np.isfinite(alpha), alpha, 1)), 0)
    return then - now, best
