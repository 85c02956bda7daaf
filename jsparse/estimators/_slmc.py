"""Machines of few prototypes found by descent as scikit-learn estimators (Wu et al. 2006)."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from .._arguments import numbers
from ..data.frames import EncodedFrame
from ..kernels import RBF, Kernel
from ..machines.direct import MAX_ITERATIONS
from ..machines.few_prototypes import DirectMethod
from ..machines.method import Method, Task
from ..machines.reduced_set import ReducedSetSVM
from ..machines.slmc import SLMC
from ..machines.sparse_fisher import SparseFisher
from ..machines.sparse_ridge import SparseRidge
from ..search.strategies import Search
from ..training.choices import make_kernel
from ..training.trained import Trained
from ._base import Classifier, Machine, Regressor
from ._inputs import Categories
from ._sklearn import SVC


class _FewPrototypes(Machine):
    """A number of prototypes that is given, or a part of a support vector machine's."""

    n_prototypes: int | float | str
    _support: float  # support vectors of a machine of two classes, in the mean

    def _fit(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: Any,
        task: Task,
        table: EncodedFrame | None = None,
        **options: Any,
    ) -> Trained:
        m = self.n_prototypes
        if isinstance(m, float):
            if not 0 < m < 1:
                raise ValueError(
                    "n_prototypes: expected a whole number, a part between 0 and 1 or 'auto', got "
                    f"{m!r}"
                )
            self._check_parameters()
            self._support = self._support_vectors(X, y, sample_weight)
        return super()._fit(X, y, sample_weight, task, table, **options)

    def _support_vectors(self, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> float:
        w = np.ones(len(X)) if sample_weight is None else numbers("sample_weight", sample_weight)
        X, y, w = X[w > 0].astype(float), y[w > 0], w[w > 0]
        mean = np.average(X, axis=0, weights=w)
        spread = np.sqrt(np.average(np.square(X - mean), axis=0, weights=w))
        X = (X - mean) / np.where(spread > 0, spread, 1)
        d = X.shape[1]
        given = self._kernel(d)
        kernel = RBF(math.sqrt(d / 2)) if isinstance(given, str) else make_kernel(given, d)
        with jax.enable_x64(True):
            gram = np.asarray(kernel.gram(jax.device_put(X)))
        C = 1.0 if isinstance(self.C, str) else self.C
        classes = np.unique(y)
        counts = [
            len(SVC(C=C, kernel="precomputed").fit(gram, y == k, w).support_)
            for k in (classes[1:] if len(classes) == 2 else classes)
        ]
        return float(np.mean(counts))

    def _count(self) -> int | None:
        m = self.n_prototypes
        if isinstance(m, str):
            if m != "auto":
                raise ValueError(f"n_prototypes: expected 'auto' or a number, got {m!r}")
            return None
        return max(1, round(m * self._support)) if isinstance(m, float) else m


class SparseLargeMarginClassifier(_FewPrototypes, Classifier):
    """Classification by a support vector machine of few prototypes, found by descent (Wu 2006).

    Prototypes are points that need be no rows: a descent moves them to where the objective of the
    support vector machine in their span is least. The kernel is tuned for the machine of the points
    that the descent starts from, see `jsparse.SLMC`.

    Args:
        n_prototypes: their number, at most as many as rows; "auto" for a third of the rows, at most
            20; or a part between 0 and 1 of the support vectors of scikit-learn's `SVC` with the
            same C and kernel (where these are tuned, with C = 1 and the lengthscale that is the
            root of half the number of columns; of several classes in the mean over one against
            all others).
        selection: what the descent starts from: "k_means", or rows by "renyi" or "uniform".
        starts: descents, of which the lowest end is taken; all but the first start from rows at
            random.
        sharing: with more than two classes, "shared" for prototypes that all problems have in
            common, "separate" for `n_prototypes` of each problem.
        loss: "hinge" or "squared_hinge".
        max_iter: cap on the steps of a descent.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
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
        n_prototypes: int | float | str = "auto",
        *,
        selection: str = "k_means",
        starts: int = 3,
        sharing: str = "shared",
        loss: str = "hinge",
        max_iter: int = MAX_ITERATIONS,
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
        self.selection = selection
        self.starts = starts
        self.sharing = sharing
        self.loss = loss
        self.max_iter = max_iter
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

    _kind: ClassVar[Any] = SLMC

    def make_method(self) -> DirectMethod:
        return self._kind(
            n_prototypes=self._count(),
            selection=self.selection,
            starts=self.starts,
            sharing=self.sharing,
            loss=self.loss,
            max_iterations=self.max_iter,
        )


class SparseFisherClassifier(SparseLargeMarginClassifier):
    """Classification by a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    Prototypes are where the Fisher discriminant in their span has its largest quotient;
    coefficients and intercept are the support vector machine's. All parameters and attributes are
    those of `SparseLargeMarginClassifier`; see `jsparse.SparseFisher`.
    """

    _kind: ClassVar[Any] = SparseFisher


class ReducedSetClassifier(_FewPrototypes, Classifier):
    """Classification by a support vector machine that is simplified afterwards (Burges 1996).

    The whole machine's function is approximated by one of few prototypes, see
    `jsparse.ReducedSetSVM`; any other expansion is by `jsparse.reduced_set.simplify`.

    Args:
        n_prototypes: see `SparseLargeMarginClassifier`.
        selection: what the descent starts from: "k_means", or rows by "renyi" or "uniform".
        refit: whether the coefficients are those of the support vector machine in the span of the
            prototypes (MRS, Wu et al. 2006), in place of the nearest ones.
        loss: "hinge" or "squared_hinge".
        max_iter: cap on the steps of a descent.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
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
        prototypes_: shape `(m, n_features)`, in the units of the inputs.
        dual_coef_: shape `(m,)`, or with several problems a column for each.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
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
        n_prototypes: int | float | str = "auto",
        *,
        selection: str = "k_means",
        refit: bool = False,
        loss: str = "hinge",
        max_iter: int = MAX_ITERATIONS,
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
        self.selection = selection
        self.refit = refit
        self.loss = loss
        self.max_iter = max_iter
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

    def make_method(self) -> Method:
        settings: Any = {"selection": self.selection, "loss": self.loss}
        m = self._count()
        return ReducedSetSVM(m, refit=self.refit, max_iterations=self.max_iter, **settings)


class SparseKernelRidgeRegressor(Regressor):
    """Kernel ridge regression with few prototypes, found by descent (Wu et al. 2006).

    Prototypes are points that need be no rows. The kernel is tuned for the fixed-size LS-SVM of
    those that the descent starts from, see `jsparse.SparseRidge`.

    Args:
        n_prototypes: their number, at most as many as rows; "auto" for a third of the rows, at most
            20.
        selection: what the descent starts from: "k_means", or rows by "renyi" or "uniform".
        starts: descents, of which the lowest end is taken; all but the first start from rows at
            random.
        sharing: of several targets, "shared" for prototypes that all have in common, "separate" for
            `n_prototypes` of each.
        max_iter: cap on the steps of a descent.
        kernel: of two points.
        lengthscale: "auto", a number, one for each column, or None.
        categories: of a table, "indicators" for a column for each category, or "kernel", which
            compares them, see `jsparse.kernels.Mixed`; not with prototypes that are no rows.
        C: "auto" or a number.
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
        prototypes_: shape `(m, n_features)`, in the units of the inputs.
        dual_coef_: shape `(m,)`, or with several problems a column for each.
        intercept_: one number per problem.
        model_: the model that is deployed, a `jsparse.Model`.
        expansion_: its machine, a `KernelExpansion`.
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
        n_prototypes: int | str = "auto",
        *,
        selection: str = "k_means",
        starts: int = 3,
        sharing: str = "shared",
        max_iter: int = MAX_ITERATIONS,
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
        self.selection = selection
        self.starts = starts
        self.sharing = sharing
        self.max_iter = max_iter
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

    def make_method(self) -> Method:
        m: int | str | None = self.n_prototypes
        if isinstance(m, str):
            if m != "auto":
                raise ValueError(f"n_prototypes: expected 'auto' or a number, got {m!r}")
            m = None
        settings: Any = {"selection": self.selection, "sharing": self.sharing}
        return SparseRidge(m, starts=self.starts, max_iterations=self.max_iter, **settings)
