"""Estimators to which rows can be added after the fit."""

from typing import Any

import numpy as np

from .._arguments import labels_of
from .._status import check
from ..machines.fixed_size import FixedSize
from ..training.inputs import encoded_targets, row_weights
from ..training.more_rows import with_more_rows
from ._base import Classifier, Machine, Regressor, vector_of
from ._inputs import checked_targets


class _MoreRows(Machine):
    """A machine whose sums over rows can be added to."""

    def _add(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> None:
        """Sum more rows and solve again. Nothing changes unless all of that succeeds."""
        method: FixedSize = self._method.check_sums("partial_fit")
        assert self._sums is not None
        model, sums, status = with_more_rows(
            method, self.model_, self._sums, self.C_, X, targets, weights
        )
        check(status, type(self).__name__)
        self._sums = sums
        self._publish(model)


class MoreRowsClassifier(_MoreRows, Classifier):
    """A classifier with `partial_fit`."""

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "MoreRowsClassifier":
        """Add rows to a machine, exactly as one fit to all rows so far would have used them.

        Kernel, `C`, prototypes and standardisation stay those of `fit`, or of the first call, which
        does what `fit` does; so does the calibration of probabilities, intervals and sets, but for
        the machines of the folds, which are dropped as they lack the new rows. The order in which
        rows come does not matter.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: class labels, shape `(n_samples,)`.
            classes: all labels that may ever come, for the first call, whose `y` must have two of
                them at least; by default the labels of its `y`.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself; unchanged if an error is raised once it is fitted.

        Raises:
            ValueError: for `class_weight="balanced"`, with which new rows change the weights of old
                ones; for labels or columns that were not there.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight: expected None or a mapping for partial_fit, got "
                f"{self.class_weight!r}; new rows would change the weights of old ones"
            )
        if not hasattr(self, "model_"):
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


class MoreRowsRegressor(_MoreRows, Regressor):
    """A regressor with `partial_fit`."""

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MoreRowsRegressor":
        """Add rows to a machine, exactly as one fit to all rows so far would have used them.

        See `MoreRowsClassifier.partial_fit`.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: targets, shape `(n_samples,)` or `(n_samples, n_targets)`, as in the first call.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself; unchanged if an error is raised once it is fitted.

        Raises:
            ValueError: for columns or targets that were not there.
        """
        if not hasattr(self, "model_"):
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
