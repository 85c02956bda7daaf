"""A tuned model and how it came about."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.method import METRIC_NAMES, Method, Metric
from ..model import Model
from ..multiclass import Code, Decoding
from ..normal_equations import NormalEquations
from ..relevance import Relevance
from ..search.run import Tuning
from ..search.sizes import SizeCurve
from ..search.strategies import Search
from ..validation.folds import Folds
from .presentation import as_html, as_text, describe_kernel, in_words, rounded, status_in_words
from .target_units import TargetUnits


class Sums(NamedTuple):
    """What the fit was solved from, to which rows can be added."""

    feature_map: FeatureMap  # of standardised inputs
    equations: NormalEquations
    units: TargetUnits = TargetUnits()  # of the targets that were summed

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class Trained:
    """A tuned model and how it came about.

    Attributes:
        model: what is deployed; it predicts, and is saved.
        method: with every setting a value.
        kernel: the tuned kernel, in standardised units.
        C: the tuned weight of the data-fit term, shape `l` if every problem has its own; 1 for a
            method without.
        target_unit: with the absolute loss, `C` weighs residuals divided by it.
        cv_error: the cross-validated error, in `metric`.
        metric: "misclassification", "mse" or "mae": that of `cv_error` and of the curve.
        criterion: the metric that the search minimised, that of `tuning.score`.
        tuning: the outcome of the search.
        search: the settings of the search.
        fit: the machines that the method returned, in the units of the targets and of standardised
            inputs. Diagnostics that it holds for each row are of the rows with a weight above 0, in
            their order, and of padding behind them.
        sums: what it was solved from; None for a method that needs the rows.
        point_rows: the rows of X that are prototypes or candidates; None if they are no rows.
        n_points: prototypes or candidates that the method was given.
        folds: that it was validated on, by row numbers; a row of weight 0 is in none. Of a stream
            those of its sample.
        out_of_fold: values of each row by a machine that has not seen it, `n *l`. NaN for a row of
            weight 0, which is in no fold: the model itself, which has not seen it, predicts it. Of
            a stream the values of its sample, NaN where none was held out.
        n_rows: that it was trained on, all with a weight above 0.
        seconds: wall time by phase; "compile" is contained in the others.
        curve: errors of every size, if there were several, in `metric`; its `chosen_by` has those
            in `criterion`, if that is another.
        selection_status: how the choice of points ended.
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

    def __repr__(self) -> str:
        return as_text("Trained", self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts(), self.curve, METRIC_NAMES[self.metric])

    def _facts(self) -> dict[str, str]:
        """Return what to know about the model: name to one line of text."""
        model = self.model
        task = "regression" if model.labels is None else f"{len(model.labels)} classes"
        columns = model.expansion.prototypes.shape[1]
        shown = {
            "method": f"{self.method.title}, {task}",
            "data": f"{self.n_rows} rows x {columns} columns, {model.dtype}",
            "kernel": describe_kernel(self.kernel),
            "prototypes": self._size_in_words(),
        }
        if self.method.has_C:
            shown["C"] = in_words(np.asarray(self.C))
        error, spread = rounded(self.cv_error, 4), rounded(self.standard_error, 2)
        shown["error"] = (
            f"{error} +- {spread} standard error ({METRIC_NAMES[self.metric]}, cross-validated)"
        )
        tuning, folds, seconds = self.tuning, len(self.folds.index), self.seconds
        shown["chosen by"] = (
            f"{type(self.search).__name__} search, {len(tuning.history)} evaluations "
            f"({tuning.stopped}), {f'{folds} folds' if folds > 1 else 'rows held out'}"
        )
        phases = [name for name in ("prototypes", "tuning", "fit") if name in seconds]
        each, total = [f"{name} {seconds[name]:.2f}" for name in phases], seconds.get("total", 0.0)
        shown["seconds"] = (
            f"{total:.2f} ({', '.join(each)}), of which "
            f"compilation {min(seconds.get('compile', 0.0), total):.2f}"
        )
        shown["status"] = status_in_words(self.statuses)
        return shown

    def _size_in_words(self) -> str:
        size, curve = str(self.model.size), self.curve
        if self.size is not None:
            size += f" of {self.n_points} candidates"
        if curve is not None:
            size += (
                f"; {len(curve.sizes)} sizes from {curve.sizes[0]} to {curve.sizes[-1]} compared"
            )
        return size

    @property
    def standard_error(self) -> float:
        """The standard error of `cv_error`, from its spread over the folds."""
        if self.curve is not None:
            return float(self.curve.standard_errors[self.curve.chosen])
        return self.tuning.standard_error

    @property
    def size(self) -> int | None:
        """The number of prototypes chosen, of a path."""
        return None if self.model.path is None or self.curve is None else self.curve.size

    @property
    def status(self) -> int:
        """Stop code of the machine chosen, see `check`."""
        with jax.enable_x64(self.model.dtype == np.float64):
            if self.size is None:
                return int(self.fit.status)
            return self.fit.status_at(self.size)

    @property
    def statuses(self) -> dict[str, int]:
        """Stop codes of the machine chosen and of what it rests on, see `check`.

        The code of cross-validation says only whether steps ran out.
        """
        validation = EXHAUSTED if self.tuning.status == EXHAUSTED else COMPLETED
        return {
            "fit": self.status,
            "choice of prototypes": self.selection_status,
            "cross-validation": validation,
        }

    @property
    def expansion(self) -> KernelExpansion:
        """The machine; takes raw inputs."""
        return self.model.expansion

    @property
    def classes(self) -> np.ndarray | None:
        """Labels in sorted order; of two, a value >= 0 decides for the second."""
        return self.model.classes

    @property
    def code(self) -> Code | None:
        """Of more than two classes."""
        return self.model.code

    @property
    def decoding(self) -> Decoding:
        """How the values of the problems become a class."""
        return self.model.decoding

    def at(self, size: int) -> Model:
        """The model with so many prototypes, see `Model.at`."""
        return self.model.at(size)

    def predict(self, X: Any) -> np.ndarray:
        """See `Model.predict`."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """See `Model.predict_proba`."""
        return self.model.predict_proba(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """See `Model.decision_function`."""
        return self.model.decision_function(X)

    def interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """See `Model.interval`."""
        return self.model.interval(X, coverage)

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """See `Model.predict_set`."""
        return self.model.predict_set(X, coverage)

    def relevance(self, names: Sequence[Any] | None = None) -> Relevance:
        """See `Model.relevance`."""
        return self.model.relevance(names)
