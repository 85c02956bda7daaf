"""The examples in docstrings run, and give what they show."""

import doctest
import importlib

import pytest

MODULES = (
    "expansion", "machines.fixed_size", "multiclass", "prototypes.uniform", "scaling",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("machines.gradient_product", "pursuit.conjugate", "training.train")
    ),
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(f"jsparse.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
