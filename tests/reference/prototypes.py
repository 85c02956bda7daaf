"""Prototype selection and bandwidths by loops in float64, from De Brabanter 2010, Section 4."""

import math
from fractions import Fraction

import numpy as np
import scipy.optimize


def psi(r, x, h):
    """Estimate psi_r by eq. 14, with one bandwidth in the factor h^(r+1) and in the arguments."""
    n = len(x)
    total = 0.0
    for i in range(n):
        u = (x[i] - x) / h
        density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
        s = u * u
        hermite = {0: 1.0, 4: (s - 6) * s + 3, 6: ((s - 15) * s + 45) * s - 15}[r]
        total += float(np.sum(hermite * density))
    return total / (n**2 * h ** (r + 1))


def normal_reference(x, sigma=None):
    sigma = np.std(x, ddof=1) if sigma is None else sigma
    return (4 / (3 * len(x))) ** 0.2 * sigma


def robust_sigma(x):
    low, high = np.percentile(x, [25, 75])
    return min(np.std(x, ddof=1), (high - low) / 1.349)


def plug_in(x, sigma=None):
    """Run Algorithm 2: return the largest solution of eq. 15, and the pilot bandwidth at it."""
    x = np.asarray(x, np.float64)
    n, sigma = len(x), np.std(x, ddof=1) if sigma is None else sigma
    kappa4, kappa6 = 3 / math.sqrt(2 * math.pi), -15 / math.sqrt(2 * math.pi)
    roughness, mu2 = 1 / (2 * math.sqrt(math.pi)), 1.0
    # Eq. 17 (psi) and eq. 16 (bandwidths).
    psi6 = -15 / (16 * math.sqrt(math.pi)) * sigma**-7
    psi8 = 105 / (32 * math.sqrt(math.pi)) * sigma**-9
    h1 = (-2 * kappa4 / (mu2 * psi6)) ** (1 / 7) * n ** (-1 / 7)
    h2 = (-2 * kappa6 / (mu2 * psi8)) ** (1 / 9) * n ** (-1 / 9)
    ratio = -2 * kappa4 * mu2 * psi(4, x, h1) / (roughness * psi(6, x, h2))

    def pilot(h):
        return ratio ** (1 / 7) * h ** (5 / 7)

    def excess(log_h):
        h = math.exp(log_h)
        return h - (roughness / (mu2**2 * psi(4, x, pilot(h)))) ** 0.2 * n**-0.2

    high = math.log(4 * np.std(x, ddof=1) * n**-0.2)
    assert excess(high) > 0
    low = high - 0.1
    while excess(low) > 0:
        high, low = low, low - 0.1
    h = math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-14))
    return h, pilot(h)


def tied(x, pilot):
    """Return the number of tied pairs divided by the Gaussian count of pairs within `pilot`."""
    ties = close = 0.0
    for i in range(len(x)):
        others = np.delete(x, i)
        ties += np.sum(others == x[i])
        close += float(np.sum(np.exp(-(((others - x[i]) / pilot) ** 2) / 2)))
    return ties / close


def entropy(Z, h, codes=None):
    """Return minus the log of the integral of the squared density estimate (eq. 10-12).

    With `codes`, the estimate of each stratum contributes separately.
    """
    m = len(Z)
    codes = np.zeros(m) if codes is None else codes
    total = 0.0
    for k in range(m):
        for ell in range(m):
            if codes[k] == codes[ell]:
                factors = [
                    math.exp(-(((Z[k, j] - Z[ell, j]) / h[j]) ** 2) / 4)
                    / (math.sqrt(4 * math.pi) * h[j])
                    for j in range(Z.shape[1])
                    if h[j] > 0
                ]
                total += math.prod(factors)
    return -math.log(total / m**2)


def swap(X, h, codes, working, drawn):
    """Swap a drawn row for the prototype of its stratum that raises the entropy most.

    Returns:
        The working set, and whether any swap raised the entropy.
    """
    # A swap must gain more than rounding.
    best, best_swap = entropy(X[working], h, codes[working]) + 1e-13, None
    for row in drawn:
        if row in working:
            continue
        for slot in range(len(working)):
            if codes[working[slot]] == codes[row]:
                trial = list(working)
                trial[slot] = row
                value = entropy(X[trial], h, codes[trial])
                if value > best:
                    best, best_swap = value, (slot, row)
    swapped = list(working)
    if best_swap is not None:
        swapped[best_swap[0]] = best_swap[1]
    return swapped, best_swap is not None


def algorithm_1(X, h, m, trials, rng):
    """Run Algorithm 1 literally: swap random rows if the entropy rises; return the row numbers."""
    n = len(X)
    D = (((X[:, None] - X[None]) / h) ** 2).sum(2)
    K = np.exp(-D / 4)
    working = list(rng.choice(n, m, replace=False))
    potential = K[np.ix_(working, working)].sum()
    for _ in range(trials):
        slot, row = rng.integers(m), rng.integers(n)
        if row in working:
            continue
        trial = list(working)
        trial[slot] = row
        value = K[np.ix_(trial, trial)].sum()
        if value < potential:
            working, potential = trial, value
    return working


def largest_remainders(counts, m):
    """Divide `m` in proportion to the counts, by the method of largest remainders."""
    quotas = [Fraction(m * int(count), int(sum(counts))) for count in counts]
    shares = [int(quota) for quota in quotas]
    order = sorted(range(len(counts)), key=lambda c: (shares[c] - quotas[c], c))
    for c in order[: m - sum(shares)]:
        shares[c] += 1
    return shares
