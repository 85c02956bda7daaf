"""The learners of the papers: pure functions, and a `Method` for each, which training calls."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time, `__getattr__` imports each name when it is first used
    from .dual import Dual as Dual
    from .fixed_size import FixedSize as FixedSize
    from .gradient_product import agop as agop
    from .kbp import KBP as KBP
    from .kmp import KMP as KMP
    from .ksp import KSP as KSP
    from .method import Method as Method
    from .reduced_set import ReducedSetSVM as ReducedSetSVM
    from .reduced_svm import ReducedSVM as ReducedSVM
    from .reductions import SparseReduction as SparseReduction
    from .robust import Robust as Robust
    from .rvm import RVM as RVM
    from .scdp import SCDP as SCDP
    from .slmc import SLMC as SLMC
    from .sparse_fisher import SparseFisher as SparseFisher
    from .sparse_ridge import SparseRidge as SparseRidge
    from .spsvm import SpSVM as SpSVM
    from .stopping import Stopping as Stopping

    METHODS: dict[str, type[Method]]

# Class name and module of each method, in the order of the command line's help.
_REGISTRY = {
    "FixedSize": "fixed_size",
    "SCDP": "scdp",
    "Dual": "dual",
    "Robust": "robust",
    "SpSVM": "spsvm",
    "SparseReduction": "reductions",
    "KSP": "ksp",
    "KMP": "kmp",
    "KBP": "kbp",
    "SLMC": "slmc",
    "ReducedSVM": "reduced_svm",
    "SparseFisher": "sparse_fisher",
    "SparseRidge": "sparse_ridge",
    "ReducedSetSVM": "reduced_set",
    "RVM": "rvm",
}
_HOME_OF = {
    **_REGISTRY,
    "FromSums": "from_sums",
    "Method": "method",
    "Stopping": "stopping",
    "agop": "gradient_product",
}


def __getattr__(name: str) -> Any:
    """Import and return a name; `METHODS` maps names on the command line to method classes."""
    if name == "METHODS":
        value: Any = {method.name: method for method in map(__getattr__, _REGISTRY)}
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
