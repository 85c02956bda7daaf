"""Naive float64 NumPy versions of Mall and Suykens (2015), by loops."""

import itertools

import numpy as np


def reweighted(Q, y, C, penalty, steps=50, change=1e-4):
    """Run the loop of Algorithms 3 and 4 as printed, on eq. 10, from the first `penalty`.

    Returns:
        The coefficients, the intercept and the number of steps.
    """
    n, M = Q.shape
    beta, b, t = np.zeros(M), 0.0, 0
    for t in range(1, steps + 1):
        H = np.zeros((M + 1, M + 1))
        H[:M, :M] = Q.T @ Q + np.diag(penalty) / C
        H[:M, M] = H[M, :M] = Q.sum(axis=0)
        H[M, M] = n
        solution = np.linalg.solve(H, np.append(Q.T @ y, y.sum()))
        before, beta, b = beta, solution[:M], solution[M]
        penalty = np.array([1 / max(value**2, 1e-200) for value in beta])
        if t > 1 and np.linalg.norm(beta - before) / M < change:
            break
    is_active = np.array([abs(value) > 1e-6 for value in beta])
    return np.where(is_active, beta, 0.0), b, t


def jointly(Q, Y, C, penalty, steps=300):
    """Return the coefficients of several outputs; a prototype has one penalty for all outputs."""
    for _ in range(steps):
        fits = [reweighted(Q, y, C, penalty, steps=1) for y in Y.T]
        beta = np.stack([coefficients for coefficients, *_ in fits], axis=1)
        penalty = np.array([1 / max(np.sum(row**2), 1e-200) for row in beta])
    return beta


def fewest(Q, y, C):
    """Minimise the number of columns plus C/2 times the squared errors, over all supports.

    Returns:
        The minimum and its support.
    """
    M = Q.shape[1]
    best = np.inf, ()
    for size in range(M + 1):
        for support in itertools.combinations(range(M), size):
            columns = np.column_stack([np.ones(len(y)), Q[:, support]])
            residual = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
            best = min(best, (size + C / 2 * residual @ residual, support))
    return best
