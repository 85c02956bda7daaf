"""Sparse support vector machines as a scikit-learn estimator."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..kernels import Kernel
from ..machines.candidates import CandidateMethod
from ..machines.spsvm import SpSVM
from ..search.strategies import Search
from ._base import Classifier
from ._inputs import Categories
from ._scdp import SparseMachine


class SpSVMClassifier(SparseMachine, Classifier):
    """Classification by a support vector machine of few prototypes (Keerthi et al. 2006).

    Prototypes are selected out of candidates one after another, by what is left of the squared
    hinge loss, and cross-validation says how many to take. The kernel is tuned for the
    least-squares machine of the same candidates, see `jsparse.SpSVM`.

    Args:
        max_prototypes: see `SCDPClassifier`, as are all others but these.
        candidates: their number, "all" rows or points.
        candidate_method: how they are chosen.
        subset: candidates looked at for each prototype, at random; None for 59.
        tolerance: the smallest machine within so many standard errors of the best is taken.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes;
            each problem has prototypes of its own.
        class_weight: None, "balanced" or a mapping from labels to factors.
        cv: number of folds, a splitter or a list of splits.
        out_of_fold: keep the errors on rows left out, by which probabilities, intervals and sets
            are calibrated; "machines" to keep the machines that made them too, see `jsparse.train`.
        search: "profile" or "annealing".
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

    Attributes:
        classes_: labels in sorted order.
        n_prototypes_: the size chosen, of each problem.
        errors_: cross-validated misclassification with 1, 2, .. prototypes.
        standard_errors_: of those, from their spread over the folds.
        prototypes_: shape `(n, n_features)`, in the units of the inputs.
        dual_coef_: shape `(n,)`, or with more than two classes a column per problem.
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
        self.class_weight = class_weight
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def make_method(self) -> SpSVM:
        return SpSVM(
            max_prototypes=self.max_prototypes,
            candidates=self.candidates,
            candidate_method=self.candidate_method,
            subset=self.subset,
            size_tolerance=self.tolerance,
        )
