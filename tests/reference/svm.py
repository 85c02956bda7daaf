"""Support vector machines by sequential minimal optimisation, pair by pair, in float64."""

import numpy as np


def dual(Phi, y, C, w=None, loss="hinge", tolerance=1e-10):
    """The multipliers `alpha` and the optimum of the objective (Wu et al. 2006, eq. 37-39).

    Of the squared hinge, `C/2 sum w xi^2`, they have no upper bound and a ridge `1 / (C w)`.
    """
    w = np.ones(len(y)) if w is None else np.asarray(w, float)
    rows = np.flatnonzero(w)
    Q = (y[:, None] * Phi)[rows] @ (y[:, None] * Phi)[rows].T
    signs, top = y[rows], C * w[rows]
    if loss == "squared_hinge":
        Q, top = Q + np.diag(1 / top), np.full(len(rows), np.inf)
    alpha, slope = np.zeros(len(rows)), -np.ones(len(rows))
    while True:
        up = np.where(signs > 0, alpha < top, alpha > 0)
        down = np.where(signs > 0, alpha > 0, alpha < top)
        pull = -signs * slope
        if not up.any() or not down.any():
            break
        i = max(np.flatnonzero(up), key=lambda k: pull[k])
        j = min(np.flatnonzero(down), key=lambda k: pull[k])
        if pull[i] - pull[j] <= tolerance:
            break
        # alpha_i + signs_i t, alpha_j - signs_j t
        curvature = Q[i, i] + Q[j, j] - 2 * signs[i] * signs[j] * Q[i, j]
        t = (pull[i] - pull[j]) / max(curvature, 1e-12)
        t = min(t, top[i] - alpha[i] if signs[i] > 0 else alpha[i])
        t = min(t, alpha[j] if signs[j] > 0 else top[j] - alpha[j])
        change = np.zeros(len(rows))
        change[i], change[j] = signs[i] * t, -signs[j] * t
        alpha, slope = alpha + change, slope + Q @ change
        near = 1e-14 * np.where(np.isfinite(top), top, 1)
        alpha = np.clip(np.where(alpha < near, 0, np.where(alpha > top - near, top, alpha)), 0, top)
    found = np.zeros(len(y))
    found[rows] = alpha
    return found, alpha.sum() - alpha @ Q @ alpha / 2


def objective(Phi, y, C, weights, intercept, w=None, loss="hinge"):
    """`1/2 |w|^2` and the losses."""
    w = np.ones(len(y)) if w is None else w
    short = np.maximum(0, 1 - y * (Phi @ weights + intercept))
    losses = short if loss == "hinge" else np.square(short) / 2
    return weights @ weights / 2 + C * np.sum(w * losses)
