"""Ticks of axes: their places, and the texts of their numbers."""

import math
from collections.abc import Iterable

import numpy as np

STEPS = (1, 2, 5)
Number = float | int


def plain(value: Number) -> str:
    """Return the text of a number with six significant digits, without a power of ten."""
    return np.format_float_positional(float(f"{value:.6g}"), trim="-")


def log_ticks(low: Number, high: Number, most: int = 10) -> list[float]:
    """Return at most `most` ticks for a logarithmic axis from `low` to `high`, both positive.

    The ticks are 1, 2, 5, 10, 20, .., or powers of ten if these are too many. If fewer than two are
    within the range, return the ticks of a linear axis.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    inside = _within((step * 10.0**power for power in powers for step in STEPS), low, high)
    if len(inside) < 2:
        return linear_ticks(low, high, min(most, 5))
    stride = 1
    while len(inside) > most:
        inside = _within((10.0**power for power in powers[::stride]), low, high)
        stride += 1
    return inside


def linear_ticks(low: Number, high: Number, most: int = 5) -> list[float]:
    """Return at most `most` ticks at multiples of 1, 2 or 5 times a power of ten."""
    power = math.floor(math.log10((high - low) / most))
    steps = (step * 10.0**p for p in (power, power + 1) for step in STEPS)
    for step in steps:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [step * i for i in range(first, last + 1)]
    return [low]


def _within(values: Iterable[float], low: Number, high: Number) -> list[float]:
    # The tolerance includes ticks at the ends despite rounding.
    return [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def error_top(errors: np.ndarray, spread: np.ndarray) -> float:
    """Return the upper end of an axis for `errors +- spread` of machines of increasing sizes.

    The first few errors may be cut off, because they are often far larger than all others.
    """
    low, high = np.min(errors - spread), np.max(errors + spread)
    rest = np.max(errors[min(4, len(errors) - 1) :])
    return float(min(high, rest + (rest - low)))
