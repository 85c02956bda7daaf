"""SCDP-FSLSSVM as scikit-learn estimators."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.scdp import Selection, SparsePath
from ..scaling import Standardization
from ..search.tune import Method
from ..training.path import PATH_C, PATH_TOLERANCE, TrainedPath, train_path
from ._base import Classifier, Machine, Regressor


class SparseMachine(Machine):
    """A path of machines of every size, and one of them chosen."""

    max_prototypes: int | None
    candidates: Any
    candidate_method: str
    subset: Any
    selection: Selection
    tolerance: float

    _path: tuple[SparsePath, Standardization]

    def _options(self, n: int, classes: int) -> dict[str, Any]:
        own = {"selection": self.selection} if isinstance(self, Classifier) else {}
        return {
            "max_prototypes": self.max_prototypes,
            "candidates": self.candidates,
            "candidate_method": self.candidate_method,
            "subset": self.subset,
            "tolerance": self.tolerance,
            **own,
        }

    def _train(self, X: np.ndarray, y: np.ndarray, **options: Any) -> TrainedPath:
        C, _ = options.pop("C"), options.pop("classes")
        trained = train_path(X, y, C=PATH_C if C is None else C, **options)
        self._check(trained)
        self._path = trained.path, trained.scaling
        self.n_prototypes_ = trained.n_prototypes
        self.errors_ = trained.errors
        self.standard_errors_ = trained.standard_errors
        return trained

    def expansion_at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes; takes raw inputs.

        Raises:
            ValueError: if the path is not that long.
        """
        check_is_fitted(self)
        self._wake()
        path, scaling = self._path
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            return dataclasses.replace(path.at(n_prototypes), scaling=scaling)


class SCDPClassifier(SparseMachine, Classifier):
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
        C: "auto" or a number.
        multiclass: "one_versus_rest", "minimum_output" or a matrix of codes without zeros.
        selection: of the problems of more than two classes: "joint", the same prototypes for all,
            or "separate".
        class_weight: None, "balanced" or a mapping from labels to factors.
        cv: number of folds; "auto" for 10, or as many as there are rows.
        search: "profile" or "csa", see `jsparse.tune`.
        max_evaluations: budget of the search; None for its default.
        random_state: int, RandomState or None.

    Attributes:
        classes_: labels in sorted order.
        n_prototypes_: the size chosen.
        errors_: cross-validated mean squared error with 1, 2, .. prototypes.
        standard_errors_: of those, from their spread over the folds.
        prototypes_: shape `(n_prototypes_, n_features)`, in the units of the inputs.
        dual_coef_: shape `(n_prototypes_,)`, or with more than two classes a column per problem.
        intercept_: one number per problem.
        expansion_: the model, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C.
        cv_error_: its cross-validated error.
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
        candidate_method: str = "k_center",
        subset: int | str | None = None,
        tolerance: float = PATH_TOLERANCE,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        C: float | str = "auto",
        multiclass: Any = "one_versus_rest",
        selection: Selection = "joint",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: int | str = "auto",
        search: Method = "profile",
        max_evaluations: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.subset = subset
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.C = C
        self.multiclass = multiclass
        self.selection = selection
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.random_state = random_state


class SCDPRegressor(SparseMachine, Regressor):
    """Regression by a kernel machine as small as cross-validation lets it be.

    See `SCDPClassifier` for parameters and attributes.
    """

    def __init__(
        self,
        max_prototypes: int | None = None,
        *,
        candidates: Any = None,
        candidate_method: str = "k_center",
        subset: int | str | None = None,
        tolerance: float = PATH_TOLERANCE,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        C: float | str = "auto",
        cv: int | str = "auto",
        search: Method = "profile",
        max_evaluations: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.max_prototypes = max_prototypes
        self.candidates = candidates
        self.candidate_method = candidate_method
        self.subset = subset
        self.tolerance = tolerance
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.C = C
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.random_state = random_state
