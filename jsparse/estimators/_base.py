"""Base classes of the estimators, which pass parameters to `train` and publish its result."""

import dataclasses
import sys
import time
from typing import Any, ClassVar, Literal, TypeVar, cast

import jax
import numpy as np

from .._arguments import as_key, labels_of, numbers, real
from .._numerics import as_array
from .._runtime import check_runtime
from .._status import check
from ..calibration import decisions, probabilities
from ..data.frames import EncodedFrame
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.method import Method, Shape, Task
from ..model import Model
from ..prediction import scores_of
from ..predictor.checks import warn_caller
from ..search.gradient import Automatic, Gradient
from ..search.recursive import Recursive
from ..search.run import Progress, Tuning
from ..search.strategies import Annealing, Profile, Search
from ..training.choices import KERNELS, KernelLike
from ..training.inputs import WeightedRows, check_labels, weighted_rows
from ..training.settings import Multiclass, Resources
from ..training.train import train
from ..training.trained import Sums, Trained
from ..validation.folds import Folds
from ._declaration import (
    Parameter,
    SharedParameters,
    constructor,
    documentation,
    parameters_of,
)
from ._folds import FoldsLike, folds_of
from ._inputs import Categories, encoded_rows, training_rows
from ._sklearn import (
    BaseEstimator,
    ClassifierMixin,
    DataConversionWarning,
    RegressorMixin,
    available_if,
    check_classification_targets,
    check_is_fitted,
    check_random_state,
)

_FIELDS_WITH_ARRAYS = {"model_", "kernel_", "_method", "_sums", "_tuning"}
_OPTIONAL_ATTRIBUTES = {
    "n_prototypes_",
    "prototype_indices_",
    "oob_prediction_",
    "oob_decision_function_",
}
_SEARCHES = {
    "auto": Automatic,
    "profile": Profile,
    "annealing": Annealing,
    "gradient": Gradient,
    "recursive": Recursive,
}
# The decorators that check types in tests do not support `typing.Self`.
RegressorT = TypeVar("RegressorT", bound="Regressor")
ClassifierT = TypeVar("ClassifierT", bound="Classifier")


