"""The types of the options: functions from a text to a value."""

import argparse
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

from ..machines import METHODS
from ..training.choices import KERNELS

# An option's message for an invalid value is the message of its type's error.


def _whole(text: str, least: int, most: float, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


def _real(text: str, expected: str, makes_sense: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not makes_sense(value):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


KERNEL_NAMES = [*KERNELS, "linear", "polynomial", "auto"]


def kernel(text: str) -> str | list[str]:
    """Return the name of a kernel, or a list of several names."""
    names = text.split(",")
    unknown = [name for name in names if name not in KERNEL_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join(KERNEL_NAMES)}, got {unknown[0]!r}"
        )
    if len(names) > 1 and "auto" in names:
        raise argparse.ArgumentTypeError("expected 'auto' alone, as it stands for one kernel")
    return names if len(names) > 1 else text


def comparable() -> list[str]:
    """Return the names of the methods, and "svm", which `jsparse compare` compares."""
    return [*METHODS, "svm"]


def methods(text: str) -> list[str]:
    """Return names of methods to compare."""
    names = text.split(",")
    unknown = [name for name in names if name not in comparable()]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(comparable())}, with commas between them, got "
            f"{unknown[0]!r}"
        )
    return names


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole(text, 1, math.inf, "a whole number of at least 1")


def folds(text: str) -> int:
    """Return a number of folds, at least 2."""
    return _whole(text, 2, math.inf, "a whole number of at least 2")


def seed(text: str) -> int:
    """Return a random seed, from 0 to 2^32 - 1."""
    return _whole(text, 0, 2**32 - 1, "a whole number from 0 to 2^32 - 1")


def subset(text: str) -> int | str:
    """Return a number of candidates, or 'auto'."""
    if text == "auto":
        return text
    return _whole(text, 1, math.inf, "'auto' or a whole number of at least 1")


def devices(text: str) -> int | Literal["all"]:
    """Return a number of devices, or 'all'."""
    if text == "all":
        return "all"
    return _whole(text, 1, math.inf, "'all' or a whole number of at least 1")


def sizes(text: str) -> int | str | list[int]:
    """Return a number of prototypes, a list of several numbers, or 'auto'."""
    if text == "auto":
        return text
    expected = "a whole number of at least 1, increasing ones with commas between them, or auto"
    try:
        numbers = [_whole(part, 1, math.inf, expected) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        numbers = [0, 0]
    if any(a >= b for a, b in itertools.pairwise(numbers)):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return numbers[0] if len(numbers) == 1 else numbers


def share(text: str) -> float:
    """Return a share between 0 and 1."""
    return _real(text, "a share between 0 and 1", lambda value: 0 < value < 1)


def not_negative(text: str) -> float:
    """Return a number of at least 0."""
    return _real(text, "a number of at least 0", lambda value: 0 <= value < math.inf)


def seconds(text: str) -> float:
    """Return a number of seconds of at least 0, which may be infinite."""
    return _real(text, "a number of seconds of at least 0", lambda value: value >= 0)


def positive_seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    return _real(text, "a number of seconds above 0", lambda value: 0 < value < math.inf)


def shares(text: str) -> float | list[float]:
    """Return a share, or a list of increasing shares."""
    expected = "a share between 0 and 1, or increasing ones with commas between them"
    shares = [_real(part, expected, lambda value: 0 < value < 1) for part in text.split(",")]
    if any(a >= b for a, b in itertools.pairwise(shares)):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return shares[0] if len(shares) == 1 else shares


KINDS: dict[str, Callable[[str], Any]] = {
    "count": count,
    "count or auto": subset,
    "not negative": not_negative,
    "shares": shares,
    "sizes": sizes,
    "text": str,
}
