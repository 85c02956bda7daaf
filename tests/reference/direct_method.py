"""The direct method of Wu et al. (2006) with the Gaussian kernel, by loops in float64.

Multipliers are signed: `a_i = alpha_i y_i`. Rows of weight 0 are left out.
"""

import math
from typing import NamedTuple

import numpy as np
from reference.fixed_size import rbf as gaussian  # eq. 48


class Machine(NamedTuple):
    """The solution of an inner problem."""

    value: float  # W(Z)
    gradient: np.ndarray  # of W in Z, shape m d
    coefficients: np.ndarray  # beta, shape m
    intercept: float


def derivatives(X, Z, lengthscale, u, v):
    """Return the derivatives in `z_uv` of `psi[i, j] = k(x_i, z_j)`, `Kz[i, j] = k(z_i, z_j)`."""
    psi, Kz = gaussian(X, Z, lengthscale), gaussian(Z, Z, lengthscale)
    d_psi, d_Kz = np.zeros_like(psi), np.zeros_like(Kz)
    for i in range(len(X)):
        d_psi[i, u] = psi[i, u] * (X[i, v] - Z[u, v]) / lengthscale**2
    for j in range(len(Z)):
        d_Kz[u, j] = d_Kz[j, u] = Kz[u, j] * (Z[j, v] - Z[u, v]) / lengthscale**2
    return d_psi, d_Kz


def projected_gram(X, Z, lengthscale):
    """Return `K_hat` of eq. 40."""
    psi, Kz = gaussian(X, Z, lengthscale), gaussian(Z, Z, lengthscale)
    return psi @ np.linalg.solve(Kz, psi.T)


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


def machine_of_multipliers(value, a, intercept, X, Z, lengthscale):
    """Return the machine of the multipliers: coefficients by eq. 45, gradient by eq. 46."""
    psi, inverse = gaussian(X, Z, lengthscale), np.linalg.inv(gaussian(Z, Z, lengthscale))
    gradient = np.zeros_like(Z)
    for u in range(Z.shape[0]):
        for v in range(Z.shape[1]):
            d_psi, d_Kz = derivatives(X, Z, lengthscale, u, v)
            d_inverse = -inverse @ d_Kz @ inverse
            d_K_hat = d_psi @ inverse @ psi.T + psi @ inverse @ d_psi.T + psi @ d_inverse @ psi.T
            gradient[u, v] = -a @ d_K_hat @ a / 2
    return Machine(value, gradient, inverse @ psi.T @ a, intercept)


def large_margin(Z, X, y, C, w, lengthscale, loss="hinge"):
    """Solve the dual of the support vector machine (eq. 37-39).

    With the hinge loss the multiplier of row i has the bound `C w_i`. With the squared hinge it has
    none, and the diagonal of the kernel matrix grows by `1 / (C w_i)`.
    """
    X, y, bounds = X[w > 0], y[w > 0], C * w[w > 0]
    Q = projected_gram(X, Z, lengthscale)
    if loss == "squared_hinge":
        Q, bounds = Q + np.diag(1 / bounds), np.full(len(y), np.inf)
    low, high = np.where(y > 0, 0, -bounds), np.where(y > 0, bounds, 0)
    a, intercept = solve_dual(Q, y, low, high, np.zeros(len(y)))
    return machine_of_multipliers(y @ a - a @ Q @ a / 2, a, intercept, X, Z, lengthscale)


def least_squares(Z, X, y, C, w, lengthscale):
    """Solve kernel ridge regression in the dual: without bounds it is one linear system."""
    X, y, w = X[w > 0], y[w > 0], w[w > 0]
    n = len(y)
    Q = projected_gram(X, Z, lengthscale) + np.diag(1 / (C * w))
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = Q
    system[:n, n] = system[n, :n] = 1
    solution = np.linalg.solve(system, np.append(y, 0.0))
    a = solution[:n]
    return machine_of_multipliers(y @ a - a @ Q @ a / 2, a, solution[n], X, Z, lengthscale)


