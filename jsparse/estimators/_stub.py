"""Generator of `__init__.pyi`, in which editors and type checkers find the constructors.

Run `python -m jsparse.estimators._stub` after a change of a method's settings or documentation.

Two estimators, `KernelMachineClassifier` and `KernelMachineRegressor`, have complete docstrings.
The docstrings of the others describe the settings of their method, and refer to these two for the
parameters and attributes that do not depend on the method.
"""

import dataclasses
import inspect
import textwrap
from pathlib import Path

from .. import estimators
from ._base import Classifier, Machine
from ._declaration import SharedParameters, section
from ._named import KernelMachineClassifier, KernelMachineRegressor

_HEAD = """# Made by `python -m jsparse.estimators._stub`; do not edit.
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

from numpy.random import RandomState

from ..kernels import Kernel
from ..machines.method import Method
from ..machines.stopping import Stopping
from ..search.strategies import Search
"""
_OTHERS = """from ._one_class import SparseOneClassSVM as SparseOneClassSVM
from ._onnx import register_onnx as register_onnx
"""


def stub() -> str:
    """Return the text of `__init__.pyi`."""
    classes = [
        estimator
        for name in sorted(dir(estimators))
        if isinstance(estimator := getattr(estimators, name), type)
        and issubclass(estimator, Machine)
    ]
    bases = sorted({(base.__module__, base.__name__) for cls in classes for base in cls.__bases__})
    imports = [f"from .{module.rsplit('.', 1)[1]} import {name}\n" for module, name in bases]
    return "".join([_HEAD, *imports, _OTHERS, *map(_class_text, classes)])


def _class_text(estimator: type[Machine]) -> str:
    """Return the class statement of an estimator, with its docstring and constructor."""
    kinds = [p.kind for p in inspect.signature(estimator).parameters.values()]
    lines = [f"{p.name}: {p.type} = {p.default!r}," for p in estimator.parameters]
    lines.insert(kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD), "*,")
    arguments = textwrap.indent("\n".join(["self,", *lines]), " " * 4)
    body = f'"""{_docstring(estimator)}"""\n\ndef __init__(\n{arguments}\n) -> None: ...\n'
    bases = ", ".join(base.__name__ for base in estimator.__bases__)
    return f"\nclass {estimator.__name__}({bases}):\n" + textwrap.indent(body, " " * 4)


def _docstring(estimator: type[Machine]) -> str:
    """Return an estimator's docstring; most refer to a general estimator for shared parts."""
    complete = estimator.__doc__ or ""
    general = (
        KernelMachineClassifier if issubclass(estimator, Classifier) else KernelMachineRegressor
    )
    if estimator is general:
        return complete
    shared = {field.name for field in dataclasses.fields(SharedParameters)}
    settings = {p.name: p.text for p in estimator.parameters if p.name not in shared}
    reference = f"Other parameters, and attributes: see `{general.__name__}`."
    parts = [complete.split("\n\nArgs:\n")[0], section("Args:", settings), reference]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("__init__.pyi").write_text(stub())
