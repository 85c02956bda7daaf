"""Support vector machines by an active-set method, in float64.

Multipliers are signed: `a_i = alpha_i y_i`. Rows of weight 0 are left out.
"""

import numpy as np


def joint_step(Q, slope, free, tolerance):
    """Return a joint step of several multipliers that keeps their sum, and its largest length.

    The step leads to the optimum in the directions with curvature, at length 1. Once the slopes in
    these directions are 0, the step follows the flat directions. The optimum along a flat direction
    is at a bound, so the length is infinite.
    """
    exchange = np.zeros((len(slope), len(free) - 1))  # one multiplier rises as the last one falls
    for column, i in enumerate(free[:-1]):
        exchange[i, column], exchange[free[-1], column] = 1, -1
    curvatures, directions = np.linalg.eigh(exchange.T @ Q @ exchange)
    slopes = directions.T @ exchange.T @ slope
    curved = curvatures > 1e-12 * np.abs(Q).max()
    if np.linalg.norm(slopes[curved]) > tolerance:
        return exchange @ directions[:, curved] @ (slopes[curved] / curvatures[curved]), 1.0
    return exchange @ directions[:, ~curved] @ slopes[~curved], np.inf


def pair_step(Q, slope, i, j):
    """Return the step that raises multiplier `i` and lowers `j`, and its length to the optimum."""
    step = np.zeros(len(slope))
    step[i], step[j] = 1, -1
    return step, (slope[i] - slope[j]) / max(step @ Q @ step, 1e-12)


def length_to_bounds(a, step, low, high):
    """Return the length of a step at which the first multiplier reaches a bound."""
    length = np.inf
    for i in np.flatnonzero(step):
        length = min(length, ((high[i] if step[i] > 0 else low[i]) - a[i]) / step[i])
    return length


def solve_dual(Q, linear, low, high, start, tolerance=1e-10, steps=1000):
    """Maximise `linear'a - a'Q a / 2` over `low <= a <= high`; the sum of `a` stays as in `start`.

    This is an active-set method. The multipliers between their bounds move together to their
    optimum, and a multiplier that reaches a bound stays there. Then the two multipliers move whose
    slopes differ most.

    Returns:
        `a`, and the Lagrange multiplier of the constraint on the sum.
    """
    a = np.array(start, float)
    near = 1e-12 * np.where(np.isfinite(high - low), high - low, 1)
    for _ in range(steps):
        slope = linear - Q @ a
        i = np.argmax(np.where(a < high, slope, -np.inf))
        j = np.argmin(np.where(a > low, slope, np.inf))
        intercept = (slope[i] + slope[j]) / 2
        if slope[i] - slope[j] <= tolerance:
            return a, intercept
        between = np.flatnonzero((a > low) & (a < high))
        if len(between) > 1 and np.ptp(slope[between]) > tolerance:
            step, length = joint_step(Q, slope, between, tolerance / 10)
        else:
            step, length = pair_step(Q, slope, i, j)
        a = a + min(length, length_to_bounds(a, step, low, high)) * step
        # Snap to a bound: a multiplier just inside it, by rounding, would make all steps tiny.
        a = np.where(a - low < near, low, np.where(high - a < near, high, a))
    raise RuntimeError(f"solve_dual: the slopes still differ by {slope[i] - slope[j]}")


def multipliers(Q, y, bounds, loss="hinge"):
    """Return signed multipliers, the intercept, and the optimal objective (Wu et al., eq. 37-39).

    With the hinge loss the size of the multiplier of row i is at most `bounds_i = C w_i`. With the
    squared hinge, `C/2 sum w xi^2`, it has no bound; the diagonal of `Q` grows by `1 / bounds_i`.
    """
    if loss == "squared_hinge":
        Q, bounds = Q + np.diag(1 / bounds), np.full(len(y), np.inf)
    low, high = np.where(y > 0, 0, -bounds), np.where(y > 0, bounds, 0)
    a, intercept = solve_dual(Q, y, low, high, np.zeros(len(y)))
    return a, intercept, y @ a - a @ Q @ a / 2


def dual(Phi, y, C, w=None, loss="hinge"):
    """Return the multipliers `alpha` of all rows, and the optimal objective, for features."""
    w = np.ones(len(y)) if w is None else np.asarray(w, float)
    rows, alpha = np.flatnonzero(w), np.zeros(len(y))
    a, _, value = multipliers(Phi[rows] @ Phi[rows].T, y[rows], C * w[rows], loss)
    alpha[rows] = a * y[rows]
    return alpha, value


def objective(Phi, y, C, weights, intercept, w=None, loss="hinge"):
    """Return the primal objective: `1/2 |weights|^2` plus `C` times the weighted losses."""
    w = np.ones(len(y)) if w is None else w
    short = np.maximum(0, 1 - y * (Phi @ weights + intercept))
    losses = short if loss == "hinge" else np.square(short) / 2
    return weights @ weights / 2 + C * np.sum(w * losses)
