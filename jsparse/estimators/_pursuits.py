"""Kernel subspace, matching and basis pursuit as scikit-learn estimators."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..kernels import Kernel
from ..machines.candidates import CandidateMethod
from ..machines.pursuits import ITERATIONS, KBP, KMP, KSP, Fitting
from ..search.strategies import Search
from ._base import Classifier, Regressor
from ._scdp import SparseMachine


class _Pursuit(SparseMachine):
    """Without `C`: the size is what is tuned."""

    C = "auto"
    atoms: Any
    intercept: bool
    ridge: float

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


class _Subspace(_Pursuit):
    max_iterations: int

    def make_method(self, n: int, classes: int) -> KSP:
        return KSP(max_iterations=self.max_iterations, **self._shared())


class _Matching(_Pursuit):
    fitting: Fitting

    def make_method(self, n: int, classes: int) -> KMP:
        return KMP(fitting=self.fitting, subset=self.subset, **self._shared())


class _Basis(_Pursuit):
    def make_method(self, n: int, classes: int) -> KBP:
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
        max_iterations: of the exchange, the source's l_max.
        intercept: whether there is one.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`; so are the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        cv: number of folds, a splitter, or a list of splits, which hold each row out once; "auto"
            for 10, or as many as there are rows.
        search: "profile", "annealing", or a `jsparse.Profile` or `jsparse.Annealing`.
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

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

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        atoms: Any = None,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        max_iterations: int = ITERATIONS,
        intercept: bool = True,
        ridge: float = 0.0,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.atoms = atoms
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.max_iterations = max_iterations
        self.intercept = intercept
        self.ridge = ridge
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class KernelSubspacePursuitClassifier(_Subspace, Classifier):
    """Classification by kernel subspace pursuit (Kabbara 2015), on -1 and +1.

    More than two classes are problems of two, each with prototypes of its own. Parameters are those
    of `KernelSubspacePursuitRegressor`, and these:

    Args:
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        class_weight: None, "balanced" or a mapping from labels to factors.

    Attributes:
        classes_: labels in sorted order; for the others see there.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        atoms: Any = None,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        max_iterations: int = ITERATIONS,
        intercept: bool = True,
        ridge: float = 0.0,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        multiclass: Any = "one_versus_rest",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.atoms = atoms
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.max_iterations = max_iterations
        self.intercept = intercept
        self.ridge = ridge
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class KernelMatchingPursuitRegressor(_Matching, Regressor):
    """Regression by kernel matching pursuit (Vincent and Bengio 2002).

    Prototypes are selected one after another, and stay; cross-validation says how many to take.

    Args:
        max_prototypes: the most prototypes tried; None for 300, or as many as there are.
        atoms: the number of prototypes, or several of which cross-validation chooses; None for all
            up to the most.
        candidates: their number, "all" rows or points, shape `(n_candidates, n_features)`; None for
            all rows up to 1000.
        candidate_method: "k_center", "k_means", "renyi" or "uniform".
        fitting: "basic", "backfitting" or "prefitting", see `jsparse.KMP`.
        subset: candidates looked at in each step, at random: None for all, "auto" for 59.
        intercept: whether there is one.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`; so are the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        cv: number of folds, a splitter, or a list of splits, which hold each row out once; "auto"
            for 10, or as many as there are rows.
        search: "profile", "annealing", or a `jsparse.Profile` or `jsparse.Annealing`.
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

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

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        atoms: Any = None,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        fitting: Fitting = "backfitting",
        subset: int | str | None = None,
        intercept: bool = True,
        ridge: float = 0.0,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.atoms = atoms
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.fitting = fitting
        self.subset = subset
        self.intercept = intercept
        self.ridge = ridge
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class KernelMatchingPursuitClassifier(_Matching, Classifier):
    """Classification by kernel matching pursuit (Vincent and Bengio 2002), on -1 and +1.

    More than two classes are problems of two, each with prototypes of its own. Parameters are those
    of `KernelMatchingPursuitRegressor`, and these:

    Args:
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        class_weight: None, "balanced" or a mapping from labels to factors.

    Attributes:
        classes_: labels in sorted order; for the others see there.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        atoms: Any = None,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        fitting: Fitting = "backfitting",
        subset: int | str | None = None,
        intercept: bool = True,
        ridge: float = 0.0,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        multiclass: Any = "one_versus_rest",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.atoms = atoms
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.fitting = fitting
        self.subset = subset
        self.intercept = intercept
        self.ridge = ridge
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class KernelBasisPursuitRegressor(_Basis, Regressor):
    """Regression by kernel basis pursuit (Guigue et al. 2005).

    Least angle regression on the atoms, stopped after so many steps as cross-validation says.

    Args:
        max_prototypes: the most prototypes tried; None for 300, or as many as there are.
        atoms: the number of prototypes, or several of which cross-validation chooses; None for all
            up to the most.
        candidates: their number, "all" rows or points, shape `(n_candidates, n_features)`; None for
            all rows up to 1000.
        candidate_method: "k_center", "k_means", "renyi" or "uniform".
        intercept: whether there is one.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`; so are the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        cv: number of folds, a splitter, or a list of splits, which hold each row out once; "auto"
            for 10, or as many as there are rows.
        search: "profile", "annealing", or a `jsparse.Profile` or `jsparse.Annealing`.
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

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
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
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
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class KernelBasisPursuitClassifier(_Basis, Classifier):
    """Classification by kernel basis pursuit (Guigue et al. 2005), on -1 and +1.

    More than two classes are problems of two, each with prototypes of its own. Parameters are those
    of `KernelBasisPursuitRegressor`, and these:

    Args:
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        class_weight: None, "balanced" or a mapping from labels to factors.

    Attributes:
        classes_: labels in sorted order; for the others see there.
    """

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
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        multiclass: Any = "one_versus_rest",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = "auto",
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
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
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
