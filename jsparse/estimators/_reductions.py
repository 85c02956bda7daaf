"""Sparse reductions of LS-SVMs as scikit-learn estimators."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..kernels import Kernel
from ..machines.reductions import Initialization, SparseReduction
from ..search.strategies import Search
from ._base import Classifier, Machine, Regressor
from ._inputs import Categories


class _Reduced(Machine):
    n_prototypes: int | None
    initialization: Initialization
    selection: str
    tolerance: float

    def make_method(self) -> SparseReduction:
        return SparseReduction(
            self.n_prototypes,
            selection=self.selection,  # type: ignore[arg-type]
            initialization=self.initialization,
            size_tolerance=self.tolerance,
        )


class SparseReducedLSSVMClassifier(_Reduced, Classifier):
    """Classification by an LS-SVM out of which most prototypes are driven.

    SPFS-LSSVM and SSD-LSSVM of Mall and Suykens (2015), Algorithms 3 and 4: ridge systems are
    reweighted until the coefficients of most prototypes have vanished. Of several values of `C` the
    one that leaves the fewest is taken whose error cross-validation cannot tell from the best.

    Args:
        n_prototypes: how many to begin with; None for four roots of the number of rows, at most
            1000.
        initialization: the machine it begins with: "primal", of all rows (SPFS-LSSVM), or "dual",
            of the prototypes alone (SSD-LSSVM), which is faster.
        selection: of prototypes, "renyi" or "uniform".
        tolerance: the smallest `C` within so many standard errors of the best is taken.
        kernel: see `FixedSizeLSSVMClassifier`; so are the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number; the smaller, the fewer prototypes are left.
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
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
        prototypes_: those that are left, shape `(m, n_features)`, in the units of the inputs.
        prototype_indices_: their rows.
        dual_coef_: shape `(m,)`, or with more than two classes a column per problem.
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
        n_prototypes: int | None = None,
        *,
        initialization: Initialization = "primal",
        selection: str = "renyi",
        tolerance: float = 1.0,
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
        self.n_prototypes = n_prototypes
        self.initialization = initialization
        self.selection = selection
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


class SparseReducedLSSVMRegressor(_Reduced, Regressor):
    """Regression by an LS-SVM out of which most prototypes are driven.

    See `SparseReducedLSSVMClassifier` for parameters and attributes; several targets share their
    prototypes.
    """

    def __init__(
        self,
        n_prototypes: int | None = None,
        *,
        initialization: Initialization = "primal",
        selection: str = "renyi",
        tolerance: float = 1.0,
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
        self.n_prototypes = n_prototypes
        self.initialization = initialization
        self.selection = selection
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
