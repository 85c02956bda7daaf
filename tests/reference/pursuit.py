"""Pursuits by loops.

Algorithms 1 and 3 of Karsmakers 2011; other sources are named at their functions.
"""

import numpy as np


def matching_pursuit(A, b, steps, shrinkage=1.0):
    """Run Algorithm 1 and return w after each step; `shrinkage` as in forward stagewise regression.

    The paper prints the update c + a_j beta. With c = A w - b that would double c_j, which the step
    must set to zero; so the sign is negative here.
    """
    w, c, record = np.zeros(len(b)), -b.copy(), []
    for _ in range(steps):
        j = int(np.argmax(np.abs(c)))
        beta = c[j] / A[j, j]
        w[j] -= shrinkage * beta
        c -= shrinkage * A[j] * beta
        record.append(w.copy())
    return record


def scdp(A, b, steps, order=None):
    """Run Algorithm 3: form B = P'A_k, then solve for the direction by back substitution (eq. 18).

    Args:
        A: symmetric positive definite.
        b: right-hand side.
        steps: number of atoms.
        order: atoms in the order of selection, or None for Southwell's rule (eq. 19).

    Returns:
        The atoms selected, and w after each step.
    """
    D = len(b)
    w, c = np.zeros(D), -b.copy()
    support = [int(np.argmax(np.abs(c))) if order is None else order[0]]
    P = [np.eye(D)[support[0]]]
    record = []
    for k in range(steps):
        p = P[-1]
        t = A @ p
        eta = -(c @ p) / (p @ t)
        w = w + eta * p
        c = c + eta * t
        record.append(w.copy())
        if k + 1 == steps:
            break
        if order is None:
            scores = np.abs(c)
            scores[support] = -1
            s = int(np.argmax(scores))
        else:
            s = order[k + 1]
        support.append(s)
        B = np.array([[p @ A[:, i] for i in support] for p in P])
        new = np.zeros(D)
        new[s] = 1.0
        for i in range(len(P) - 1, -1, -1):
            rest = sum(B[i, j] * new[support[j]] for j in range(i + 1, len(P)))
            new[support[i]] = (-B[i, len(P)] - rest) / B[i, i]
        P.append(new)
    return support, record


def least_squares(A, b, atoms):
    """Return the w that minimises 1/2 w'Aw - b'w and is zero except on some atoms."""
    w = np.zeros(len(b))
    w[atoms] = np.linalg.solve(A[np.ix_(atoms, atoms)], b[atoms])
    return w


def subspace_pursuit(X, y, K, iterations=50):
    """Run Algorithm 1 of Kabbara 2015.

    Returns:
        The atoms, their coefficients, and the residual's norm at first and after each iteration.
    """

    def largest(values):
        return np.argsort(-np.abs(values), kind="stable")[:K]

    def project(atoms):
        w = np.linalg.pinv(X[:, atoms], rcond=max(X.shape) * np.finfo(float).eps) @ y
        return w, y - X[:, atoms] @ w

    T = np.sort(largest(X.T @ y))
    w, r = project(T)
    norms = [np.linalg.norm(r)]
    for _ in range(iterations):
        merged = np.union1d(T, largest(X.T @ r))
        w_merged, _ = project(merged)
        new = np.sort(merged[largest(w_merged)])
        w_new, r_new = project(new)
        if not np.linalg.norm(r_new) < norms[-1]:
            break
        T, w, r = new, w_new, r_new
        norms.append(np.linalg.norm(r))
    return T, w, norms


def cosamp(X, y, K, iterations=50):
    """Run Algorithm 1 of Needell and Tropp 2009 until the residual no longer decreases.

    Returns:
        w, and the norm of the residual after each iteration.
    """
    w, norms = np.zeros(X.shape[1]), []
    r = y
    for _ in range(iterations + 1):
        score = np.abs(X.T @ r)
        merged = np.union1d(np.flatnonzero(w), np.argsort(-score, kind="stable")[: 2 * K])
        w_merged = np.linalg.pinv(X[:, merged]) @ y
        largest = np.argsort(-np.abs(w_merged), kind="stable")[:K]
        new = np.zeros(X.shape[1])
        new[merged[largest]] = w_merged[largest]
        residual = y - X @ new
        if norms and not np.linalg.norm(residual) < norms[-1]:
            break
        w, r = new, residual
        norms.append(np.linalg.norm(r))
    return w, norms


def kernel_matching_pursuit(X, y, K, fitting, draws=None):
    """Return the solutions with 1, .. K atoms (Vincent and Bengio 2002, Sections 2.1 to 2.3).

    Args:
        X: dictionary.
        y: target.
        K: number of atoms.
        fitting: "basic", "backfitting" or "prefitting".
        draws: the atoms examined in each step, or None for all.
    """
    D = X.shape[1]
    w, support, record, step = np.zeros(D), [], [], 0
    while True:
        examined = range(D) if draws is None else draws[step]
        step += 1
        residual = y - X @ w
        if fitting == "prefitting":
            losses = {}
            for j in set(examined) - set(support):
                trial = np.linalg.lstsq(X[:, [*support, j]], y, rcond=None)[0]
                losses[j] = np.linalg.norm(y - X[:, [*support, j]] @ trial)
            j = min(losses, key=losses.get)
        else:
            scores = np.abs(X.T @ residual) / np.linalg.norm(X, axis=0)
            j = max(examined, key=lambda i: scores[i])
        if j not in support:
            if support:
                record.append(w.copy())
            if len(support) == K:
                return record
            support.append(j)
        if fitting == "basic":
            w[j] += X[:, j] @ residual / (X[:, j] @ X[:, j])
        else:
            w[support] = np.linalg.lstsq(X[:, support], y, rcond=None)[0]
            if len(support) == K:
                return [*record, w.copy()]
