"""Weighted mean and standard deviation, by loops in float64."""

import math


def mean_and_deviation(X, weights=None):
    """Return the population mean and standard deviation of each column, summed by `math.fsum`."""
    rows, columns = X.shape
    weights = [1.0] * rows if weights is None else [float(w) for w in weights]
    total = math.fsum(weights)
    means, deviations = [], []
    for j in range(columns):
        values = [float(x) for x in X[:, j]]
        mean = math.fsum(w * x for w, x in zip(weights, values, strict=True)) / total
        squares = math.fsum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True))
        means.append(mean)
        deviations.append(math.sqrt(squares / total))
    return means, deviations