class Machine(BaseEstimator):
    """The base of all estimators: fitting and evaluation for any method and task.

    Computations have the precision of the data. Data in float64 are computed in float64 even if
    JAX's default is float32.

    Inputs are arrays or tables, as for `train`: pandas, Arrow, or a `data.frames.Frame` with
    settings for its columns. `model_.columns` describes the encoding of a table. `prototypes_` and
    lengthscales refer to the encoded columns. A category not seen in training has no indicator. A
    kernel that compares categories treats it as different from all others. Both cases cause an
    `UnseenCategoryWarning`. `model_` accepts the columns in any order. An estimator needs them in
    the order of training, as scikit-learn demands.
    """

    # Set by the constructors of the subclasses.
    kernel: KernelLike | None
    lengthscale: Any
    categories: Categories
    C: float | str
    cv: Any
    out_of_fold: bool | Literal["machines"]
    search: str | Search | None
    columns: Literal["standard", "ranks", "auto"] | None
    max_evaluations: int | None
    max_seconds: float
    warm_start: bool
    verbose: int
    random_state: int | np.random.RandomState | None

    _parameter_of: ClassVar[dict[str, str]]  # name of the parameter for each method setting

    model_: Model
    _method: Method
    _sums: Sums | None
    _tuning: Tuning

    method_class: ClassVar[type[Method]]
    parameters: ClassVar[list[Parameter]]
    parameter_notes: ClassVar[dict[str, str]] = {}  # appended to the descriptions of settings

    def __init_subclass__(
        cls,
        method: type[Method] | None = None,
        parameters: tuple[Parameter, ...] = (),
        omitted: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """Give a named estimator its constructor and documentation.

        Without `method` and `parameters`, change nothing.

        Args:
            method: the class whose settings are the first parameters of the constructor.
            parameters: the first parameters of the constructor, if there is no `method`. They
                replace shared parameters of equal names.
            omitted: settings and shared parameters that the estimator does not have.
            options: options of scikit-learn's `__init_subclass__`.
        """
        super().__init_subclass__(**options)
        if method is not None:
            cls.method_class = method
            by_setting = parameters_of(method, omitted)
            cls._parameter_of = {setting: p.name for setting, p in by_setting.items()}
            if not method.has_C:
                cls.C, omitted = "auto", (*omitted, "C")
            parameters = tuple(
                p._replace(text=f"{p.text} {cls.parameter_notes.get(p.name, '')}".strip())
                for p in by_setting.values()
            )
        elif not parameters:
            return
        classifier = issubclass(cls, ClassifierMixin)
        omitted = (*omitted, *(parameter.name for parameter in parameters))
        if not classifier:
            omitted = (*omitted, "multiclass", "class_weight")
        cls.parameters = [*parameters, *parameters_of(SharedParameters, omitted).values()]
        cls.__init__ = constructor(cls.parameters, positional=min(1, len(parameters)))
        cls.__doc__ = documentation(cls.__doc__ or "", cls.parameters, classifier)

    def make_method(self) -> Method:
        """Return the method with the settings that the parameters state."""
        return self.method_class(**self._method_settings())

    def _settings(
        self, weighted: WeightedRows, folds: FoldsLike, d: int, classes: int | None
    ) -> dict[str, Any]:
        """Return the arguments of `train` for method, kernel, search and the scaling of columns.

        The arguments are the weighted rows, the argument `folds` of `train`, and the numbers of
        columns and of classes.
        """
        method = self.make_method()
        return {
            "method": limited_to_rows(method, _shape(method, weighted, folds, d, classes)),
            "kernel": self._kernel(d),
            "search": self._search(),
            "columns": self.columns,
        }

    def _method_settings(self) -> dict[str, Any]:
        return {setting: getattr(self, name) for setting, name in self._parameter_of.items()}

    def _fit(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: Any,
        task: Task,
        table: EncodedFrame | None = None,
        **options: Any,
    ) -> Trained:
        """Train on checked rows, set the fitted attributes, and return the result of `train`.

        `table` is the table that was encoded as `X`; `options` are further arguments of `train`.
        """
        check_runtime()
        self._check_parameters()
        key = as_key(check_random_state(self.random_state).randint(2**31 - 1))
        if sample_weight is not None and not np.any(numbers("sample_weight", sample_weight)):
            raise ValueError("sample_weight: expected some above 0, got weights of zero only")
        weighted = weighted_rows(sample_weight, len(X))
        folds = folds_of(self.cv, X, y, weighted)
        n_classes = None
        if task == "classification":
            present = np.unique(weighted.select(y))
            check_labels(present, len(weighted.index), weighted.n)  # before any warning
            n_classes = len(present)
        settings = self._settings(weighted, folds, X.shape[1], n_classes)
        C = None if isinstance(self.C, str) else np.array([real("C", self.C, 0.0, above=True)])
        with jax.enable_x64(X.dtype == np.float64):
            trained = train(
                X if table is None else table,
                y,
                task=task,
                key=key,
                C=C,
                folds=folds,
                weights=sample_weight,
                out_of_fold=self.out_of_fold,
                resources=Resources(max_seconds=self.max_seconds),
                progress=_reporter() if self.verbose else None,
                **settings,
                **options,
            )
        for what, status in trained.statuses.items():
            limit = self._iteration_limit(trained.method, what)
            check(status, f"{type(self).__name__}, {what}{limit}")
        self._status = max(trained.statuses.values())
        self._method, self._sums, self._tuning = trained.method, trained.sums, trained.tuning
        self._publish(trained.model)
        self.kernel_ = trained.kernel
        self.C_ = trained.method.reported_C(trained.C)
        self.cv_error_ = trained.cv_error
        self.tuning_history_ = trained.tuning.history
        self.n_iter_ = len(trained.tuning.history)
        for name in _OPTIONAL_ATTRIBUTES & set(vars(self)):  # an earlier fit may have set them
            delattr(self, name)
        if trained.curve is not None:
            self.sizes_ = trained.curve.sizes
            self.errors_ = trained.curve.errors
            self.standard_errors_ = trained.curve.standard_errors
            self.n_prototypes_ = trained.curve.size
        if trained.point_rows is not None and not trained.method.several_sizes:
            self.prototype_indices_ = trained.point_rows
        return trained

    def _iteration_limit(self, method: Method, what: str) -> str:
        """Return words such as " with max_iter=50"; "" if `what` is not "fit" or has no limit."""
        limit = getattr(method, "max_iterations", None)
        if what != "fit" or limit is None:
            return ""
        if "max_iter" in self.get_params(deep=False):
            return f" with max_iter={limit}"
        return f" with {type(method).__name__}(max_iterations={limit})"

    def _publish(self, model: Model) -> None:
        """Publish the model, and its parts under scikit-learn's names as NumPy arrays."""
        self.model_ = model
        expansion = model.expansion
        raw = np.asarray(expansion.prototypes)
        if expansion.scaling is not None:
            raw = expansion.scaling.undo_on_host(raw)
        self.prototypes_ = raw
        self.dual_coef_ = np.asarray(expansion.coefficients)
        self.intercept_ = np.asarray(expansion.intercept)

    @property
    def expansion_(self) -> KernelExpansion:
        """The machine in `model_`, which takes raw inputs."""
        check_is_fitted(self)
        self._restore_jax_arrays()
        return self.model_.expansion

    def __getstate__(self) -> dict[str, Any]:
        # Pickle NumPy arrays, because JAX arrays of float64 would be read back as float32.
        state: dict[str, Any] = {**cast(dict[str, Any], super().__getstate__())}
        for name in _FIELDS_WITH_ARRAYS & set(state):
            state[name] = jax.tree.map(
                lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, state[name]
            )
        return state

    def _restore_jax_arrays(self) -> None:
        """Convert the NumPy arrays of a pickle to JAX arrays.

        This is not done in `__setstate__`, because JAX would block for ever in a forked process.
        `check_runtime` raises an error in such a process.
        """
        check_runtime()
        if not isinstance(self.model_.expansion.prototypes, np.ndarray):
            return
        dtype = self.prototypes_.dtype
        for name in _FIELDS_WITH_ARRAYS & set(vars(self)):
            with jax.enable_x64(dtype == np.float64):
                arrays = jax.tree.map(
                    lambda a: as_array(a) if isinstance(a, np.ndarray) else a,
                    getattr(self, name),
                )
            setattr(self, name, arrays)

    def _check_parameters(self) -> None:
        """Raise a ValueError if `kernel`, `lengthscale`, `C` or `cv` has a wrong kind of value."""
        for name in ("lengthscale", "C", "cv"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ValueError(f"{name}: expected 'auto' or a number, got {value!r}")
        kernels = self.kernel if isinstance(self.kernel, list | tuple) else [self.kernel]
        if self._kernel_name() is None:
            raise ValueError("kernel: expected a name, a Kernel or a list of these, got None")
        if self.lengthscale is None and not all(isinstance(k, Kernel) for k in kernels):
            raise ValueError(
                "lengthscale: expected 'auto' or numbers unless kernel is a Kernel, got None with "
                f"the kernel {self.kernel!r}"
            )

    def _search(self) -> Search | None:
        """Return the search; with `warm_start` it starts where the last search ended."""
        is_name = isinstance(self.search, str) and self.search in _SEARCHES
        search = _SEARCHES[self.search]() if is_name else self.search  # type: ignore[index]
        if not isinstance(search, Search):
            raise ValueError(
                f"search: expected one of {sorted(_SEARCHES)} or a search such as Profile(..), got "
                f"{search!r}"
            )
        return self._limited_search(search)

    def _limited_search(self, search: Search) -> Search:
        """Return the search with the limits and the warm start that the parameters state."""
        tune_kernel = search.tune_kernel and isinstance(self.lengthscale, str)
        changes: dict[str, Any] = {"tune_kernel": tune_kernel}
        if self.max_evaluations is not None:
            changes["max_evaluations"] = self.max_evaluations
        linear = isinstance(self.kernel, str) and self.kernel == "linear"
        if self.warm_start and hasattr(self, "_tuning") and tune_kernel and not linear:
            changes["start"] = self._tuning
        return dataclasses.replace(search, **changes)

    def _kernel(self, d: int) -> KernelLike | None:
        """Return the argument `kernel` of `train`, with a stated lengthscale of `d` columns."""
        if self.lengthscale is None or isinstance(self.lengthscale, str):
            return self.kernel
        name = self._kernel_name()
        if not isinstance(name, str) or name not in KERNELS:
            raise ValueError(
                f"lengthscale: expected 'auto' for the kernel {self.kernel!r}, whose lengthscale a "
                f"number cannot set, got {self.lengthscale!r}; set it in a Kernel object instead"
            )
        scale = numbers("lengthscale", self.lengthscale)
        if isinstance(self.lengthscale, bool) or scale.shape not in ((), (d,)):
            raise ValueError(
                f"lengthscale: expected 'auto', a number or {d}, one for each column, got "
                f"{self.lengthscale!r}"
            )
        return KERNELS[name](scale)

    def _kernel_name(self) -> Any:
        """Return the parameter `kernel`: a name, a kernel or a list; subclasses replace None."""
        return self.kernel

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        self._restore_jax_arrays()
        return encoded_rows(self, X, self.model_.columns, self.model_.dtype)


def _shape(
    method: Method, weighted: WeightedRows, folds: FoldsLike, d: int, classes: int | None
) -> Shape:
    """Return the numbers of rows of positive weight, of columns and of classes, as a `Shape`."""
    n = len(weighted.index)
    if isinstance(folds, Folds):
        largest_fold = int(np.asarray(folds.valid).sum(axis=1).max())
    else:
        largest_fold = -(-n // (method.default_folds(n) if isinstance(folds, str) else folds))
    return Shape(n=n, n_present=n, training=n - largest_fold, d=d, classes=classes, linear=False)


def limited_to_rows(method: Method, shape: Shape) -> Method:
    """Return the method with at most as many prototypes as the rows allow; warn of each change."""
    capped = method.capped(shape)
    for field in dataclasses.fields(method):
        stated, used = getattr(method, field.name), getattr(capped, field.name)
        if used is not stated:
            warn_caller(
                f"{field.name}: {stated} is more than {shape.n} rows with weight allow; {used} is "
                "taken",
                UserWarning,
            )
    return capped


def _reporter() -> Progress:
    """Announce the compilation, and return a callback that prints progress on standard error."""
    start = time.perf_counter()
    print("jsparse: compiling", file=sys.stderr, flush=True)

    def report(completed: int, planned: int, best: float) -> None:
        seconds = time.perf_counter() - start
        print(
            f"jsparse: {completed} of {planned} evaluations, best score {best:.4g}, "
            f"{seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    return report


def _is_calibrated(estimator: Machine) -> bool:
    """Return True if the estimator calibrates probabilities; else raise an AttributeError."""
    if estimator.out_of_fold is False:
        raise AttributeError(
            "out_of_fold: expected True or 'machines' for probabilities, intervals and sets, which "
            "need the errors of cross-validation, got False"
        )
    return True


def _has_held_out_errors(estimator: Machine) -> bool:
    """Return True if the estimator has or will have held-out errors; else raise AttributeError."""
    model: Model | None = getattr(estimator, "model_", None)
    return (model is not None and model.conformal is not None) or _is_calibrated(estimator)


class Regressor(RegressorMixin, Machine):
    """A machine for real targets, one or several."""

    oob_prediction_: np.ndarray

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn, with support for several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self: RegressorT, X: Any, y: Any, sample_weight: Any = None) -> RegressorT:
        """Choose prototypes, tune the parameters that are "auto", and fit the machine.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table.
            y: targets, shape `(n_samples,)` or `(n_samples, n_targets)`.
            sample_weight: row weights, shape `(n_samples,)`. Rows of weight 0 are dropped.

        Returns:
            The estimator itself.
        """
        X, y, table = training_rows(
            self, X, y, sample_weight, "regression", y_numeric=True, multi_output=True
        )
        _check_two_rows(X)
        y = np.asarray(vector_of(y), float)
        trained = self._fit(X, y, sample_weight, "regression", table)
        if trained.out_of_fold is not None:
            self.oob_prediction_ = trained.out_of_fold
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return predicted targets, shape `(n_samples,)` or `(n_samples, n_targets)`."""
        X = self._rows(X)  # raises `NotFittedError`
        return self.model_.scores(X)

    @available_if(_has_held_out_errors)
    def interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return the ends of intervals that hold new targets with probability about `coverage`.

        The intervals come from the errors of `oob_prediction_`. `jsparse.Model.interval` states the
        guarantee, which is stronger with `out_of_fold="machines"` or after `model_.calibrated`.

        Returns:
            Lower and upper ends, shape `(n_samples, 2)` or `(n_samples, n_targets, 2)`.

        Raises:
            AttributeError: with `out_of_fold=False`, unless `model_` is calibrated.
        """
        X = self._rows(X)  # raises `NotFittedError`
        return self.model_.interval(X, coverage)


class Classifier(ClassifierMixin, Machine):
    """A machine for two or more classes."""

    classes_: np.ndarray
    multiclass: Any
    class_weight: Any

    def fit(self: ClassifierT, X: Any, y: Any, sample_weight: Any = None) -> ClassifierT:
        """Choose prototypes, tune parameters that are "auto", fit, and calibrate probabilities.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table.
            y: class labels of one type, shape `(n_samples,)`.
            sample_weight: row weights, shape `(n_samples,)`. Rows of weight 0 are dropped.

        Returns:
            The estimator itself.
        """
        self._fit_labels(X, y, sample_weight, None)
        return self

    def _fit_labels(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> None:
        """Do what `fit` does; `classes` are all labels if `y` may lack some, otherwise None."""
        if y is not None:
            # Check before scikit-learn, which converts labels of several types to texts.
            labels_of("y", y)
        X, y, table = training_rows(self, X, y, sample_weight, "classification")
        check_classification_targets(y)
        _check_two_rows(X)
        if len(np.unique(y)) < 2:
            raise ValueError(f"y: expected at least two classes, got one class only: {y[0]!r}")
        multiclass = Multiclass(self.multiclass, classes=classes)
        trained = self._fit(
            X,
            y,
            sample_weight,
            "classification",
            table,
            multiclass=multiclass,
            class_weight=self.class_weight,
        )
        assert trained.classes is not None
        self.classes_ = trained.classes
        if trained.out_of_fold is not None:
            self.oob_decision_function_ = _held_out_probabilities(trained, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores of the classes; the predicted class has the largest score.

        Returns:
            For two classes one score, shape `(n_samples,)`; it is at least 0 if the second class is
            predicted. For more classes, shape `(n_samples, n_classes)`: the negative distances of
            the values of the binary problems from the codes of the classes.
        """
        X = self._rows(X)  # raises `NotFittedError`
        return self.model_.scores(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the class labels with the largest score, shape `(n_samples,)`."""
        scores = self.decision_function(X)
        return self.classes_[decisions(scores)]

    @available_if(_is_calibrated)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of `classes_`, shape `(n_samples, n_classes)`.

        The probabilities are the softmax of the scores times an inverse temperature. Each predicted
        class has an inverse temperature, fitted to the held-out scores of cross-validation with the
        row and class weights of the machine. The predicted class is the most probable class.

        Raises:
            AttributeError: with `out_of_fold=False`.
        """
        scores = self.decision_function(X)
        return probabilities(scores, np.asarray(self.model_.inverse_temperatures))

    @available_if(_has_held_out_errors)
    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return sets of classes that hold a row's class with probability about `coverage`.

        The sets come from the errors of cross-validation on held-out rows. `jsparse.Model.interval`
        states the guarantee, which is stronger with `out_of_fold="machines"` or after
        `model_.calibrated`.

        Returns:
            Booleans, shape `(n_samples, n_classes)`: whether each of `classes_` is in the set.

        Raises:
            AttributeError: with `out_of_fold=False`, unless `model_` is calibrated.
        """
        X = self._rows(X)  # raises `NotFittedError`
        return self.model_.predict_set(X, coverage)


def vector_of(y: np.ndarray) -> np.ndarray:
    """Return the targets, a single column as a vector, with scikit-learn's warning about it."""
    if y.ndim == 1 or y.shape[1] != 1:
        return y
    warn_caller(
        "A column-vector y was passed when a 1d array was expected",
        DataConversionWarning,
    )
    return y[:, 0]


def _held_out_probabilities(trained: Trained, sample_weight: Any) -> np.ndarray:
    """Return each row's probabilities by machines fitted without it; NaN for rows of weight 0."""
    values, classes = trained.out_of_fold, trained.classes
    assert values is not None
    assert classes is not None
    positive = (
        np.ones(len(values), bool) if sample_weight is None else np.asarray(sample_weight) > 0
    )
    scores = scores_of(values[positive], trained.code, trained.decoding)
    by_row = np.full((len(values), len(classes)), np.nan)
    by_row[positive] = probabilities(scores, np.asarray(trained.model.inverse_temperatures))
    return by_row


def _check_two_rows(X: np.ndarray) -> None:
    if len(X) < 2:
        raise ValueError(f"X: expected at least 2 rows, got n_samples = {len(X)}")
