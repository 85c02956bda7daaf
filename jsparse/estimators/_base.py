"""What the estimators share: from parameters to `train`, and from a trained model to attributes."""

import abc
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import labels_of, numbers, real, whole
from .._runtime import check_runtime
from .._status import NumericalError, check
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code, Decoding, distances
from ..search.tune import Method
from ..training.calibration import decisions, fit_slopes, probabilities
from ..training.choices import DEFAULT_C, KERNELS
from ..training.inputs import Task, encoded_targets, row_weights
from ..training.path import TrainedPath
from ..training.train import train
from ..training.trained import Sums, Trained
from ._sklearn import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    check_classification_targets,
    check_is_fitted,
    check_random_state,
    validate_data,
)

FLOATS = [np.float64, np.float32]
_TREES = {"expansion_", "kernel_", "_sums", "_path"}


class Machine(BaseEstimator, abc.ABC):
    """Fitting and evaluating, whatever the task.

    Computations are in the precision of the data: float64 for float64, also where JAX's own
    setting is float32.
    """

    # Set by the constructors of the subclasses.
    kernel: str | Kernel
    lengthscale: Any
    C: float | str
    cv: int | str
    search: Method
    max_evaluations: int | None
    random_state: int | np.random.RandomState | None
    multiclass: Any
    class_weight: Any

    expansion_: KernelExpansion
    _sums: Sums | None

    @abc.abstractmethod
    def _options(self, n: int, classes: int) -> dict[str, Any]:
        """Arguments of `_train` that only the subclass knows, by rows with weight and classes."""

    def _train(self, X: np.ndarray, y: np.ndarray, **options: Any) -> Trained | TrainedPath:
        """Tune and fit; `C` and `classes` are None for the defaults."""
        C = options.pop("C")
        trained = train(X, y, C=DEFAULT_C if C is None else C, **options)
        self._check(trained)
        self._sums = trained.sums
        self.prototype_indices_ = trained.prototype_rows
        return trained

    def _check(self, trained: Trained | TrainedPath) -> None:
        """Raise or warn where the fit, or what it rests on, ended badly."""
        for what, status in trained.statuses.items():
            check(status, f"{type(self).__name__}, {what}")
        self._status = max(trained.statuses.values())

    def _fit(
        self, X: np.ndarray, y: np.ndarray, sample_weight: Any, task: Task, classes: Any = None
    ) -> Trained | TrainedPath:
        check_runtime()
        self._check_parameters()
        n = len(X)
        cv = min(10, n) if isinstance(self.cv, str) else self.cv
        key = jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))
        present = n if sample_weight is None else int(np.count_nonzero(sample_weight))
        kinds = len(np.unique(y)) if task == "classification" else 1
        options = self._options(present, kinds)
        if task == "classification":
            options |= {"multiclass": self.multiclass, "class_weight": self.class_weight}
        with jax.enable_x64(X.dtype == np.float64):
            trained = self._train(
                X,
                y,
                task=task,
                key=key,
                kernel=self._kernel(X.shape[1]),
                tune_kernel=isinstance(self.lengthscale, str),
                C=None
                if isinstance(self.C, str)
                else np.array([real("C", self.C, 0.0, above=True)]),
                folds=whole("cv", cv, 2, n, "the number of rows"),
                search_method=self.search,
                max_evaluations=self.max_evaluations,
                weights=sample_weight,
                classes=classes,
                out_of_fold=task == "classification",
                **options,
            )
        self.expansion_ = trained.expansion
        self.kernel_ = trained.kernel
        self.C_ = trained.C
        self.cv_error_ = trained.cv_error
        self.tuning_history_ = trained.tuning.history
        self.n_iter_ = len(trained.tuning.history)
        self._publish()
        return trained

    def _publish(self) -> None:
        """The expansion's parts under scikit-learn's names, as NumPy arrays."""
        model = self.expansion_
        dtype = np.asarray(model.prototypes).dtype
        with jax.enable_x64(dtype == np.float64):
            raw = model.prototypes
            if model.scaling is not None:
                raw = model.scaling.undo(raw)
        self.prototypes_ = np.asarray(raw)
        self.dual_coef_ = np.asarray(model.coefficients)
        self.intercept_ = np.asarray(model.intercept)

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy: float64 arrays of JAX's would be read back from a pickle as float32.
        state: dict[str, Any] = {**cast(dict[str, Any], super().__getstate__())}
        for name in _TREES & set(state):
            state[name] = jax.tree.map(
                lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, state[name]
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not yet JAX's, see `_wake`: in a forked process, to make one would never end.
        super().__setstate__(state)

    def _wake(self) -> None:
        """Make what a pickle holds JAX's again, where that can be done."""
        check_runtime()
        dtype = self.prototypes_.dtype
        for name in _TREES & set(vars(self)):
            with jax.enable_x64(dtype == np.float64):
                arrays = jax.tree.map(
                    lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a,
                    getattr(self, name),
                )
            setattr(self, name, arrays)

    def _check_parameters(self) -> None:
        for name in ("lengthscale", "C", "cv"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ValueError(f"{name}: expected 'auto' or a number, got {value!r}")
        if self.lengthscale is None and not isinstance(self.kernel, Kernel):
            raise ValueError("lengthscale: None, to take a kernel as it is, needs a Kernel")

    def _kernel(self, d: int) -> str | Kernel:
        if self.lengthscale is None or isinstance(self.lengthscale, str):
            return self.kernel
        if not isinstance(self.kernel, str) or self.kernel not in KERNELS:
            raise ValueError(
                f"lengthscale: expected 'auto' for the kernel {self.kernel!r}, which has no single "
                f"one, got {self.lengthscale!r}"
            )
        scale = numbers("lengthscale", self.lengthscale)
        if isinstance(self.lengthscale, bool) or scale.shape not in ((), (d,)):
            raise ValueError(
                f"lengthscale: expected 'auto', a number or {d}, one for each column, got "
                f"{self.lengthscale!r}"
            )
        return KERNELS[self.kernel](scale)

    def _values(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        self._wake()
        X = validate_data(self, X, reset=False, dtype=FLOATS)
        dtype = self.prototypes_.dtype
        with np.errstate(over="ignore"), jax.enable_x64(dtype == np.float64):
            values = np.asarray(self.expansion_(np.asarray(X, dtype)))
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise NumericalError(f"the model's value at row {row} is not finite; is X huge?")
        return values


class Regressor(RegressorMixin, Machine):
    """A machine for real targets."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Regressor":
        """Choose prototypes, tune what is "auto", fit.

        Args:
            X: inputs, shape `(n_samples, n_features)`.
            y: targets, shape `(n_samples,)`.
            sample_weight: row weights, shape `(n_samples,)`; 0 is as if the row were not there.

        Returns:
            The estimator itself.
        """
        X, y = validate_data(self, X, y, dtype=FLOATS, y_numeric=True)
        _at_least_two(X)
        self._fit(X, np.asarray(y, float), sample_weight, "regression")
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Values at the rows of `X`, shape `(n_samples,)`."""
        return self._values(X)


class Classifier(ClassifierMixin, Machine):
    """A machine for two or more classes."""

    classes_: np.ndarray
    _code: Code | None
    _decoding: Decoding

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Classifier":
        """Choose prototypes, tune what is "auto", fit, and calibrate probabilities.

        Args:
            X: inputs, shape `(n_samples, n_features)`.
            y: class labels of any one type, shape `(n_samples,)`.
            sample_weight: row weights, shape `(n_samples,)`; 0 is as if the row were not there.

        Returns:
            The estimator itself.
        """
        self._fit_labels(X, y, sample_weight, None)
        return self

    def _fit_labels(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> None:
        if y is not None:
            labels_of("y", y)  # scikit-learn makes texts of labels of several types
        X, y = validate_data(self, X, cast(Any, y), dtype=FLOATS)
        check_classification_targets(y)
        _at_least_two(X)
        if len(np.unique(y)) < 2:
            raise ValueError(f"y: expected at least two classes, got one class only: {y[0]!r}")
        trained = self._fit(X, y, sample_weight, "classification", classes)
        assert trained.classes is not None
        self.classes_ = trained.classes
        self._code, self._decoding = trained.code, trained.decoding
        # The rows as the machine weighs them, or the probabilities would not be of its decisions.
        numbers, _ = encoded_targets(y, len(y), "classification", trained.classes)
        weights = row_weights(sample_weight, self.class_weight, numbers, trained.classes)
        scores = self._scores(np.asarray(trained.out_of_fold))
        self._slopes = fit_slopes(scores, numbers, weights)

    def _scores(self, values: np.ndarray) -> np.ndarray:
        if self._code is None:
            return values
        with jax.enable_x64(values.dtype == np.float64):
            matrix = jnp.asarray(self._code.matrix, values.dtype)
            return -np.asarray(distances(matrix, jnp.asarray(values), self._decoding))

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores, the largest for the predicted class.

        Returns:
            Shape `(n_samples,)` for two classes, positive for the second; for more
            `(n_samples, n_classes)`, the negative distances from the classes' codes.
        """
        return self._scores(self._values(X))

    def predict(self, X: Any) -> np.ndarray:
        """Class labels, shape `(n_samples,)`: those of the largest score."""
        numbers = decisions(self.decision_function(X))
        return self.classes_[numbers]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes in the order of `classes_`, shape `(n_samples, n_classes)`.

        The softmax of the scores times a slope, one for each predicted class, fitted to the scores
        that cross-validation gave for rows the machine had not seen, and to the rows' weights
        (those of the classes included, as in the machine itself). The most probable class is the
        predicted one.
        """
        scores = self.decision_function(X)
        return probabilities(scores, self._slopes)


def _at_least_two(X: np.ndarray) -> None:
    if len(X) < 2:
        raise ValueError(f"X: expected at least 2 rows, got n_samples = {len(X)}")
