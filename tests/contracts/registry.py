"""The registered methods with small settings, and the choice of fast tests among them."""

import dataclasses

import pytest

from jsparse.machines import METHODS

NAMES = sorted(METHODS)
# Training compiles for seconds. So fast tests train one method of each kind: a dual machine, one
# from sums, a path, and one with a surrogate.
KINDS = ("dual", "fixed-size", "scdp", "spsvm")
SIZES = {"n_prototypes": 8, "max_prototypes": 6, "candidates": 12}
SLOW = pytest.mark.slow


def fields_of(name):
    """Return the names of a method's settings."""
    return {field.name for field in dataclasses.fields(METHODS[name])}


def method_named(name):
    """Return a method with few prototypes."""
    settings = {key: value for key, value in SIZES.items() if key in fields_of(name)}
    if "max_prototypes" in settings:  # a path, whose numbers of prototypes are all up to the limit
        settings.pop("n_prototypes", None)
    if name == "ksp":
        settings |= {"max_prototypes": None, "n_prototypes": (1, 3, 4, 6)}
    return METHODS[name](**settings)


def named(names, *slow):
    """Return test parameters; only the methods of `KINDS` that are not in `slow` are fast."""
    fast = [name for name in KINDS if name not in slow]
    return [pytest.param(name, marks=() if name in fast else SLOW) for name in names]
