"""Coupled simulated annealing by loops (De Brabanter 2010, Appendix, Algorithm 6).

`probability` is the acceptance probability of CSA-M (Xavier de Souza et al. 2010).
"""

import math

import numpy as np


def probability(energies, T):
    """Return exp(E_i / T) / sum_j exp(E_j / T)."""
    worst = max(energies)
    terms = [math.exp((e - worst) / T) for e in energies]
    return [term / sum(terms) for term in terms]


def variance(A):
    """Return (1/q) sum A^2 - 1/q^2, as the Appendix defines the variance."""
    q = len(A)
    return sum(a * a for a in A) / q - 1 / q**2


def triangle(x, low, high):
    """Reflect `x` at the walls of [low, high] until it is inside."""
    while not low <= x <= high:
        x = 2 * low - x if x < low else 2 * high - x
    return x


def spread(energies):
    """Return the upper median less the least energy; if it is 0, the largest less the least."""
    ordered = sorted(energies)
    middle = ordered[len(ordered) // 2]
    return (middle if middle > ordered[0] else ordered[-1]) - ordered[0]


def anneal(E, x, low, high, jumps, draws, T0, Tac0, alpha=0.05, part=0.99, G=1):
    """Run Algorithm 6 on fixed random numbers: Cauchy `jumps (k, q, p)`, uniform `draws (k, q)`.

    `E` is the energy of a point, `x` has `q` starting points, and `low` and `high` bound each
    coordinate. Every `G` rounds, T^ac changes by the share `alpha`, so that the variance comes
    near `part` of its largest value.

    Returns:
        All points tried `((k + 1) q, p)`; the final x and energies; T^ac over `spread` of the first
        energies, by round; the variance at the start and by round.
    """
    x = [list(row) for row in x]
    q, p = len(x), len(x[0])
    energies = [E(np.array(row)) for row in x]
    record = [list(row) for row in x]
    unit = spread(energies)
    T, Tac, k = T0, Tac0 * unit, 0
    temperatures, variances = [], [variance(probability(energies, Tac))]
    for r in range(len(draws)):
        A = probability(energies, Tac)
        for i in range(q):
            y = [
                triangle(x[i][j] + T * (high[j] - low[j]) * jumps[r][i][j], low[j], high[j])
                for j in range(p)
            ]
            record.append(y)
            energy = E(np.array(y))
            if energy <= energies[i] or draws[r][i] < A[i]:
                x[i], energies[i] = y, energy
        variances.append(variance(probability(energies, Tac)))
        if (r + 1) % G == 0:
            below = variances[-1] < part * (q - 1) / q**2
            Tac *= 1 - alpha if below else 1 + alpha
            k += 1
            T = T0 / (k + 1)
        temperatures.append(Tac / unit)
    return np.array(record), np.array(x), energies, temperatures, variances
