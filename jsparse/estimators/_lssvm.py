"""LS-SVM in the dual as scikit-learn estimators."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..kernels import Kernel
from ..machines.dual import Dual
from ..search.strategies import Search
from ._base import Classifier, Regressor
from ._inputs import Categories


class LSSVMClassifier(Classifier):
    """Classification by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands take
    `FixedSizeLSSVMClassifier`. Tuned by leave-one-out, which one decomposition gives for every `C`.

    Args:
        kernel: see `FixedSizeLSSVMClassifier`, also for the parameters that follow.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes.
        class_weight: None, "balanced" or a mapping from labels to factors.
        out_of_fold: keep the errors on rows left out, by which probabilities, intervals and sets
            are calibrated; "machines" to keep the machines that made them too, see `jsparse.train`.
        search: "profile" or "annealing".
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None; decides the search "annealing".

    Attributes:
        classes_: labels in sorted order.
        prototypes_: the rows, shape `(n_samples, n_features)`.
        prototype_indices_: their numbers.
        dual_coef_: shape `(n_samples,)`, or with more than two classes a column per problem.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C.
        cv_error_: its leave-one-out error.
        oob_decision_function_: probabilities of each row by machines that have not seen it.
        n_iter_: number of evaluations in the search.
        tuning_history_: all of them.
        n_features_in_: number of columns.
        feature_names_in_: their names, if they had any.
    """

    cv = "auto"  # leave-one-out

    def __init__(
        self,
        *,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        C: float | str = "auto",
        multiclass: Any = "one_versus_rest",
        class_weight: str | Mapping[Any, float] | None = None,
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def make_method(self) -> Dual:
        return Dual()


class LSSVMRegressor(Regressor):
    """Regression by an LS-SVM; see `LSSVMClassifier` for parameters and attributes."""

    cv = "auto"  # leave-one-out

    def __init__(
        self,
        *,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        C: float | str = "auto",
        out_of_fold: bool | Literal["machines"] = True,
        search: str | Search = "profile",
        max_evaluations: int | None = None,
        max_seconds: float = math.inf,
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def make_method(self) -> Dual:
        return Dual()
