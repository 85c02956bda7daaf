"""The result of `train`: a tuned model, its diagnostics, and the outcome of tuning."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._files import PathLike
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.method import METRIC_NAMES, Method, Metric
from ..model import About, Model
from ..multiclass import Code, Decoding
from ..normal_equations import NormalEquations
from ..relevance import Relevance
from ..search.run import Tuning
from ..search.sizes import SizeCurve
from ..search.strategies import Search
from ..validation.folds import Folds
from .forgetting import Window
from .presentation import as_html, as_text, describe_kernel, in_words, rounded, status_in_words
from .presets import ADVICE, Preset
from .target_units import TargetUnits

STATUS_NAMES = ("fit", "choice of prototypes", "cross-validation")  # of `Trained.statuses`
PHASES = ("large machine", "settings", "prototypes", "tuning", "fit")  # of `Trained.seconds`


class Sums(NamedTuple):
    """The sums over rows from which a fit was solved; sums over later rows can be added."""

    feature_map: FeatureMap  # of standardised inputs
    equations: NormalEquations  # sums over the training rows
    units: TargetUnits = TargetUnits()  # units of the targets in the sums
    window: Window | None = None  # the rows of the sums, if later rows push earlier ones out

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class Trained:
    """A tuned model, its diagnostics, and the outcome of tuning.

    Attributes:
        model: the model to deploy, which predicts and can be saved.
        method: the method with all defaults resolved.
        kernel: the tuned kernel, in standardised units.
        C: the tuned weight of the data-fit term; shape `l` if every binary problem has its own. 1
            for a method without `C`.
        target_unit: the unit of the targets in the fit. With the absolute and the quantile loss,
            `C` weighs residuals divided by it.
        cv_error: the cross-validated error, in `metric`.
        metric: metric of `cv_error` and of the curve: "misclassification", "mse", "mae" or
            "pinball".
        criterion: metric that the search minimised, which is also the metric of `tuning.score`.
        tuning: the outcome of the search.
        search: the settings of the search.
        fit: the machines that the method returned. They take standardised inputs and return values
            in the targets' units. Diagnostics of single rows are for the rows of positive weight,
            in order, followed by padding.
        sums: the sums from which the fit was solved; None for a method that needs the rows.
        point_rows: row numbers in `X` of the prototypes that the model uses; None if they are not
            rows.
        n_points: number of prototypes or candidates from which the method started.
        folds: row numbers of each fold of the validation; for a stream, of its sample. A row of
            weight 0 is in no fold.
        out_of_fold: held-out value of each row, or of each row of a stream's sample, shape `n *l`;
            NaN for rows that are in no fold.
        n_rows: number of training rows, all of positive weight.
        seconds: wall time by phase; the time of "compile" is included in the other phases.
        curve: errors of every size in `metric`, if several sizes were compared. Its `chosen_by` has
            the errors in `criterion`, if the metrics differ.
        selection_status: stop code of the choice of points.
        costs: the costs of the model by the name of the limit, if a `Budget` was stated: bytes of
            its file, and seconds for one row (latency).
        preset: the preset that completed the settings. None if no preset was stated, and the method
            was stated or the rows were a stream or on a mesh.
        large_error: for a distilled model, the cross-validated error of the large machine; None if
            it is not known in `metric`.
    """

    model: Model
    method: Method
    kernel: Kernel
    C: float | np.ndarray
    target_unit: float
    cv_error: float
    metric: Metric
    criterion: Metric
    tuning: Tuning
    search: Search
    fit: Family
    sums: Sums | None
    point_rows: np.ndarray | None
    n_points: int
    folds: Folds
    out_of_fold: np.ndarray | None
    n_rows: int
    seconds: dict[str, float]
    curve: SizeCurve | None = None
    selection_status: int = CONVERGED
    preset: Preset | None = None
    costs: dict[str, float] | None = None
    large_error: float | None = None

    def __repr__(self) -> str:
        return as_text("Trained", self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts(), self.curve, METRIC_NAMES[self.metric])

    def _facts(self) -> dict[str, str]:
        """Return the facts that the displays show: name and one line of text."""
        model = self.model
        task = "regression" if model.labels is None else f"{len(model.labels)} classes"
        columns = model.expansion.prototypes.shape[1]
        shown = {
            "method": f"{self.method.title}, {task}",
            "data": f"{self.n_rows} rows x {columns} columns, {model.dtype}",
            "kernel": describe_kernel(self.kernel),
            "prototypes": self._size_in_words(),
        }
        if self.preset is not None:
            shown["settings"] = f"{self.preset}; {ADVICE[self.preset]}"
        if self.costs is not None:
            shown["costs"] = self.costs_in_words
        if (C := model.about.get("C")) is not None:
            shown["C"] = in_words(np.asarray(C))
        if (solver := self.method.solver_text(self.fit.info)) is not None:
            shown["solver"] = solver
        error = rounded(self.cv_error, 4)
        if np.isfinite(self.standard_error):  # not known from one fold
            error += f" +- {rounded(self.standard_error, 2)} standard error"
        shown["error"] = f"{error} ({METRIC_NAMES[self.metric]}, cross-validated)"
        if self.large_error is not None:
            shown["distilled"] = f"from a machine with error {rounded(self.large_error, 4)}"
        tuning, folds, seconds = self.tuning, len(self.folds.index), self.seconds
        shown["chosen by"] = (
            f"{type(self.search).__name__} search, {len(tuning.history)} evaluations "
            f"({tuning.stopped}), {self.method.validation_text(folds)}"
        )
        total, phases = seconds.get("total", 0.0), [name for name in PHASES if name in seconds]
        parts = ", ".join(f"{name} {seconds[name]:.2f}" for name in phases)
        compiling = min(seconds.get("compile", 0.0), total)
        # The parts come last, as a display may cut the text.
        shown["seconds"] = f"{total:.2f} (compilation {compiling:.2f}"
        shown["seconds"] += f"; {parts})" if parts else ")"
        shown["status"] = status_in_words(self.statuses)
        return shown

    def _size_in_words(self) -> str:
        """Return a text: the number of prototypes, and from what it was chosen."""
        size, curve = str(self.model.size), self.curve
        if curve is None:
            return size
        if len(self.fit.sizes) > 1:
            size += f" of {self.n_points} candidates"
        sizes = curve.sizes
        return f"{size}; {len(sizes)} sizes from {sizes[0]} to {sizes[-1]} compared"

    @property
    def costs_in_words(self) -> str:
        """`costs` as text."""
        units = {"bytes": "bytes", "latency": "s for a row"}
        return ", ".join(f"{cost:.4g} {units[name]}" for name, cost in (self.costs or {}).items())

    @property
    def standard_error(self) -> float:
        """The standard error of `cv_error`, from its spread over the folds."""
        if self.curve is not None:
            return float(self.curve.standard_errors[self.curve.chosen])
        return self.tuning.standard_error

    @property
    def size(self) -> int:
        """The number of prototypes of the model."""
        return self.model.size

    @property
    def status(self) -> int:
        """Stop code of the chosen machine, see `jsparse.check`."""
        with jax.enable_x64(self.model.dtype == np.float64):
            if self.curve is None or len(self.fit.sizes) == 1:
                return int(self.fit.status)
            return self.fit.status_at(self.curve.size)

    @property
    def statuses(self) -> dict[str, int]:
        """Stop codes of the chosen machine, the choice of points and cross-validation.

        `jsparse.check` raises an error or warns for a bad stop code. Cross-validation has the code
        EXHAUSTED if it reached an iteration limit, PRECISION_LOST if its error cannot be trusted
        for a stated kernel and `C`, else COMPLETED.
        """
        validation = self.tuning.status if self.tuning.status >= EXHAUSTED else COMPLETED
        codes = (self.status, self.selection_status, validation)
        return dict(zip(STATUS_NAMES, codes, strict=True))

    @property
    def expansion(self) -> KernelExpansion:
        """The chosen machine, which takes raw inputs."""
        return self.model.expansion

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in sorted order; of two labels, a value >= 0 predicts the second."""
        return self.model.classes

    @property
    def code(self) -> Code | None:
        """Output code of the binary problems, for more than two classes."""
        return self.model.code

    @property
    def decoding(self) -> Decoding:
        """How the values of the binary problems give a class."""
        return self.model.decoding

    def __getattr__(self, name: str) -> Any:
        # Copies and pickles ask for special names before the fields are set.
        hint = "" if name.startswith("_") or not hasattr(Model, name) else f"; use model.{name}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def save(self, path: PathLike) -> None:
        """Write the model, with all its sizes, to one file for `jsparse.load`, see `Model.save`.

        `trained.at(size).save(path)` writes one size alone.
        """
        self.model.save(path)

    def at(self, size: int) -> Model:
        """Return the model with `size` prototypes alone, and its error, see `Model.at`."""
        model = self.model.at(size)
        if self.curve is None or size not in self.curve.sizes:
            return model
        error = float(self.curve.errors[self.curve.sizes == size][0])
        about = About({**model.about, "cv_error": error, "metric": self.curve.metric})
        return dataclasses.replace(model, about=about)

    def predict(self, X: Any) -> np.ndarray:
        """Return predicted labels or values, see `Model.predict`."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, shape `n k`, see `Model.predict_proba`."""
        return self.model.predict_proba(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return class scores or values of a regression, see `Model.decision_function`."""
        return self.model.decision_function(X)

    def interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return lower and upper ends of intervals for new rows' targets, see `Model.interval`."""
        return self.model.interval(X, coverage)

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return sets of classes for new rows, see `Model.predict_set`."""
        return self.model.predict_set(X, coverage)

    def calibrated(self, X: Any, y: Any) -> Model:
        """Return the model with intervals and sets calibrated on other rows: `Model.calibrated`."""
        return self.model.calibrated(X, y)

    def with_novelty(self, X: Any) -> Model:
        """Return the model with the distribution of novelty, see `Model.with_novelty`."""
        return self.model.with_novelty(X)

    def relevance(self, names: Sequence[Any] | None = None) -> Relevance:
        """Return the relevance of each column in the kernel, from 0 to 1, see `Model.relevance`."""
        return self.model.relevance(names)
