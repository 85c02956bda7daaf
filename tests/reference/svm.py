"""Support vector machines by sequential minimal optimisation, pair by pair, in float64."""

import numpy as np


def dual(Phi, y, C, w=None, loss="hinge", tolerance=1e-10):
    """Return the multipliers `alpha` and the optimal objective (Wu et al. 2006, eq. 37-39).

    With the squared hinge, `C/2 sum w xi^2`, the multipliers have no upper bound, and the diagonal
    of the kernel matrix grows by `1 / (C w)`.
    """
    w = np.ones(len(y)) if w is None else np.asarray(w, float)
    rows = np.flatnonzero(w)
    Q = (y[:, None] * Phi)[rows] @ (y[:, None] * Phi)[rows].T
    signs, upper = y[rows], C * w[rows]
    if loss == "squared_hinge":
        Q, upper = Q + np.diag(1 / upper), np.full(len(rows), np.inf)
    alpha, gradient = np.zeros(len(rows)), -np.ones(len(rows))
    while True:
        can_rise = np.where(signs > 0, alpha < upper, alpha > 0)
        can_fall = np.where(signs > 0, alpha > 0, alpha < upper)
        ascent = -signs * gradient
        if not can_rise.any() or not can_fall.any():
            break
        i = max(np.flatnonzero(can_rise), key=lambda k: ascent[k])
        j = min(np.flatnonzero(can_fall), key=lambda k: ascent[k])
        if ascent[i] - ascent[j] <= tolerance:
            break
        # alpha_i + signs_i t, alpha_j - signs_j t
        curvature = Q[i, i] + Q[j, j] - 2 * signs[i] * signs[j] * Q[i, j]
        t = (ascent[i] - ascent[j]) / max(curvature, 1e-12)
        t = min(t, upper[i] - alpha[i] if signs[i] > 0 else alpha[i])
        t = min(t, alpha[j] if signs[j] > 0 else upper[j] - alpha[j])
        change = np.zeros(len(rows))
        change[i], change[j] = signs[i] * t, -signs[j] * t
        alpha, gradient = alpha + change, gradient + Q @ change
        # Snap to a bound: a multiplier just inside it, by rounding, would make all steps tiny.
        near = 1e-14 * np.where(np.isfinite(upper), upper, 1)
        alpha = np.where(alpha < near, 0, np.where(alpha > upper - near, upper, alpha))
    multipliers = np.zeros(len(y))
    multipliers[rows] = alpha
    return multipliers, alpha.sum() - alpha @ Q @ alpha / 2


def objective(Phi, y, C, weights, intercept, w=None, loss="hinge"):
    """Return the primal objective: `1/2 |weights|^2` plus `C` times the weighted losses."""
    w = np.ones(len(y)) if w is None else w
    short = np.maximum(0, 1 - y * (Phi @ weights + intercept))
    losses = short if loss == "hinge" else np.square(short) / 2
    return weights @ weights / 2 + C * np.sum(w * losses)
