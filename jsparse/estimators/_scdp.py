"""SCDP-FSLSSVM as scikit-learn estimators."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.candidates import CandidateMethod
from ..machines.scdp import SCDP, Selection
from ..search.strategies import Search
from ._base import Classifier, Machine, Regressor
from ._inputs import Categories


class SparseMachine(Machine):
    """A path of machines of every size, and one of them chosen."""

    max_prototypes: int | None
    candidates: Any
    candidate_method: CandidateMethod
    subset: Any
    tolerance: float

    def expansion_at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes; takes raw inputs.

        Raises:
            ValueError: if the path is not that long.
        """
        check_is_fitted(self)
        self._wake()
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            return self.model_.at(n_prototypes).expansion


class _SCDP(SparseMachine):
    selection: Selection

    def make_method(self) -> SCDP:
        return SCDP(
            max_prototypes=self.max_prototypes,
            candidates=self.candidates,
            candidate_method=self.candidate_method,
            subset=self.subset,
            size_tolerance=self.tolerance,
            selection=self.selection if isinstance(self, SCDPClassifier) else "joint",
        )


class SCDPClassifier(_SCDP, Classifier):
    """Classification by a kernel machine as small as cross-validation lets it be.

    SCDP-FSLSSVM of Karsmakers 2011: prototypes are selected out of candidates one after another, by
    what is left of the targets, and cross-validation of the whole path says how many to take.

    Args:
        max_prototypes: length of the path; None for 300, or as many as there are.
        candidates: their number, "all" rows or points, shape `(n_candidates, n_features)`; None for
            all rows up to 1000.
        candidate_method: "k_center", "k_means", "renyi" or "uniform".
        subset: candidates looked at for each prototype, at random: None for all, "auto" for 59.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`; so are the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        selection: of the problems of more than two classes: "joint", the same prototypes for all,
            or "separate".
        class_weight: None, "balanced" or a mapping from labels to factors.
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

    Attributes:
        classes_: labels in sorted order.
        n_prototypes_: the size chosen.
        errors_: cross-validated misclassification with 1, 2, .. prototypes; the size is chosen by
            the mean squared error.
        standard_errors_: of those, from their spread over the folds.
        prototypes_: shape `(n_prototypes_, n_features)`, in the units of the inputs.
        dual_coef_: shape `(n_prototypes_,)`, or with more than two classes a column per problem.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C.
        cv_error_: its cross-validated error.
        oob_decision_function_: probabilities of each row by machines that have not seen it.
        n_iter_: number of evaluations in the search.
        tuning_history_: all of them.
        n_features_in_: number of columns.
        feature_names_in_: their names, if they had any.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        subset: int | str | None = None,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        C: float | str = "auto",
        multiclass: Any = "one_versus_rest",
        selection: Selection = "joint",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: Any = "auto",
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.subset = subset
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.multiclass = multiclass
        self.selection = selection
        self.class_weight = class_weight
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state


class SCDPRegressor(_SCDP, Regressor):
    """Regression by a kernel machine as small as cross-validation lets it be.

    See `SCDPClassifier` for parameters and attributes.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: CandidateMethod = "k_center",
        subset: int | str | None = None,
        tolerance: float = 0.1,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        C: float | str = "auto",
        cv: Any = "auto",
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.subset = subset
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state
