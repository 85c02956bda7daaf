"""One estimator for each method and task, and two that take any method."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import numpy as np

from .._arguments import numbers
from ..data.frames import EncodedFrame
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
from ..machines.method import Shape, Task
from ..search.recursive import Recursive
from ..search.strategies import Profile, Search
from ..training.choices import make_kernel
from ..training.presets import Preset
from ..training.trained import Trained
from ._base import Classifier, Machine, Regressor
from ._declaration import Parameter, shared_parameter
from ._partial_fit import MoreRowsClassifier, MoreRowsRegressor
from ._sklearn import SVC, check_is_fitted


class _AnyMethod(Machine):
    """An estimator whose method is a parameter; `method__x` is the method's setting `x`."""

    method: Method | None
    preset: Preset | None
    n_prototypes: int | None

    def make_method(self) -> Method:
        """Return the parameter `method`."""
        if not isinstance(self.method, Method):
            raise ValueError(f"method: expected one such as FixedSize(100), got {self.method!r}")
        return self.method

    def _settings(self, shape: Shape) -> dict[str, Any]:
        choice = {"preset": self.preset, "n_prototypes": self.n_prototypes}
        if self.method is not None:
            return choice | super()._settings(shape)
        kernel, search = self._kernel(shape.d), self._search()
        return choice | {"kernel": kernel, "search": search, "columns": self.columns}

    def _search(self) -> Search | None:
        if self.search is not None:
            return super()._search()
        limits = self.max_evaluations is not None or self.warm_start
        if not limits and isinstance(self.lengthscale, str):
            return None  # `train` has a default
        learns = self.preset not in (None, "fast") if self.method else self.preset != "fast"
        return self._limited(Recursive() if learns else Profile())

    def _kernel_name(self) -> Any:
        return "rbf" if self.kernel is None else self.kernel

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep`, the method's settings as `method__x` too."""
        params = super().get_params(deep=False)
        method = self.method
        if deep and dataclasses.is_dataclass(method):  # `make_method` refuses all others
            names = [field.name for field in dataclasses.fields(method)]
            params |= {f"method__{name}": getattr(method, name) for name in names}
        return params

    def set_params(self, **params: Any) -> "_AnyMethod":
        """Set parameters by name; `method__x=value` replaces the method by one with that setting.

        Raises:
            ValueError: for a name that is no parameter, or a setting without a method.
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


_CHOICES = (
    Parameter(
        "method",
        None,
        "Method | None",
        "the method with its settings, such as `jsparse.SCDP(max_prototypes=50)`; None for what "
        "the preset chooses. `set_params` and grid searches reach its settings as `method__x`.",
    ),
    Parameter(
        "preset",
        None,
        'Literal["fast", "balanced", "accurate"] | None',
        "how much time the choice of what is None may take, see `jsparse.train`: None for "
        '"balanced" without a method, and for "fast" with one.',
    ),
    Parameter(
        "n_prototypes",
        None,
        "int | None",
        "distil the machine of the preset to at most so many prototypes; only without a method.",
    ),
    *(
        shared_parameter(name).optional(note)
        for name, note in (
            ("kernel", '"rbf" with a method, else by the preset.'),
            ("columns", '"standard" with a method, else by the preset.'),
            ("search", '"profile" with a method, else by the preset.'),
        )
    ),
)


class KernelMachineClassifier(_AnyMethod, Classifier, parameters=_CHOICES):
    """Classification by any method, or by the method and settings that suit the rows."""


class KernelMachineRegressor(_AnyMethod, Regressor, parameters=_CHOICES):
    """Regression by any method, or by the method and settings that suit the rows."""


class FixedSizeLSSVMClassifier(MoreRowsClassifier, method=FixedSize):
    """Classification by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5: inputs are standardised, prototypes are chosen by entropy,
    lengthscale and `C` are tuned by cross-validation. `partial_fit` adds rows; for it a fitted
    machine keeps two arrays of `n_prototypes` squared numbers, and where problems leave classes
    out, as in "one_versus_one", one and another for every class.
    """


class FixedSizeLSSVMRegressor(MoreRowsRegressor, method=FixedSize):
    """Regression by a fixed-size LS-SVM: ridge regression on features of few prototypes.

    De Brabanter 2010, Algorithm 5. `partial_fit` adds rows; for it a fitted machine keeps two
    arrays of `n_prototypes` squared numbers.
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

    Memory grows with the square of the number of rows; for more than some thousands take
    `FixedSizeLSSVMClassifier`. Tuned by leave-one-out, which one decomposition gives for every `C`.
    """

    cv = "auto"


class LSSVMRegressor(Regressor, method=Dual, omitted=("cv",)):
    """Regression by an LS-SVM: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows; for more than some thousands take
    `FixedSizeLSSVMRegressor`. Tuned by leave-one-out, which one decomposition gives for every `C`.
    """

    cv = "auto"


class _Path(Machine):
    """An estimator whose model has machines of several sizes."""

    def expansion_at(self, n_prototypes: int) -> KernelExpansion:
        """Return the machine with `n_prototypes` prototypes; it takes raw inputs.

        Raises:
            ValueError: if there is no machine of this size.
        """
        check_is_fitted(self)
        self._wake()
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            return self.model_.at(n_prototypes).expansion


class SCDPClassifier(_Path, Classifier, method=SCDP):
    """Classification by a kernel machine as small as cross-validation lets it be.

    SCDP-FSLSSVM of Karsmakers 2011: prototypes are selected out of candidates one after another,
    each by the residual, and cross-validation of the whole path chooses how many to keep.
    """


class SCDPRegressor(_Path, Regressor, method=SCDP):
    """Regression by a kernel machine as small as cross-validation lets it be (Karsmakers 2011)."""


class SpSVMClassifier(_Path, Classifier, method=SpSVM):
    """Classification by a support vector machine of few prototypes (Keerthi et al. 2006).

    Prototypes are selected out of candidates one after another, each by its effect on the squared
    hinge loss. Cross-validation chooses how many to keep.
    """


class SparseReducedLSSVMClassifier(Classifier, method=SparseReduction):
    """Classification by an LS-SVM that is pruned (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. Of several values of
    `C` the estimator takes the one with the fewest prototypes whose error cross-validation cannot
    tell from the best.
    """


class SparseReducedLSSVMRegressor(Regressor, method=SparseReduction):
    """Regression by an LS-SVM that is pruned (Mall and Suykens 2015, Algorithms 3 and 4).

    Iteratively reweighted ridge regression drives most coefficients to zero. Several targets share
    their prototypes.
    """


class KernelSubspacePursuitClassifier(_Path, Classifier, method=KSP, omitted=("subset",)):
    """Classification by kernel subspace pursuit (Kabbara 2015), on targets -1 and +1."""


class KernelSubspacePursuitRegressor(_Path, Regressor, method=KSP, omitted=("subset",)):
    """Regression by kernel subspace pursuit (Kabbara 2015).

    Exactly K prototypes are selected, and exchanged until the error stops falling. Cross-validation
    chooses K.
    """


class KernelMatchingPursuitClassifier(_Path, Classifier, method=KMP):
    """Classification by kernel matching pursuit (Vincent and Bengio 2002), on -1 and +1."""


class KernelMatchingPursuitRegressor(_Path, Regressor, method=KMP):
    """Regression by kernel matching pursuit (Vincent and Bengio 2002)."""


class KernelBasisPursuitClassifier(_Path, Classifier, method=KBP, omitted=("subset",)):
    """Classification by kernel basis pursuit (Guigue et al. 2005), on targets -1 and +1."""


class KernelBasisPursuitRegressor(_Path, Regressor, method=KBP, omitted=("subset",)):
    """Regression by kernel basis pursuit (Guigue et al. 2005)."""


class RelevanceVectorClassifier(Classifier, method=RVM, omitted=("likelihood",)):
    """Classification by a relevance vector machine (Tipping 2001; Tipping and Faul 2003)."""


class RelevanceVectorRegressor(Regressor, method=RVM, omitted=("likelihood",)):
    """Regression by a relevance vector machine (Tipping 2001; Tipping and Faul 2003)."""


class _ShareOfSupportVectors(Classifier):
    """A classifier whose `n_prototypes` may be a share of a support vector machine's."""

    parameter_notes: ClassVar[dict[str, str]] = {
        "n_prototypes": "Or a share between 0 and 1 of the support vectors of scikit-learn's `SVC` "
        "with the same C and kernel. Where these are tuned, C is 1 and the lengthscale the root of "
        "half the number of columns. With several classes the share is of the mean over one "
        "against the rest."
    }

    n_prototypes: Any
    _n_support: float  # support vectors of a machine of two classes, the mean over machines

    def _fit(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: Any,
        task: Task,
        table: EncodedFrame | None = None,
        **options: Any,
    ) -> Trained:
        if isinstance(self.n_prototypes, float):
            if not 0 < self.n_prototypes < 1:
                raise ValueError(
                    "n_prototypes: expected a whole number, or a share between 0 and 1 of the "
                    f"support vectors, got {self.n_prototypes!r}"
                )
            self._check_parameters()
            self._n_support = self._support_vectors(X, y, sample_weight)
        return super()._fit(X, y, sample_weight, task, table, **options)

    def make_method(self) -> Method:
        """See `Machine.make_method`."""
        if not isinstance(self.n_prototypes, float):
            return super().make_method()
        settings = self._method_settings()
        settings["n_prototypes"] = max(1, round(self.n_prototypes * self._n_support))
        return type(self).method_class(**settings)

    def _support_vectors(self, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> float:
        w = np.ones(len(X)) if sample_weight is None else numbers("sample_weight", sample_weight)
        X, y, w = X[w > 0].astype(float), y[w > 0], w[w > 0]
        mean = np.average(X, axis=0, weights=w)
        spread = np.sqrt(np.average(np.square(X - mean), axis=0, weights=w))
        X = (X - mean) / np.where(spread > 0, spread, 1)
        d = X.shape[1]
        kernel_like = self._kernel(d)
        assert kernel_like is not None, "`_check_parameters` refuses None"
        untuned = isinstance(kernel_like, str)
        kernel = RBF(math.sqrt(d / 2)) if untuned else make_kernel(kernel_like, d)
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

    A descent moves the prototypes, which need not be rows, to where the objective of the support
    vector machine in their span is least.
    """


class SparseFisherClassifier(_ShareOfSupportVectors, method=SparseFisher):
    """Classification by a sparse kernel Fisher discriminant (Wu et al. 2006, Appendix A).

    A descent moves the prototypes to where the Fisher discriminant in their span has its largest
    quotient. Coefficients and intercept are the support vector machine's.
    """


class ReducedSetClassifier(_ShareOfSupportVectors, method=ReducedSetSVM, omitted=("starts",)):
    """Classification by a support vector machine that is simplified afterwards (Burges 1996).

    The function of the whole machine is approximated by one of few prototypes;
    `jsparse.reduced_set.simplify` does the same for any other expansion.
    """


class ReducedSVMClassifier(_ShareOfSupportVectors, method=ReducedSVM, omitted=("starts",)):
    """Classification by a support vector machine in the span of given points (Wu et al. 2006)."""


class SparseKernelRidgeRegressor(Regressor, method=SparseRidge):
    """Kernel ridge regression with few optimised prototypes (Wu et al. 2006).

    A descent moves the prototypes, which need not be rows.
    """
