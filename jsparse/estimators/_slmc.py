"""Sparse large margin classifiers as a scikit-learn estimator."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..kernels import Kernel
from ..machines.slmc import SLMC
from ..search.strategies import Search
from ._base import Classifier


class SparseLargeMarginClassifier(Classifier):
    """Classification by a support vector machine of few prototypes, found by descent (Wu 2006).

    Prototypes are points that need be no rows: a descent moves them to where the objective of the
    support vector machine in their span is least. The kernel is tuned for the machine of the points
    that the descent starts from, see `jsparse.SLMC`.

    Args:
        n_prototypes: their number, at most as many as rows; "auto" for a third of the rows, at most
            20.
        selection: what the descent starts from: "k_means", or rows by "renyi" or "uniform".
        sharing: with more than two classes, "shared" for prototypes that all problems have in
            common, "separate" for `n_prototypes` of each problem.
        loss: "hinge" or "squared_hinge".
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        C: "auto" or a number.
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes.
        class_weight: None, "balanced" or a mapping from labels to factors.
        cv: number of folds, a splitter or a list of splits.
        search: "profile" or "annealing".
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

    Attributes:
        classes_: labels in sorted order.
        prototypes_: shape `(m, n_features)`, in the units of the inputs.
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
        n_prototypes: int | str = "auto",
        *,
        selection: str = "k_means",
        sharing: str = "shared",
        loss: str = "hinge",
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        C: float | str = "auto",
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
        self.n_prototypes = n_prototypes
        self.selection = selection
        self.sharing = sharing
        self.loss = loss
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.C = C
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def make_method(self, n: int, classes: int) -> SLMC:
        m = self.n_prototypes
        if isinstance(m, str):
            if m != "auto":
                raise ValueError(f"n_prototypes: expected 'auto' or a number, got {m!r}")
            m = max(classes, min(SLMC.usual_prototypes, -(-n // 3)))
        settings: Any = {"selection": self.selection, "sharing": self.sharing, "loss": self.loss}
        return SLMC(n_prototypes=m, **settings)
