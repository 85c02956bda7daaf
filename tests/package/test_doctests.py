"""The examples in docstrings run and print what they show."""

import doctest
import importlib

import pytest

MODULES = (
    "expansion", "machines.fixed_size", "machines.gradient_product", "multiclass",
    "prototypes.uniform", "pursuit.conjugate", "scaling",
    pytest.param("training.train", marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(f"jsparse.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
