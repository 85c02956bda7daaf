"""Sparse one-class support vector machines as a scikit-learn estimator (Wu et al. 2006)."""

import math
import reprlib
from typing import Any, cast

import jax
import numpy as np

from .._arguments import as_key, numbers, real, whole_number
from .._runtime import check_runtime
from .._status import check
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines import one_class
from ..machines.direct import MAX_ITERATIONS, DirectFit
from ..machines.method import Shape, TrainingRows
from ..machines.slmc import SLMC
from ..scaling import standardize
from ..training.choices import KERNELS
from ..training.inputs import weighted_rows
from ._base import limited_to_rows
from ._inputs import FLOATS, as_table, encoded_rows
from ._sklearn import (
    BaseEstimator,
    OutlierMixin,
    check_is_fitted,
    check_random_state,
    validate_data,
)

# Outside `jit`, `one_class.fit` compiles 50 programs; this is one program. `_programs.compiled` has
# compiler options that would change the rounding of the descents.
_one_class = jax.jit(one_class.fit, static_argnames="max_iterations")


class SparseOneClassSVM(OutlierMixin, BaseEstimator):
    """Outlier detection by a one-class SVM of few prototypes (Wu et al. 2006, Section 4.4).

    A descent moves the prototypes to a minimum of the objective of scikit-learn's `OneClassSVM` in
    the span of the prototypes. Inputs are standardised; nothing is tuned.

    Args:
        n_prototypes: number of prototypes, at most the number of rows with weight; None for a third
            of the rows, at most 20.
        nu: upper limit of the weighted fraction of rows that count as outliers, above 0, below 1.
        starts: number of descents. The first starts from cluster means (k-means), the others from
            random rows. After 20 steps only the descent with the lowest objective goes on.
        max_iter: limit of the steps of a descent.
        kernel: the name of a stationary kernel ("rbf", "laplacian", "matern32", "matern52",
            "rational_quadratic"), or a kernel of standardised inputs.
        lengthscale: lengthscale of a kernel with a name, in units of standardised inputs: a number,
            a number for each column, or "scale" for the square root of half the number of columns.
        random_state: random seed of the starts: int, RandomState or None.

    Attributes:
        prototypes_: shape `(m, n_features)`, in the units of the inputs.
        dual_coef_: shape `(m,)`.
        offset_: threshold of `score_samples`; rows below it are outliers.
        expansion_: the machine, a `KernelExpansion`, whose values are `decision_function`.
        n_iter_: number of steps of the kept descent.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, if the inputs had names.
    """

    def __init__(
        self,
        n_prototypes: int | None = None,
        *,
        nu: float = 0.5,
        starts: int = 3,
        max_iter: int = MAX_ITERATIONS,
        kernel: str | Kernel = "rbf",
        lengthscale: Any = "scale",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_prototypes = n_prototypes
        self.nu = nu
        self.starts = starts
        self.max_iter = max_iter
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "SparseOneClassSVM":
        """Optimise the prototypes, and fit the machine.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table.
            y: ignored.
            sample_weight: row weights, shape `(n_samples,)`. Rows of weight 0 are dropped.

        Returns:
            The estimator itself.
        """
        check_runtime()
        X = self._inputs(X, sample_weight)
        w = np.ones(len(X)) if sample_weight is None else numbers("sample_weight", sample_weight)
        if w.shape != (len(X),) or not (np.isfinite(w).all() and (w >= 0).all()):
            raise ValueError(
                f"sample_weight: expected {len(X)} finite numbers of at least 0, got "
                f"{reprlib.repr(sample_weight)}"
            )
        if not w.any():
            raise ValueError("sample_weight: expected some above 0, got weights of zero only")
        X, w = X[w > 0], w[w > 0]
        nu = real("nu", self.nu, 0.0, above=True)
        if nu >= 1:
            raise ValueError(f"nu: expected a number above 0 and below 1, got {self.nu!r}")
        method = self._method(*X.shape)
        kernel = self._make_kernel(X.shape[1])
        with jax.enable_x64(X.dtype == np.float64):
            key = as_key(check_random_state(self.random_state).randint(2**31 - 1))
            weights = jax.device_put(w.astype(X.dtype))
            scaling = standardize(jax.device_put(X), weights)
            shift, scale = (np.asarray(a) for a in scaling)
            with np.errstate(over="ignore"):
                inputs = jax.device_put((X - shift) / scale)  # no program is compiled
            rows = TrainingRows(inputs, None, w, scaling, len(X))
            points = method.choose_points(key, kernel, rows)
            assert points.X is not None
            starts = np.asarray(points.X).reshape(method.starts, -1, X.shape[1])
            descent = _one_class(
                kernel, starts, X.dtype.type(nu), inputs, weights, max_iterations=self.max_iter
            )
            check(max(points.status, int(descent.status)), type(self).__name__)
            self._publish(kernel, scaling, descent)
        return self

    def _method(self, n: int, d: int) -> SLMC:
        """Return the method that chooses the starts, for `n` rows with weight and `d` columns."""
        if self.n_prototypes is not None:
            whole_number("n_prototypes", self.n_prototypes, 1, 2**31 - 1, "the largest number")
        shape = Shape(n=n, n_present=n, training=n, d=d, classes=None, linear=False)
        starts = whole_number("starts", self.starts, 1, 1000, "a thousand")
        method = limited_to_rows(SLMC(self.n_prototypes, starts=starts), shape)
        return cast(SLMC, method.resolve(shape))

    def _publish(self, kernel: Kernel, scaling: Any, descent: DirectFit) -> None:
        """Set the fitted attributes, as NumPy arrays."""
        machine = descent.expansion
        self._expansion = jax.tree.map(
            np.asarray,
            KernelExpansion(
                kernel, machine.prototypes, machine.coefficients, machine.intercept, scaling
            ),
        )
        self.prototypes_ = scaling.undo_on_host(np.asarray(machine.prototypes))
        self.dual_coef_ = np.asarray(machine.coefficients)
        self.offset_ = -float(machine.intercept)
        self.n_iter_ = int(descent.steps)

    def _inputs(self, X: Any, sample_weight: Any) -> np.ndarray:
        """Return the rows to fit to as numbers, and keep the encoding of a table."""
        frame, self._columns = as_table(X), None
        if frame is None:
            return cast(np.ndarray, validate_data(self, X, dtype=FLOATS))
        validate_data(self, frame.table, skip_check_array=True)
        n = len(frame.table)
        table = frame.encoded(np.zeros(n), "regression", weighted_rows(sample_weight, n).index)
        self._columns = table.schema
        return table.inputs

    def _make_kernel(self, d: int) -> Kernel:
        """Return the kernel of `d` standardised columns."""
        if isinstance(self.kernel, Kernel):
            return self.kernel
        if self.kernel not in KERNELS:
            raise ValueError(
                f"kernel: expected one of {sorted(KERNELS)} or a Kernel, got {self.kernel!r}"
            )
        scale = self.lengthscale
        if isinstance(scale, str):
            if scale != "scale":
                raise ValueError(f"lengthscale: expected 'scale' or numbers, got {scale!r}")
            scale = math.sqrt(d / 2)
        return KERNELS[self.kernel](np.asarray(scale, float))

    @property
    def expansion_(self) -> KernelExpansion:
        """The machine, which takes raw inputs."""
        check_is_fitted(self)
        check_runtime()
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            return jax.tree.map(jax.device_put, self._expansion)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the values of the machine, negative for outliers, shape `(n_samples,)`.

        Some training rows lie on the boundary. Values within rounding of 0 are set to 0, so that
        these rows are never outliers, whatever other rows are in `X`.
        """
        check_is_fitted(self)
        X = encoded_rows(self, X, self._columns, self.prototypes_.dtype)
        with jax.enable_x64(self.prototypes_.dtype == np.float64):
            values = np.asarray(self.expansion_(X))
        return np.where(np.abs(values) <= self._rounding_error, 0, values)

    @property
    def _rounding_error(self) -> float:
        """The largest absolute value that rounding alone may give a row on the boundary."""
        terms = abs(self.offset_) + np.sum(np.abs(self.dual_coef_))
        return float(64 * np.finfo(self.prototypes_.dtype).eps * terms)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return scores, shape `(n_samples,)`, which are below `offset_` for outliers."""
        return self.decision_function(X) + self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Return -1 for outliers and +1 for all other rows, shape `(n_samples,)`."""
        return np.where(self.decision_function(X) >= 0, 1, -1)
