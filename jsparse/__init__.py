"""Sparse kernel machines on JAX: `f(x) = sum_j beta_j k(z_j, x) + b` with few prototypes.

What is named here is imported when it is first asked for, and JAX with it: so the command line can
answer Ctrl-C before it imports them.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # of each name the same place as below
    from . import data as data
    from . import expansion as expansion
    from . import features as features
    from . import kernels as kernels
    from . import machines as machines
    from . import multiclass as multiclass
    from . import normal_equations as normal_equations
    from . import prototypes as prototypes
    from . import pursuit as pursuit
    from . import scaling as scaling
    from . import search as search
    from . import serialization as serialization
    from . import solvers as solvers
    from . import training as training
    from . import validation as validation
    from ._runtime import UnusableJaxError as UnusableJaxError
    from ._status import ConvergenceWarning as ConvergenceWarning
    from ._status import NumericalError as NumericalError
    from ._status import PrecisionWarning as PrecisionWarning
    from ._status import check as check
    from .expansion import KernelExpansion as KernelExpansion
    from .machines import dual as dual
    from .machines import fixed_size as fixed_size
    from .machines import scdp as scdp
    from .machines import spsvm as spsvm
    from .multiclass import output_code as output_code
    from .normal_equations import NormalEquations as NormalEquations
    from .normal_equations import accumulate as accumulate
    from .normal_equations import accumulate_batches as accumulate_batches
    from .scaling import Standardization as Standardization
    from .scaling import standardize as standardize
    from .search.path_problem import Stopping as Stopping
    from .search.problem import tuning_problem as tuning_problem
    from .search.sizes import SizeChoice as SizeChoice
    from .search.sizes import tune_sizes as tune_sizes
    from .search.tune import Tuning as Tuning
    from .search.tune import load_history as load_history
    from .search.tune import save_history as save_history
    from .search.tune import tune as tune
    from .serialization import ModelFileError as ModelFileError
    from .serialization import load as load
    from .serialization import save as save
    from .training.path import TrainedPath as TrainedPath
    from .training.path import train_path as train_path
    from .training.plan import Plan as Plan
    from .training.plan import plan as plan
    from .training.stream import train_stream as train_stream
    from .training.train import train as train
    from .training.trained import Trained as Trained
    from .validation.cross_validation import CrossValidation as CrossValidation
    from .validation.cross_validation import cross_validate as cross_validate
    from .validation.folds import Folds as Folds
    from .validation.folds import folds_from_assignment as folds_from_assignment
    from .validation.folds import plain_folds as plain_folds
    from .validation.folds import stratified_folds as stratified_folds

if "jax" in sys.modules:  # from now on a fork after JAX has started is noticed
    from . import _runtime as _runtime

__version__ = "0.1.0"

_MODULES = {
    "": "data expansion features kernels machines multiclass normal_equations prototypes pursuit "
    "scaling search serialization solvers training validation",
    ".machines": "dual fixed_size scdp spsvm",
}
_NAMES = {
    "_runtime": "UnusableJaxError",
    "_status": "ConvergenceWarning NumericalError PrecisionWarning check",
    "expansion": "KernelExpansion",
    "multiclass": "output_code",
    "normal_equations": "NormalEquations accumulate accumulate_batches",
    "scaling": "Standardization standardize",
    "serialization": "ModelFileError load save",
    "validation.cross_validation": "CrossValidation cross_validate",
    "validation.folds": "Folds folds_from_assignment plain_folds stratified_folds",
    "search.path_problem": "Stopping",
    "training.train": "train",
    "training.plan": "Plan plan",
    "search.problem": "tuning_problem",
    "search.tune": "Tuning load_history save_history tune",
    "search.sizes": "SizeChoice tune_sizes",
    "training.path": "TrainedPath train_path",
    "training.stream": "train_stream",
    "training.trained": "Trained",
}
_MODULE_OF = {n: f"{room}.{n}" for room, names in _MODULES.items() for n in names.split()}
_HOME_OF = {n: f".{home}" for home, names in _NAMES.items() for n in names.split()}
__all__ = sorted({*_MODULE_OF, *_HOME_OF})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = importlib.import_module(_MODULE_OF[name], __name__)
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
