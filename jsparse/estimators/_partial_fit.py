"""Estimators with `partial_fit`, which adds rows after the fit."""

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
    """An estimator that keeps sums over rows, to which it can add more rows."""

    def _add(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> None:
        """Sum more rows, solve again and publish; after an error nothing has changed."""
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
        """Add rows to the machine; fit the estimator if it is not fitted.

        The first call does what `fit` does. Later calls keep the kernel, `C`, the prototypes, the
        standardisation, and the calibration of probabilities, intervals and sets. With these, the
        machine is fitted to all rows so far, and equals one fit to these rows. The order of the
        rows does not matter. The machines of the folds are dropped, as they lack the new rows.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: class labels, shape `(n_samples,)`. The first call needs at least two classes.
            classes: all labels of the first and of later calls; by default the labels in the first
                `y`.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself. An error after the first call leaves it unchanged.

        Raises:
            ValueError: for `class_weight="balanced"`, because new rows would change the weights of
                earlier rows; for labels or columns that are not in the first call.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight: expected None or a mapping for partial_fit, got "
                f"{self.class_weight!r}; new rows would change the weights of earlier rows"
            )
        if not hasattr(self, "model_"):
            self._fit_labels(X, y, sample_weight, classes)
            return self
        labels_of("y", y)
        X = self._rows(X)
        y = checked_targets(self, X, y)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes: expected the labels of the first call, {self.classes_.tolist()}, got "
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
        """Add rows to the machine; fit the estimator if it is not fitted.

        See `MoreRowsClassifier.partial_fit`.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: targets, shape `(n_samples,)` or `(n_samples, n_targets)`, as in the first call.
            sample_weight: row weights, shape `(n_samples,)`.

        Returns:
            The estimator itself. An error after the first call leaves it unchanged.

        Raises:
            ValueError: for columns or numbers of targets that differ from the first call.
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
