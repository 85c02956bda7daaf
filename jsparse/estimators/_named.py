"""One estimator for each method and task, and two estimators for any method."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import numpy as np

from .._arguments import numbers
from ..expansion import KernelExpansion
from ..kernels import RBF
from ..machines import (
    KBP,
    KMP,
    KSP,
    RVM,
    SCDP,
    SLMC,
    Dual,
    FixedSize,
    Method,
    ReducedSetSVM,
    ReducedSVM,
    Robust,
    SparseFisher,
    SparseReduction,
    SparseRidge,
    SpSVM,
)
from ..search.recursive import Recursive
from ..search.strategies import Profile, Search
from ..training.choices import make_kernel
from ..training.inputs import WeightedRows
from ..training.presets import Preset
from ..training.trained import Trained
from ._base import Classifier, Machine, Regressor
from ._declaration import Parameter, SharedParameters, parameters_of
from ._folds import FoldsLike
from ._partial_fit import MoreRowsClassifier, MoreRowsRegressor
from ._sklearn import SVC, check_is_fitted


class _WithMethodParameter(Machine):
    """An estimator whose method is a parameter; `method__x` is the method's setting `x`."""

    method: Method | None
    preset: Preset | None
    n_prototypes: int | None

    def make_method(self) -> Method:
        """Return the parameter `method`."""
        if not isinstance(self.method, Method):
            raise ValueError(f"method: expected one such as FixedSize(100), got {self.method!r}")
        return self.method

    def _settings(
        self, weighted: WeightedRows, folds: FoldsLike, d: int, classes: int | None
    ) -> dict[str, Any]:
        settings = {"preset": self.preset, "n_prototypes": self.n_prototypes}
        if self.method is not None:
            return settings | super()._settings(weighted, folds, d, classes)
        kernel, search = self._kernel(d), self._search()
        return settings | {"kernel": kernel, "search": search, "columns": self.columns}

    def _search(self) -> Search | None:
        """Return the search with the limits of the parameters; None to let `train` choose it."""
        if self.search is not None:
            return super()._search()
        has_limits = self.max_evaluations is not None or self.warm_start
        if not has_limits and isinstance(self.lengthscale, str):
            return None  # `train` chooses the search
        fast = self.preset == "fast" or (self.preset is None and self.method is not None)
        return self._limited_search(Profile() if fast else Recursive())

    def _kernel_name(self) -> Any:
        return "rbf" if self.kernel is None else self.kernel

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep`, the method's settings as `method__x` too."""
        params = super().get_params(deep=False)
        method = self.method
        if deep and dataclasses.is_dataclass(method):  # `make_method` raises for other objects
            names = [field.name for field in dataclasses.fields(method)]
            params |= {f"method__{name}": getattr(method, name) for name in names}
        return params

    def set_params(self, **params: Any) -> "_WithMethodParameter":
        """Set parameters by name; `method__x=value` changes the setting `x` of the method.

        Raises:
            ValueError: for an unknown name, or for `method__x` if `method` is None.
        """
        settings = {name: params.pop(name) for name in [*params] if name.startswith("method__")}
        super().set_params(**params)
        if not settings:
            return self
        method = self.make_method()
        changes = {name.removeprefix("method__"): value for name, value in settings.items()}
        known = [field.name for field in dataclasses.fields(method)]
        for name in changes.keys() - {*known}:
            raise ValueError(
                f"method__{name}: expected a setting of {type(method).__name__}, one of {known}"
            )
        self.method = dataclasses.replace(method, **changes)
        return self


_SHARED = parameters_of(SharedParameters)
_METHOD_PARAMETERS = (
    Parameter(
        "method",
        None,
        "Method | None",
        "the method with its settings, such as `jsparse.SCDP(max_prototypes=50)`; None for the "
        "choice of the preset. `set_params` and grid searches reach its settings as `method__x`.",
    ),
    Parameter(
        "preset",
        None,
        'Literal["fast", "balanced", "accurate"] | None',
        "the settings to use where `method`, `kernel`, `columns` or `search` is None, see "
        '`jsparse.train`. None for "balanced" without a method, and for "fast" with one.',
    ),
    Parameter(
        "n_prototypes",
        None,
        "int | None",
        "distil the machine of the preset to at most this number of prototypes; only without a "
        "method.",
    ),
    _SHARED["kernel"].optional('"rbf" with a method, else the choice of the preset.'),
    _SHARED["columns"].optional('"standard" with a method, else the choice of the preset.'),
    _SHARED["search"].optional('"profile" with a method, else the choice of the preset.'),
)


class KernelMachineClassifier(_WithMethodParameter, Classifier, parameters=_METHOD_PARAMETERS):
    """Classification by any method, or by the method and settings of a preset."""


class KernelMachineRegressor(_WithMethodParameter, Regressor, parameters=_METHOD_PARAMETERS):
    """Regression by any method, or by the method and settings of a preset."""


class FixedSizeLSSVMClassifier(MoreRowsClassifier, method=FixedSize):
    """Classification by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5: inputs are standardised, prototypes are chosen by entropy, and
    lengthscale and `C` are tuned by cross-validation. `partial_fit` adds rows. For `partial_fit`, a
    fitted machine keeps two arrays of `n_prototypes` squared numbers. If binary problems leave out
    classes, as in "one_versus_one", it keeps one such array for every class, and one more.
    """


class FixedSizeLSSVMRegressor(MoreRowsRegressor, method=FixedSize):
    """Regression by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5. `partial_fit` adds rows. For `partial_fit`, a fitted machine
    keeps two arrays of `n_prototypes` squared numbers.
    """


class RobustLSSVMClassifier(Classifier, method=Robust, omitted=("quantile",)):
    """Classification by a fixed-size machine with a robust loss (De Brabanter 2010, eq. 6)."""


class RobustLSSVMRegressor(Regressor, method=Robust):
    """Regression for targets with outliers (De Brabanter 2010, eq. 6), and quantile regression.

    With several quantiles, `predict` returns a column for each, in increasing order at every row;
    `score` takes one quantile only.
    """


class LSSVMClassifier(Classifier, method=Dual, omitted=("cv",)):
    """Classification by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands of rows take
    `FixedSizeLSSVMClassifier`. Kernel and `C` are tuned by leave-one-out. One decomposition gives
    the leave-one-out errors for every `C`.
    """

    cv = "auto"


class LSSVMRegressor(Regressor, method=Dual, omitted=("cv",)):
    """Regression by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands of rows take
    `FixedSizeLSSVMRegressor`. Kernel and `C` are tuned by leave-one-out. One decomposition gives
    the leave-one-out errors for every `C`.
    """

    cv = "auto"


class _SeveralSizes(Machine):
    """An estimator whose model has machines of several sizes."""

    def expansion_at(self, n_prototypes: int) -> KernelExpansion:
        """Return the machine with `n_prototypes` prototypes, which takes raw inputs.

        Raises:
            ValueError: if there is no machine of this size.
        """
        check_is_fitted(self)
        self._restore_jax_arrays()
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            return self.model_.at(n_prototypes).expansion


class SCDPClassifier(_SeveralSizes, Classifier, method=SCDP):
    """Classification by a sparse LS-SVM whose size cross-validation chooses (Karsmakers 2011).

    SCDP-FSLSSVM: prototypes are selected out of candidates one after another, each by the residual.
    Cross-validation of the whole path chooses the number of prototypes.
    """


class SCDPRegressor(_SeveralSizes, Regressor, method=SCDP):
    """Regression by a sparse LS-SVM whose size cross-validation chooses (Karsmakers 2011)."""


class SpSVMClassifier(_SeveralSizes, Classifier, method=SpSVM):
    """Classification by a support vector machine of few prototypes (Keerthi et al. 2006).

    Prototypes are selected out of candidates one after another, each by its effect on the squared
    hinge loss. Cross-validation chooses the number of prototypes.
    """


class SparseReducedLSSVMClassifier(Classifier, method=SparseReduction):
    """Classification by a pruned LS-SVM (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. A smaller `C` leaves
    fewer prototypes, so the estimator takes the smallest `C` whose cross-validated error is within
    `size_tolerance` standard errors of the lowest.
    """


class SparseReducedLSSVMRegressor(Regressor, method=SparseReduction):
    """Regression by a pruned LS-SVM (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. Several targets share
    their prototypes. `C` is chosen as in `SparseReducedLSSVMClassifier`.
    """


class KernelSubspacePursuitClassifier(_SeveralSizes, Classifier, method=KSP, omitted=("subset",)):
    """Classification by kernel subspace pursuit (Kabbara 2015), on targets -1 and +1."""


class KernelSubspacePursuitRegressor(_SeveralSizes, Regressor, method=KSP, omitted=("subset",)):
    """Regression by kernel subspace pursuit (Kabbara 2015).

    Exactly K prototypes are selected, and exchanged until the error stops decreasing.
    Cross-validation chooses K.
    """


class KernelMatchingPursuitClassifier(_SeveralSizes, Classifier, method=KMP):
    """Classification by kernel matching pursuit (Vincent and Bengio 2002), on targets -1 and +1.

    Prototypes are selected one after another. Cross-validation chooses their number.
    """


class KernelMatchingPursuitRegressor(_SeveralSizes, Regressor, method=KMP):
    """Regression by kernel matching pursuit (Vincent and Bengio 2002).

    Prototypes are selected one after another. Cross-validation chooses their number.
    """


class KernelBasisPursuitClassifier(_SeveralSizes, Classifier, method=KBP, omitted=("subset",)):
    """Classification by kernel basis pursuit (Guigue et al. 2005), on targets -1 and +1."""


class KernelBasisPursuitRegressor(_SeveralSizes, Regressor, method=KBP, omitted=("subset",)):
    """Regression by kernel basis pursuit (Guigue et al. 2005)."""


class RelevanceVectorClassifier(Classifier, method=RVM, omitted=("likelihood",)):
    """Classification by a relevance vector machine (Tipping 2001; Tipping and Faul 2003)."""


class RelevanceVectorRegressor(Regressor, method=RVM, omitted=("likelihood",)):
    """Regression by a relevance vector machine (Tipping 2001; Tipping and Faul 2003)."""


class _ShareOfSupportVectors(Classifier):
    """A classifier whose `n_prototypes` may be a fraction of the number of support vectors."""

    parameter_notes: ClassVar[dict[str, str]] = {
        "n_prototypes": "Or a fraction between 0 and 1 of the support vectors of scikit-learn's "
        "`SVC` with the same C and kernel. If C is tuned, `SVC` has C = 1. If the lengthscale of "
        "a kernel name is tuned, `SVC` has an RBF kernel, whose lengthscale is the square root of "
        "half the number of columns. With several classes, the number of support vectors is the "
        "mean over the one-versus-rest problems."
    }

    n_prototypes: Any
    _n_support: float  # mean number of support vectors of the binary problems

    def _fit(
        self, X: np.ndarray, y: np.ndarray, sample_weight: Any, *more: Any, **options: Any
    ) -> Trained:
        if isinstance(self.n_prototypes, float):
            if not 0 < self.n_prototypes < 1:
                raise ValueError(
                    "n_prototypes: expected a whole number, or a fraction between 0 and 1 of the "
                    f"support vectors, got {self.n_prototypes!r}"
                )
            self._check_parameters()
            self._n_support = self._count_support_vectors(X, y, sample_weight)
        return super()._fit(X, y, sample_weight, *more, **options)

    def make_method(self) -> Method:
        """Return the method with its settings; a fraction `n_prototypes` becomes a number."""
        if not isinstance(self.n_prototypes, float):
            return super().make_method()
        settings = self._method_settings()
        settings["n_prototypes"] = max(1, round(self.n_prototypes * self._n_support))
        return type(self).method_class(**settings)

    def _count_support_vectors(self, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> float:
        """Return the mean number of support vectors of the binary problems of `SVC`."""
        w = np.ones(len(X)) if sample_weight is None else numbers("sample_weight", sample_weight)
        X, y, w = X[w > 0].astype(float), y[w > 0], w[w > 0]
        mean = np.average(X, axis=0, weights=w)
        deviation = np.sqrt(np.average(np.square(X - mean), axis=0, weights=w))
        X = (X - mean) / np.where(deviation > 0, deviation, 1)
        d = X.shape[1]
        kernel_like = self._kernel(d)
        assert kernel_like is not None, "`_check_parameters` raises for None"
        is_tuned = isinstance(kernel_like, str)
        kernel = RBF(math.sqrt(d / 2)) if is_tuned else make_kernel(kernel_like, d)
        with jax.enable_x64(True):
            gram = np.asarray(kernel.gram(jax.device_put(X)))
        C = 1.0 if isinstance(self.C, str) else self.C
        classes = np.unique(y)
        counts = [
            len(SVC(C=C, kernel="precomputed").fit(gram, y == k, w).support_)
            for k in (classes[1:] if len(classes) == 2 else classes)
        ]
        return float(np.mean(counts))


class SparseLargeMarginClassifier(_ShareOfSupportVectors, method=SLMC):
    """Classification by a support vector machine of few optimised prototypes (Wu et al. 2006).

    A descent moves the prototypes to a minimum of the objective of the support vector machine in
    the span of the prototypes. The prototypes need not be rows.
    """


class SparseFisherClassifier(_ShareOfSupportVectors, method=SparseFisher):
    """Classification by a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    A descent moves the prototypes to a maximum of the Fisher quotient in the span of the
    prototypes. A support vector machine in this span gives the coefficients and the intercept.
    """


class ReducedSetClassifier(_ShareOfSupportVectors, method=ReducedSetSVM, omitted=("starts",)):
    """Classification by a support vector machine that is simplified afterwards (Burges 1996).

    A function of few prototypes approximates the function of the support vector machine.
    `jsparse.reduced_set.simplify` does so for any other expansion.
    """


class ReducedSVMClassifier(_ShareOfSupportVectors, method=ReducedSVM, omitted=("starts",)):
    """Classification by an SVM on prototypes that are chosen before the fit (Wu et al. 2006)."""


class SparseKernelRidgeRegressor(Regressor, method=SparseRidge):
    """Kernel ridge regression with few optimised prototypes (Wu et al. 2006).

    A descent moves the prototypes, which need not be rows.
    """
