"""Fixed-size LS-SVM as scikit-learn estimators."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from .._arguments import labels_of
from .._status import check
from ..kernels import Kernel
from ..machines.fixed_size import FixedSize as FixedSizeMethod
from ..machines.robust import Robust
from ..search.strategies import Search
from ..training.inputs import encoded_targets, row_weights
from ..training.more_rows import with_more_rows
from ._base import Classifier, Machine, Regressor, vector_of
from ._inputs import Categories, checked_targets


class FixedSize(Machine):
    """A machine of few prototypes, whose sums over rows can be added to."""

    n_prototypes: int | str | Sequence[int]
    selection: str
    loss: str
    tuned_with: int | None

    def make_method(self) -> FixedSizeMethod | Robust:
        m = self.n_prototypes
        if isinstance(m, str):
            if m not in ("auto", "curve"):
                raise ValueError(f"n_prototypes: expected 'auto', 'curve' or a number, got {m!r}")
            m = "auto" if m == "curve" else None
        settings: Any = {"n_prototypes": m, "selection": self.selection}
        if self.loss == "squared":
            return FixedSizeMethod(**settings, tuned_with=self.tuned_with)
        if self.loss not in ("absolute", "huber"):
            raise ValueError(f"loss: expected 'squared', 'absolute' or 'huber', got {self.loss!r}")
        if self.tuned_with is not None:
            raise ValueError(f"tuned_with: expected None with the loss {self.loss!r}")
        return Robust(**settings, loss=self.loss)  # type: ignore[arg-type]

    def _is_begun(self) -> bool:
        """Whether there are sums to add to; raises if there never can be."""
        begun = hasattr(self, "model_")
        if self.loss != "squared" or (begun and self._sums is None):
            raise ValueError(
                "partial_fit: expected a machine of the loss 'squared', got another; with that the "
                "weight of every row depends on all the others"
            )
        return begun

    def _add(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> None:
        """Sum more rows and solve again. Nothing is changed unless all of that succeeds."""
        assert self._sums is not None
        method = cast(FixedSizeMethod, self._method)
        model, sums, status = with_more_rows(
            method, self.model_, self._sums, self.C_, X, targets, weights
        )
        check(status, type(self).__name__)
        self._sums = sums
        self._publish(model)


class FixedSizeLSSVMClassifier(FixedSize, Classifier):
    """Classification by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5: inputs are standardised, prototypes are chosen by entropy,
    lengthscale and `C` are tuned by cross-validation. A machine of the loss "squared" keeps what
    `partial_fit` adds to: two arrays of `n_prototypes` squared numbers; where problems leave
    classes out, as in "one_versus_one", one and another for every class.

    Args:
        n_prototypes: "auto" for a third of the rows, at most 300 and at least one for each class;
            their number; or several numbers, of which cross-validation chooses one, see
            `jsparse.tune_sizes`; "curve" for twice as many again and again, up to 2,000, while the
            error falls and seconds are left. Numbers above the number of rows, as small folds have,
            are lowered to it with a warning; so are those of other estimators.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial", or "auto" for the family that does best on a part of the rows) or a
            `jsparse.kernels` object, in units of standardised inputs.
        lengthscale: "auto" to tune the kernel; a number, or one for each column, to set it; None to
            take a kernel object as it is.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" to tune the weight of the data fit, or a number.
        selection: of prototypes, "renyi", "uniform" or "pivoted_cholesky".
        tuned_with: search the kernel with only so many of the prototypes, and fit with all if the
            error is the less for it; with the loss "squared".
        multiclass: "one_versus_rest", "one_versus_one", "minimum_output" or a matrix of codes.
        loss: "squared", or "absolute" or "huber".
        class_weight: None, "balanced" or a mapping from labels to factors.
        cv: number of folds, a splitter, or a list of splits, which hold each row out once; "auto"
            for 10, or as many as there are rows.
        out_of_fold: keep the errors on rows left out, by which probabilities, intervals and sets
            are calibrated; "machines" to keep the machines that made them too, see `jsparse.train`.
        search: "profile", "gradient" (a lengthscale for every column), "annealing", "auto", or a
            `jsparse.Profile`, `jsparse.Gradient` or `jsparse.Annealing`.
        max_evaluations: budget of the search; None for its default.
        max_seconds: no evaluation of the search starts later.
        warm_start: start the search of a further `fit` where the last one ended.
        verbose: 1 to report the progress of the search on standard error.
        random_state: int, RandomState or None.

    Attributes:
        classes_: labels in sorted order.
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: their rows.
        dual_coef_: shape `(n_prototypes,)`, or with more than two classes a column per problem.
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
        n_prototypes: int | str | Sequence[int] = "auto",
        *,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "auto",
        categories: Categories = "indicators",
        C: float | str = "auto",
        selection: str = "renyi",
        tuned_with: int | None = None,
        multiclass: Any = "one_versus_rest",
        loss: str = "squared",
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
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.selection = selection
        self.tuned_with = tuned_with
        self.multiclass = multiclass
        self.loss = loss
        self.class_weight = class_weight
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "FixedSizeLSSVMClassifier":
        """Add rows to a machine: the result is exactly that of one fit to all rows so far.

        Kernel, `C`, prototypes and standardisation stay those of `fit`, or of the first call, which
        does what `fit` does; so does the calibration of probabilities, intervals and sets, but for
        the machines of the folds, which are dropped as they lack the new rows. The order in which
        rows come does not matter.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: class labels, shape `(n_samples,)`.
            classes: all labels that may ever come, for the first call, whose `y` must have two of
                them at least; by default those of its `y`.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself; unchanged if an error is raised once it is fitted.

        Raises:
            ValueError: for other losses than "squared"; for `class_weight="balanced"`, with which
                new rows change the weights of old ones; for labels or columns that were not there.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight: expected None or a mapping for partial_fit, got "
                f"{self.class_weight!r}; new rows would change the weights of old ones"
            )
        if not self._is_begun():
            self._fit_labels(X, y, sample_weight, classes)
            return self
        labels_of("y", y)
        X = self._rows(X)
        y = checked_targets(self, X, y)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes: expected those of the first call, {self.classes_.tolist()}, got "
                f"{np.unique(classes).tolist()}"
            )
        numbers, _ = encoded_targets(y, "classification", self.classes_)
        weights = row_weights(sample_weight, self.class_weight, numbers, self.classes_)
        code = self.model_.code
        targets = 2 * numbers - 1 if code is None else numbers
        self._add(X, targets, weights)
        return self


class FixedSizeLSSVMRegressor(FixedSize, Regressor):
    """Regression by a fixed-size LS-SVM; see `FixedSizeLSSVMClassifier` for the parameters.

    `loss` is "squared", or "absolute" or "huber" for targets with outliers. A fitted machine of
    the loss "squared" keeps what `partial_fit` adds to, two arrays of `n_prototypes` squared.

    Attributes:
        prototypes_: shape `(n_prototypes, n_features)`, in the units of the inputs.
        prototype_indices_: their rows.
        dual_coef_: shape `(n_prototypes,)`.
        intercept_: a number.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
        kernel_: the tuned kernel.
        C_: the tuned C.
        cv_error_: its cross-validated error.
        oob_prediction_: values of each row by machines that have not seen it.
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
        categories: Categories = "indicators",
        C: float | str = "auto",
        selection: str = "renyi",
        tuned_with: int | None = None,
        loss: str = "squared",
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
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.categories = categories
        self.C = C
        self.selection = selection
        self.tuned_with = tuned_with
        self.loss = loss
        self.cv = cv
        self.out_of_fold = out_of_fold
        self.search = search
        self.max_evaluations = max_evaluations
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "FixedSizeLSSVMRegressor":
        """Add rows to a machine: the result is exactly that of one fit to all rows so far.

        See `FixedSizeLSSVMClassifier.partial_fit`.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: targets, shape `(n_samples,)` or `(n_samples, n_targets)`, as in the first call.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself; unchanged if an error is raised once it is fitted.

        Raises:
            ValueError: for other losses than "squared", or for columns or targets that were not
                there.
        """
        if not self._is_begun():
            self.fit(X, y, sample_weight)
            return self
        X = self._rows(X)
        y = vector_of(checked_targets(self, X, y, y_numeric=True, multi_output=True))
        shape = (len(X), *self.intercept_.shape)
        if y.shape != shape:
            raise ValueError(f"y: expected shape {shape}, as in the first call, got {y.shape}")
        weights = None if sample_weight is None else row_weights(sample_weight, None, y, None)
        self._add(X, y, weights)
        return self
