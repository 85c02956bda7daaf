"""The methods of the registry with small settings, and which tests of a method are fast."""

import dataclasses

import pytest

from jsparse.machines import METHODS

NAMES = sorted(METHODS)
# Training compiles for seconds. Of all promises those of one method of each kind are fast: sums, a
# path, the dual, a surrogate.
KINDS = ("dual", "fixed-size", "scdp", "spsvm")
SIZES = {"n_prototypes": 8, "max_prototypes": 6, "candidates": 12}
SLOW = pytest.mark.slow


def fields_of(name):
    """The names of a method's settings."""
    return {field.name for field in dataclasses.fields(METHODS[name])}


def method_named(name):
    """A method with few prototypes."""
    settings = {key: value for key, value in SIZES.items() if key in fields_of(name)}
    if name == "ksp":
        settings |= {"max_prototypes": None, "n_prototypes": (1, 3, 4, 6)}
    return METHODS[name](**settings)


def named(names, *slow):
    """Parameters of a test: the names, fast for one method of each kind but the slow ones."""
    fast = [name for name in KINDS if name not in slow]
    return [pytest.param(name, marks=() if name in fast else SLOW) for name in names]
