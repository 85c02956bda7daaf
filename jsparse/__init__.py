"""Sparse kernel machines on JAX: `f(x) = sum_j beta_j k(z_j, x) + b` with few prototypes.

From rows to a model:
    train: standardise, choose points, tune by cross-validation, fit; arrays, tables or streams
    distil: a machine of few of the prototypes of a large one
    FixedSize, SCDP, Dual, Robust, SpSVM, SparseReduction, KSP, SLMC: the methods
    SparseFisher, SparseRidge, ReducedSetSVM: others by Wu et al. 2006
    KMP, KBP, ReducedSVM, RVM: those they are compared with
    Profile, Annealing, Gradient: the searches
    Multiclass, Resources, HoldOut, Stopping: settings; plan: what a run will take
    Trained, Model: what comes of it; save, load: models and files
    save_history, load_history: stop a search and resume it
    estimators: the same for scikit-learn; plotting: figures

Pure functions of arrays for `jit` and `vmap`, most of them differentiable:
    machines: fits of each kind (fixed_size, dual, robust, scdp, spsvm, reductions, pursuits,
    slmc, sparse_fisher, sparse_ridge, one_class, reduced_svm, reduced_set, rvm), direct
    cross_validate, validate: errors on unseen rows
    accumulate, accumulate_batches, NormalEquations: sums over rows
    kernels, features, prototypes, pursuit: their parts
    plain_folds, stratified_folds, folds_from_assignment; standardize; output_code
    tuning_problem, tune: a search over one's own problem

Compilation: warm_up, enable_compilation_cache

How things ended: check, NumericalError, ConvergenceWarning, PrecisionWarning

What is named here is imported when it is first asked for, and JAX with it: so the command line can
answer Ctrl-C before it imports them.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # of each name the same place as below
    from . import data as data
    from . import estimators as estimators
    from . import expansion as expansion
    from . import features as features
    from . import kernels as kernels
    from . import machines as machines
    from . import model as model
    from . import multiclass as multiclass
    from . import normal_equations as normal_equations
    from . import plotting as plotting
    from . import prototypes as prototypes
    from . import pursuit as pursuit
    from . import scaling as scaling
    from . import search as search
    from . import serialization as serialization
    from . import solvers as solvers
    from . import training as training
    from . import validation as validation
    from ._files import ModelFileError as ModelFileError
    from ._runtime import UnusableJaxError as UnusableJaxError
    from ._status import ConvergenceWarning as ConvergenceWarning
    from ._status import NumericalError as NumericalError
    from ._status import PrecisionWarning as PrecisionWarning
    from ._status import check as check
    from .compilation import enable_compilation_cache as enable_compilation_cache
    from .compilation import warm_up as warm_up
    from .expansion import KernelExpansion as KernelExpansion
    from .features import Nystroem as Nystroem
    from .kernels import RBF as RBF
    from .machines import KBP as KBP
    from .machines import KMP as KMP
    from .machines import KSP as KSP
    from .machines import RVM as RVM
    from .machines import SCDP as SCDP
    from .machines import SLMC as SLMC
    from .machines import Dual as Dual
    from .machines import FixedSize as FixedSize
    from .machines import ReducedSetSVM as ReducedSetSVM
    from .machines import ReducedSVM as ReducedSVM
    from .machines import Robust as Robust
    from .machines import SparseFisher as SparseFisher
    from .machines import SparseReduction as SparseReduction
    from .machines import SparseRidge as SparseRidge
    from .machines import SpSVM as SpSVM
    from .machines import direct as direct
    from .machines import dual as dual
    from .machines import fixed_size as fixed_size
    from .machines import one_class as one_class
    from .machines import pursuits as pursuits
    from .machines import reduced_set as reduced_set
    from .machines import reduced_svm as reduced_svm
    from .machines import reductions as reductions
    from .machines import robust as robust
    from .machines import rvm as rvm
    from .machines import scdp as scdp
    from .machines import slmc as slmc
    from .machines import sparse_fisher as sparse_fisher
    from .machines import sparse_ridge as sparse_ridge
    from .machines import spsvm as spsvm
    from .machines.from_sums import FromSums as FromSums
    from .machines.method import Method as Method
    from .machines.stopping import Stopping as Stopping
    from .model import Model as Model
    from .model_files import load as load
    from .model_files import save as save
    from .multiclass import output_code as output_code
    from .normal_equations import NormalEquations as NormalEquations
    from .normal_equations import accumulate as accumulate
    from .normal_equations import accumulate_batches as accumulate_batches
    from .scaling import Standardization as Standardization
    from .scaling import standardize as standardize
    from .search.gradient import Gradient as Gradient
    from .search.history import load_history as load_history
    from .search.history import save_history as save_history
    from .search.run import Tuning as Tuning
    from .search.sizes import SizeCurve as SizeCurve
    from .search.sizes import tune_sizes as tune_sizes
    from .search.strategies import Annealing as Annealing
    from .search.strategies import Profile as Profile
    from .search.tune import tune as tune
    from .training.distil import distil as distil
    from .training.plan import plan as plan
    from .training.settings import HoldOut as HoldOut
    from .training.settings import Multiclass as Multiclass
    from .training.settings import Resources as Resources
    from .training.tables import tuning_problem as tuning_problem
    from .training.train import train as train
    from .training.trained import Trained as Trained
    from .validation.cross_validation import CrossValidation as CrossValidation
    from .validation.cross_validation import cross_validate as cross_validate
    from .validation.folds import Folds as Folds
    from .validation.folds import folds_from_assignment as folds_from_assignment
    from .validation.folds import plain_folds as plain_folds
    from .validation.folds import stratified_folds as stratified_folds
    from .validation.validate import validate as validate

if "jax" in sys.modules:  # from now on a fork after JAX has started is noticed
    from . import _runtime as _runtime

__version__ = "0.1.0"

# What an interactive session shows, and where each name is from.
_SHOWN = {
    "": "estimators features kernels machines plotting prototypes pursuit",
    ".machines": "Dual FixedSize KSP Robust SCDP SLMC SparseReduction SpSVM",
    "._status": "NumericalError check",
    ".compilation": "enable_compilation_cache warm_up",
    ".model": "Model",
    ".model_files": "load save",
    ".normal_equations": "accumulate",
    ".scaling": "standardize",
    ".search.gradient": "Gradient",
    ".search.history": "load_history save_history",
    ".search.strategies": "Annealing Profile",
    ".training.distil": "distil",
    ".training.plan": "plan",
    ".training.settings": "HoldOut Multiclass Resources",
    ".training.train": "train",
    ".training.trained": "Trained",
    ".validation.cross_validation": "cross_validate",
    ".validation.folds": "plain_folds stratified_folds",
    ".validation.validate": "validate",
}
# What is here too, for those who know what they look for.
_MORE = {
    "": "data expansion model multiclass normal_equations scaling search serialization solvers "
    "training validation",
    ".machines": "direct dual fixed_size one_class pursuits reduced_set reduced_svm reductions "
    "robust rvm scdp slmc sparse_fisher sparse_ridge spsvm KBP KMP RVM ReducedSVM ReducedSetSVM "
    "SparseFisher SparseRidge",
    "._files": "ModelFileError",
    "._runtime": "UnusableJaxError",
    "._status": "ConvergenceWarning PrecisionWarning",
    ".expansion": "KernelExpansion",
    ".features": "Nystroem",
    ".kernels": "RBF",
    ".machines.from_sums": "FromSums",
    ".machines.method": "Method",
    ".machines.stopping": "Stopping",
    ".multiclass": "output_code",
    ".normal_equations": "NormalEquations accumulate_batches",
    ".scaling": "Standardization",
    ".search.sizes": "SizeCurve tune_sizes",
    ".search.run": "Tuning",
    ".search.tune": "tune",
    ".training.tables": "tuning_problem",
    ".validation.cross_validation": "CrossValidation",
    ".validation.folds": "Folds folds_from_assignment",
}
_HOME_OF = {
    name: home for part in (_SHOWN, _MORE) for home, names in part.items() for name in names.split()
}
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for names in _SHOWN.values() for name in names.split()
)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME_OF[name]
    found = getattr(importlib.import_module(home, __name__), name, None) if home else None
    if found is None:
        found = importlib.import_module(f"{home}.{name}", __name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
