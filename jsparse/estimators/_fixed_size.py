"""Fixed-size LS-SVM as scikit-learn estimators."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..kernels import Kernel
from ..tuning.search import Method
from ._base import Classifier, Regressor


def _prototypes(n_prototypes: Any, n: int) -> Any:
    """What "auto" stands for: a third of the rows, at most 300."""
    if not isinstance(n_prototypes, str):
        return n_prototypes
    if n_prototypes != "auto":
        raise ValueError(f"n_prototypes: expected 'auto' or a number, got {n_prototypes!r}")
    return max(1, min(300, -(-n // 3)))


class FixedSizeLSSVMClassifier(Classifier):
    """Classification by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5: inputs are standardised, prototypes are chosen by entropy,
    lengthscale and `C` are tuned by cross-validation.

    Args:
        n_prototypes: "auto" for a third of the rows, at most 300; their number; or several numbers,
            of which cross-validation chooses one, see `jsparse.tune_sizes`.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial") or a `jsparse.kernels` object, in units of standardised inputs.
        lengthscale: "auto" to tune the kernel; a number, or one for each column, to set it; None to
            take a kernel object as it is.
        C: "auto" to tune the weight of the data fit, or a number.
        selection: of prototypes, "renyi" or "uniform".
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes.
        loss: "squared", or "absolute" or "huber".
        class_weight: None, "balanced" or a mapping from labels to factors.
        cv: number of folds; "auto" for 10, or as many as there are rows.
        search: "profile" or "csa", see `jsparse.tune`.
        max_evaluations: budget of the search; None for its default.
        random_state: int, RandomState or None.

    Attributes:
        classes_: labels in sorted order.
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: their rows.
        dual_coef_: shape `(n_prototypes,)`, or with more than two classes a column per problem.
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
        n_prototypes: int | str | Sequence[int] = "auto",
        *,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        C: float | str = "auto",
        selection: str = "renyi",
        multiclass: Any = "one_versus_rest",
        loss: str = "squared",
        class_weight: str | Mapping[Any, float] | None = None,
        cv: int | str = "auto",
        search: Method = "profile",
        max_evaluations: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_prototypes = n_prototypes
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.C = C
        self.selection = selection
        self.multiclass = multiclass
        self.loss = loss
        self.class_weight = class_weight
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.random_state = random_state

    def _options(self, n: int) -> dict[str, Any]:
        m = _prototypes(self.n_prototypes, n)
        return {"n_prototypes": m, "selection": self.selection, "loss": self.loss}


class FixedSizeLSSVMRegressor(Regressor):
    """Regression by a fixed-size LS-SVM; see `FixedSizeLSSVMClassifier` for the parameters.

    `loss` is "squared", or "absolute" or "huber" for targets with outliers.

    Attributes:
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: their rows.
        dual_coef_: shape `(n_prototypes,)`.
        intercept_: a number.
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
        n_prototypes: int | str | Sequence[int] = "auto",
        *,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        C: float | str = "auto",
        selection: str = "renyi",
        loss: str = "squared",
        cv: int | str = "auto",
        search: Method = "profile",
        max_evaluations: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_prototypes = n_prototypes
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.C = C
        self.selection = selection
        self.loss = loss
        self.cv = cv
        self.search = search
        self.max_evaluations = max_evaluations
        self.random_state = random_state

    def _options(self, n: int) -> dict[str, Any]:
        m = _prototypes(self.n_prototypes, n)
        return {"n_prototypes": m, "selection": self.selection, "loss": self.loss}
