"""Sparse kernel machines on JAX: `f(x) = sum_j beta_j k(z_j, x) + b` with few prototypes.

`train` makes a model of raw rows, by a method such as `FixedSize` and a search such as `Profile`.
`estimators` are the same for scikit-learn, and `layers` for networks. Underneath are functions of
arrays for `jit`, `grad` and `vmap`: the fits in `machines`, `cross_validate`, sums over rows, and
`pursuit` for sparse solutions of linear systems.

A public name is imported when it is first used, and JAX with it. So the command line can answer
Ctrl-C before it imports them.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

if "jax" in sys.modules:  # from now on a fork after JAX has started is noticed
    from . import _runtime as _runtime

__version__ = "0.1.0"

# The stub, which type checkers and editors read, lists each public name once, with its module.
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
    home = importlib.import_module(f".{module or name}", __name__)
    value = getattr(home, name, None) if module else home
    if value is None:  # a module within a package
        value = importlib.import_module(f".{module}.{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
