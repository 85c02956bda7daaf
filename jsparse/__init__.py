"""Sparse kernel machines on JAX: `f(x) = sum_j beta_j k(z_j, x) + b` with few prototypes.

`train` makes a model from raw rows, by a method such as `FixedSize` and a search such as `Profile`.
`estimators` offers the methods to scikit-learn, and `layers` offers a machine to networks. They
build on functions of arrays for `jit`, `grad` and `vmap`: the fits in `machines`, `cross_validate`,
sums over rows, and `pursuit` for sparse solutions of linear systems.

A public name is imported when it is first used, and JAX with it. The command line can therefore
answer Ctrl-C before these imports.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

if "jax" in sys.modules:  # note when JAX starts, so that a later fork is detected
    from . import _runtime as _runtime

__version__ = "0.1.0"

# The stub for type checkers and editors lists each public name once, with its module.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
_IMPORTS = [(i, line) for i, line in enumerate(_STUB) if isinstance(line, ast.ImportFrom)]
_MODULE_OF = {name.name: line.module for _, line in _IMPORTS for name in line.names}
_VERSION = next(i for i, line in enumerate(_STUB) if isinstance(line, ast.AnnAssign))
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name.name for i, line in _IMPORTS if i < _VERSION for name in line.names
)


def __getattr__(name: str) -> Any:
    """Import and return a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    imported = importlib.import_module(f".{module or name}", __name__)
    value = getattr(imported, name, None) if module else imported
    if value is None:  # a module within a package
        value = importlib.import_module(f".{module}.{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
