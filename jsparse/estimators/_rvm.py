"""Relevance vector machines as scikit-learn estimators (Tipping 2001)."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ..kernels import Kernel
from ..machines.rvm import MAX_ITERATIONS, RVM, Likelihood
from ..search.strategies import Search
from ._base import Classifier, Machine, Regressor
from ._inputs import Categories


class _Relevance(Machine):
    """Without `C`: the evidence decides."""

    C = "auto"
    max_prototypes: int
    candidates: int | None
    max_iter: int
    _likelihood: Likelihood

    def make_method(self) -> RVM:
        settings: Any = {"candidates": self.candidates, "likelihood": self._likelihood}
        return RVM(self.max_prototypes, max_iterations=self.max_iter, **settings)


class RelevanceVectorRegressor(_Relevance, Regressor):
    """Regression by a relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    Every coefficient has a prior of its own, whose precision is where the evidence is largest; most
    coefficients vanish. Several targets have prototypes of their own. See `jsparse.RVM`.

    Args:
        max_prototypes: that a machine may have.
        candidates: rows, at random, that may be prototypes; None for all.
        max_iter: cap on changes of the model.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
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
        prototypes_: the relevance vectors, shape `(m, n_features)`, in the units of the inputs.
        dual_coef_: shape `(m,)`, or with several problems a column for each.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        cv_error_: its cross-validated error.
        n_iter_: number of evaluations in the search.
        tuning_history_: all of them.
        n_features_in_: number of columns.
        feature_names_in_: their names, if they had any.
    """

    def __init__(
        self,
        max_prototypes: int = 100,
        *,
        candidates: int | None = None,
        max_iter: int = MAX_ITERATIONS,
        kernel: str | Kernel = "rbf",
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
    ) -> None:
        self.max_prototypes = max_prototypes
        self.candidates = candidates
        self.max_iter = max_iter
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

    _likelihood = "normal"


class RelevanceVectorClassifier(_Relevance, Classifier):
    """Classification by a relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    As `RelevanceVectorRegressor`, with the logistic likelihood in Laplace's approximation.

    Args:
        max_prototypes: that a machine may have.
        candidates: rows, at random, that may be prototypes; None for all.
        max_iter: cap on changes of the model.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes.
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
        prototypes_: the relevance vectors, shape `(m, n_features)`, in the units of the inputs.
        dual_coef_: shape `(m,)`, or with several problems a column for each.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        cv_error_: its cross-validated error.
        n_iter_: number of evaluations in the search.
        tuning_history_: all of them.
        n_features_in_: number of columns.
        feature_names_in_: their names, if they had any.
    """

    def __init__(
        self,
        max_prototypes: int = 100,
        *,
        candidates: int | None = None,
        max_iter: int = MAX_ITERATIONS,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
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
        self.max_iter = max_iter
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
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

    _likelihood = "logistic"
