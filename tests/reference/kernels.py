"""Kernels of two points, and matrices of their values, in float64 from their formulas."""

import math

import numpy as np


def scaled_distance(x, z, lengthscale):
    lengthscale = np.broadcast_to(np.asarray(lengthscale, np.float64), len(x))
    total = 0.0
    for a, b, scale in zip(x, z, lengthscale, strict=True):
        total += ((float(a) - float(b)) / float(scale)) ** 2
    return math.sqrt(total)


def inner(x, z):
    return sum(float(a) * float(b) for a, b in zip(x, z, strict=True))


def rbf(x, z, lengthscale):
    return math.exp(-(scaled_distance(x, z, lengthscale) ** 2) / 2)


def laplacian(x, z, lengthscale):
    return math.exp(-scaled_distance(x, z, lengthscale))


def matern32(x, z, lengthscale):
    r = math.sqrt(3) * scaled_distance(x, z, lengthscale)
    return (1 + r) * math.exp(-r)


def matern52(x, z, lengthscale):
    r = math.sqrt(5) * scaled_distance(x, z, lengthscale)
    return (1 + r + r**2 / 3) * math.exp(-r)


def rational_quadratic(x, z, lengthscale, alpha):
    return (1 + scaled_distance(x, z, lengthscale) ** 2 / (2 * alpha)) ** (-alpha)


def linear(x, z, offset):
    return inner(x, z) + offset


def polynomial(x, z, degree, scale, offset):
    return (scale * inner(x, z) + offset) ** degree


def gaussian(X, Z, lengthscale=1.0):
    """Return `K[i, j] = exp(-|x_i - z_j|^2 / (2 lengthscale^2))`."""
    differences = (np.asarray(X, float)[:, None] - np.asarray(Z, float)[None]) / lengthscale
    return np.exp(-np.square(differences).sum(axis=-1) / 2)


def matrix(kernel, X, Z):
    """Return `K[i, j] = kernel(X[i], Z[j])`."""
    X, Z = np.asarray(X), np.asarray(Z)
    values = np.empty((len(X), len(Z)))
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            values[i, j] = kernel(x, z)
    return values
