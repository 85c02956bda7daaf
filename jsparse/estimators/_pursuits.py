"""Kernel subspace, matching and basis pursuit as scikit-learn estimators."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ..machines.candidates import CandidateMethod
from ..machines.kbp import KBP
from ..machines.kmp import KMP, Fitting
from ..machines.ksp import ITERATIONS, KSP
from ..search.strategies import Search
from ..training.choices import KernelLike
from ._base import Classifier, Regressor
from ._inputs import Categories
from ._scdp import SparseMachine

_OF_CLASSES: dict[str, Any] = {"multiclass": "one_versus_rest", "class_weight": None}


class _Pursuit(SparseMachine):
    """Without `C`: the size is what is tuned.

    All have one constructor, and some parameters of their own, by name with a default. The
    signature of each class names all that it takes, which is what scikit-learn goes by.
    """

    C = "auto"
    own: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        atoms: Any = None,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        intercept: bool = True,
        ridge: float = 0.0,
        tolerance: float = 0.1,
        kernel: KernelLike = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        cv: Any = "auto",
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
        **own: Any,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.atoms = atoms
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.intercept = intercept
        self.ridge = ridge
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
        for name in own.keys() - self.own:
            raise TypeError(f"{type(self).__name__} has no parameter {name!r}")
        vars(self).update({**self.own, **own})

    def __init_subclass__(cls, **own: Any) -> None:
        """The constructor of a class, with its own parameters and those of its parents."""
        super().__init_subclass__()
        cls.own = {**cls.own, **own}

        def __init__(self: _Pursuit, *given: Any, **named: Any) -> None:
            _Pursuit.__init__(self, *given, **named)

        shared = inspect.signature(_Pursuit.__init__)
        names = [p for p in shared.parameters.values() if p.kind != p.VAR_KEYWORD]
        kind = inspect.Parameter.KEYWORD_ONLY
        names += [inspect.Parameter(name, kind, default=d) for name, d in cls.own.items()]
        __init__.__signature__ = shared.replace(parameters=names)  # type: ignore[attr-defined]
        cls.__init__ = __init__

    def _shared(self) -> dict[str, Any]:
        return {
            "max_prototypes": self.max_prototypes,
            "atoms": self.atoms,
            "candidates": self.candidates,
            "candidate_method": self.candidate_method,
            "intercept": self.intercept,
            "ridge": self.ridge,
            "size_tolerance": self.tolerance,
        }


class _Subspace(_Pursuit, max_iterations=ITERATIONS):
    max_iterations: int

    def make_method(self) -> KSP:
        return KSP(max_iterations=self.max_iterations, **self._shared())


class _Matching(_Pursuit, fitting="backfitting", subset=None):
    fitting: Fitting
    subset: Any

    def make_method(self) -> KMP:
        return KMP(fitting=self.fitting, subset=self.subset, **self._shared())


class _Basis(_Pursuit):
    def make_method(self) -> KBP:
        return KBP(**self._shared())


class KernelSubspacePursuitRegressor(_Subspace, Regressor):
    """Regression by kernel subspace pursuit (Kabbara 2015).

    Exactly K prototypes are selected, and exchanged until the error does not fall; cross-validation
    says which K to take.

    Args:
        max_prototypes: the most prototypes tried; None for 100, or as many as there are.
        atoms: the number of prototypes, or several of which cross-validation chooses; None for ten
            up to the most.
        candidates: their number, "all" rows or points, shape `(n_candidates, n_features)`; None for
            all rows up to 1000.
        candidate_method: "k_center", "k_means", "renyi" or "uniform".
        intercept: whether there is one.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`, as for the parameters that follow; or a list of
            several, of each of which every candidate is an atom.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        cv: number of folds, a splitter, or a list of splits, which hold each row out once; "auto"
            for 10, or as many as there are rows.
        out_of_fold: keep the errors on rows left out, by which probabilities, intervals and sets
            are calibrated; "machines" to keep the machines that made them too, see `jsparse.train`.
        search: "profile", "annealing", or a `jsparse.Profile` or `jsparse.Annealing`.
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.
        max_iterations: of the exchange, the source's l_max.

    Attributes:
        n_prototypes_: the size chosen; of each problem or target, which have their own.
        sizes_: those tried.
        errors_: cross-validated mean squared error of each.
        standard_errors_: of those, from their spread over the folds.
        prototypes_: shape `(n, n_features)`, in the units of the inputs.
        dual_coef_: shape `(n,)`, or with several problems or targets a column for each.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        cv_error_: its cross-validated error.
        oob_prediction_: values of each row by machines that have not seen it.
        n_iter_: number of evaluations in the search.
        tuning_history_: all of them.
        n_features_in_: number of columns.
        feature_names_in_: their names, if they had any.
    """


class KernelSubspacePursuitClassifier(_Subspace, Classifier, **_OF_CLASSES):
    """Classification by kernel subspace pursuit (Kabbara 2015), on -1 and +1.

    More than two classes are problems of two, each with prototypes of its own. Parameters and
    attributes are those of `KernelSubspacePursuitRegressor`, and these:

    Args:
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        class_weight: None, "balanced" or a mapping from labels to factors.

    Attributes:
        classes_: labels in sorted order.
        errors_: cross-validated misclassification of each size, which is chosen by the mean squared
            error.
    """

    class_weight: str | Mapping[Any, float] | None


class KernelMatchingPursuitRegressor(_Matching, Regressor):
    """Regression by kernel matching pursuit (Vincent and Bengio 2002).

    Prototypes are selected one after another, and stay; cross-validation says how many to take.
    Parameters and attributes are those of `KernelSubspacePursuitRegressor`, without
    `max_iterations`, by default with every size up to 300, and these:

    Args:
        fitting: "basic", "backfitting" or "prefitting", see `jsparse.KMP`.
        subset: candidates looked at in each step, at random: None for all, "auto" for 59.
    """


class KernelMatchingPursuitClassifier(_Matching, Classifier, **_OF_CLASSES):
    """Classification by kernel matching pursuit (Vincent and Bengio 2002), on -1 and +1.

    Parameters and attributes are those of `KernelMatchingPursuitRegressor`; what comes with classes
    is as of `KernelSubspacePursuitClassifier`.
    """


class KernelBasisPursuitRegressor(_Basis, Regressor):
    """Regression by kernel basis pursuit (Guigue et al. 2005).

    Least angle regression on the atoms, stopped after so many steps as cross-validation says.
    Parameters and attributes are those of `KernelSubspacePursuitRegressor`, without
    `max_iterations`, by default with every size up to 300.
    """


class KernelBasisPursuitClassifier(_Basis, Classifier, **_OF_CLASSES):
    """Classification by kernel basis pursuit (Guigue et al. 2005), on -1 and +1.

    Parameters and attributes are those of `KernelBasisPursuitRegressor`; what comes with classes is
    as of `KernelSubspacePursuitClassifier`.
    """
