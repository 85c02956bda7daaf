"""The direct method of Wu et al. (2006) with the Gaussian kernel, by loops in float64.

Multipliers are signed: `a_i = alpha_i y_i`. Rows of weight 0 are left out.
"""

import math
from typing import NamedTuple

import numpy as np
from reference import svm
from reference.kernels import gaussian  # eq. 48
from reference.svm import solve_dual


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
    """Return the support vector machine of the prototypes `Z`, by its dual (eq. 37-39)."""
    X, y, w = X[w > 0], y[w > 0], w[w > 0]
    Q = projected_gram(X, Z, lengthscale)
    a, intercept, value = svm.multipliers(Q, y, C * w, loss)
    return machine_of_multipliers(value, a, intercept, X, Z, lengthscale)


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