def one_class(Z, X, nu, w, lengthscale):
    """Solve the one-class SVM: multipliers up to `w_i / (nu sum w)`, whose sum is 1."""
    X, w = X[w > 0], w[w > 0]
    Q = projected_gram(X, Z, lengthscale)
    high, start, remaining = w / (nu * w.sum()), np.zeros(len(w)), 1.0
    for i in range(len(w)):
        start[i] = min(high[i], remaining)
        remaining -= start[i]
    a, intercept = solve_dual(Q, np.zeros(len(w)), np.zeros(len(w)), high, start)
    return machine_of_multipliers(-a @ Q @ a / 2, a, intercept, X, Z, lengthscale)


def fisher(Z, X, y, mu, w, lengthscale):
    """Solve the Fisher discriminant: largest eigenvalue by eq. 57-62, gradient by eq. 63."""
    X, y, w = X[w > 0], y[w > 0], w[w > 0]
    psi, Kz = gaussian(X, Z, lengthscale), gaussian(Z, Z, lengthscale)

    def class_means(values):
        return {s: np.average(values[y == s], axis=0, weights=w[y == s]) for s in (-1, 1)}

    def deviations(values):
        means = class_means(values)
        return values - np.array([means[s] for s in y])

    apart = class_means(psi)[1] - class_means(psi)[-1]
    A = np.outer(apart, apart)
    B = deviations(psi).T @ np.diag(w / w.sum()) @ deviations(psi) + mu * Kz
    eigenvalues, vectors = np.linalg.eig(np.linalg.solve(B, A))
    largest = np.argmax(eigenvalues.real)
    eigenvalue, beta = eigenvalues[largest].real, vectors[:, largest].real
    beta = beta / math.sqrt(beta @ B @ beta)
    gradient = np.zeros_like(Z)
    for u in range(Z.shape[0]):
        for v in range(Z.shape[1]):
            d_psi, d_Kz = derivatives(X, Z, lengthscale, u, v)
            d_apart = class_means(d_psi)[1] - class_means(d_psi)[-1]
            d_A = np.outer(d_apart, apart) + np.outer(apart, d_apart)
            half = deviations(d_psi).T @ np.diag(w / w.sum()) @ deviations(psi)
            d_B = half + half.T + mu * d_Kz
            gradient[u, v] = -beta @ d_A @ beta + eigenvalue * beta @ d_B @ beta
    return Machine(-eigenvalue, gradient, beta, 0.0)


def descend(evaluate, start, steps=300, tolerance=1e-9):
    """Minimise `W` by BFGS with backtracking (Nocedal and Wright 2006, Algorithm 6.1).

    Args:
        evaluate: returns `W(Z)` and its gradient.
        start: expansion vectors, shape m d.
        steps: the largest number of steps.
        tolerance: the descent ends when ten steps lower `W` by at most this share of `|W|`.

    Returns:
        The last expansion vectors, and `W` at the start and after each step.
    """
    z, p = start.ravel(), start.size
    value, gradient = evaluate(start)
    history, inverse_hessian = [value], np.eye(p) / np.linalg.norm(gradient)
    for _ in range(steps):
        direction = -inverse_hessian @ gradient.ravel()
        slope, t = gradient.ravel() @ direction, 1.0
        while True:
            z_new = z + t * direction
            value_new, gradient_new = evaluate(z_new.reshape(start.shape))
            if value_new <= value + 1e-4 * t * slope:
                break
            t /= 2
            if t < 1e-10:
                return z.reshape(start.shape), history
        s, g = z_new - z, (gradient_new - gradient).ravel()
        if s @ g > 0:
            half = np.eye(p) - np.outer(s, g) / (s @ g)
            inverse_hessian = half @ inverse_hessian @ half.T + np.outer(s, s) / (s @ g)
        z, value, gradient = z_new, value_new, gradient_new
        history.append(value)
        if len(history) > 10 and history[-11] - value <= tolerance * abs(value):
            break
    return z.reshape(start.shape), history
