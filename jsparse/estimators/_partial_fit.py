"""Estimators with `partial_fit`, which adds rows after the fit and may forget earlier rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float

from .._arguments import labels_of
from .._repr import short_repr
from .._status import check
from ..machines.fixed_size import FixedSize
from ..training.forgetting import Forgetting, forgetting
from ..training.inputs import checked_weights, encoded_targets, row_weights
from ..training.more_rows import KEEP, with_more_rows, with_window
from ._base import Classifier, Machine, Regressor, vector_of
from ._inputs import checked_targets

Batch = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # inputs, targets and row weights


class ProgressiveScore(NamedTuple):
    """The errors of a machine on the batches of a stream, each predicted before it is learnt.

    Attributes:
        errors: error of each batch, shape `b`; NaN for a batch that only started the machine.
        weights: sum of the row weights of each batch, shape `b`.
        overall: the weighted mean of the errors; NaN if no batch was predicted.
        metric: "misclassification" or "mse".
    """

    errors: Float[np.ndarray, " b"]
    weights: Float[np.ndarray, " b"]
    overall: float
    metric: str

    __repr__ = short_repr


class _MoreRows(Machine):
    """An estimator that keeps sums over rows, to which it can add more rows."""

    @property
    def n_resummed_(self) -> int:
        """How often the rows of the window were summed again, because rounding had added up."""
        window = None if self._sums is None else self._sums.window
        return 0 if window is None else window.n_resummed

    def progressive_score(self, stream: Iterable[Any], **options: Any) -> ProgressiveScore:
        """Predict each batch of a stream, then learn it; return the errors of the predictions.

        The machine has not seen the rows that it predicts, as after deployment. If the estimator is
        not fitted, the first batch fits it and is not predicted.

        Args:
            stream: batches `(X, y)` or `(X, y, sample_weight)`, in the order of time.
            **options: arguments of `partial_fit`, such as `forget=0.9`.

        Returns:
            The error of each batch and over all batches: the share of wrong labels, or the mean
            squared error. The error of a batch that was not predicted is NaN.

        Raises:
            ValueError: if there is no batch; otherwise as for `partial_fit`. The batches before the
                invalid one have been learnt.
        """
        errors, weights = [], []
        for X, y, *rest in stream:
            n, sample_weight = len(y), rest[0] if rest else None
            w = np.ones(n) if sample_weight is None else checked_weights(sample_weight, n)
            fitted = hasattr(self, "model_")
            errors.append(np.average(self._row_errors(X, y), weights=w) if fitted else np.nan)
            weights.append(w.sum())
            cast(Any, self).partial_fit(X, y, sample_weight=sample_weight, **options)
        if not errors:
            raise ValueError("stream: expected at least one batch of rows, got none")
        error, weight = np.array(errors), np.array(weights)
        known = ~np.isnan(error)
        overall = np.average(error[known], weights=weight[known]) if known.any() else np.nan
        return ProgressiveScore(error, weight, float(overall), self._progressive_metric)

    _progressive_metric: str

    def _row_errors(self, X: Any, y: Any) -> np.ndarray:
        """Check rows as `partial_fit` does; return each row's error in `_progressive_metric`."""
        raise NotImplementedError

    def _batch(self, X: Any, y: Any, sample_weight: Any) -> Batch:
        """Check rows; return inputs, targets and weights as arguments of `with_more_rows`."""
        raise NotImplementedError

    def _add(self, X: Any, y: Any, sample_weight: Any, forget: Forgetting) -> None:
        """Add rows to the sums, fit the machine again and publish it; an error changes nothing."""
        method: FixedSize = self._method.check_sums("partial_fit")
        X, targets, weights = self._batch(X, y, sample_weight)
        assert self._sums is not None
        model, sums, status = with_more_rows(
            method, self.model_, self._sums, self.C_, X, targets, weights, forget
        )
        check(status, type(self).__name__)
        self._sums = sums
        self._publish(model)

    def _keep_window(self, X: Any, y: Any, sample_weight: Any, size: int | None) -> None:
        """Store the last `size` rows of the first batch for the window; nothing for None."""
        if size is None:
            return
        X, targets, weights = self._batch(X, y, sample_weight)
        assert self._sums is not None
        assert weights is not None
        self._sums = with_window(self.model_, self._sums, X, targets, weights, size)


def _first_weights(forget: Forgetting, y: Any, sample_weight: Any) -> Any:
    """Return the weights of the first batch's rows, reduced by the age of each row."""
    if forget == KEEP or np.ndim(y) == 0:  # without targets the fit raises an error
        return sample_weight
    n = len(y)
    weights = np.ones(n) if sample_weight is None else checked_weights(sample_weight, n)
    return forget.row_weights(weights)


class MoreRowsClassifier(_MoreRows, Classifier):
    """A classifier with `partial_fit`."""

    _progressive_metric = "misclassification"

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        forget: float | None = None,
        half_life: float | None = None,
        window: int | None = None,
    ) -> "MoreRowsClassifier":
        """Add rows to the machine; fit the estimator if it is not fitted.

        The first call does what `fit` does. Later calls keep the kernel, `C`, the prototypes, the
        standardisation, and the calibration of probabilities, intervals and sets. With these, the
        machine is fitted to all rows so far, and equals one fit to these rows. The order of the
        rows does not matter. The machines of the folds are dropped, as they lack the new rows.

        If the rows drift, one of `forget`, `half_life` and `window` makes the machine forget. It
        then equals one fit with the weights that the rows have left, up to rounding. `C` weighs the
        sum of these rows against the penalty, so a machine that remembers few rows is smoother.

        - `forget` and `half_life` multiply sums over rows, which adds no rounding that grows.
        - `window` subtracts the sums over the rows that leave, so rounding adds up. If it may
          exceed 1024 units of rounding of the sums, the rows of the window are summed again;
          `n_resummed_` counts these events. The window needs memory for its rows, and must be
          stated from the first call on, always with the same number.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: class labels, shape `(n_samples,)`. The first call needs at least two classes.
            classes: all labels of the first and of later calls; by default the labels in the first
                `y`.
            sample_weight: row weights, shape `(n_samples,)`. A row of weight 0 is absent: it has no
                age, and no place in a window.
            forget: factor from 0 to 1 by which this call multiplies the weights of all earlier
                rows.
            half_life: number of later rows that halve a row's weight, above 0. Rows of one batch
                are in the order of time, in the first call too.
            window: number of last rows that count. The first call fits to its last rows.

        Returns:
            The estimator itself. An error after the first call leaves it unchanged.

        Raises:
            ValueError: for `class_weight="balanced"`, because new rows would change the weights of
                earlier rows; for labels or columns that are not in the first call; if several of
                `forget`, `half_life` and `window` are stated, or the window differs from the
                window of the first call.
        """
        forgotten = forgetting(forget, half_life, window)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight: expected None or a mapping for partial_fit, got "
                f"{self.class_weight!r}; new rows would change the weights of earlier rows"
            )
        if not hasattr(self, "model_"):
            weights = _first_weights(forgotten, y, sample_weight)
            self._fit_labels(X, y, weights, classes)
            self._keep_window(X, y, weights, window)
            return self
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes: expected the labels of the first call, {self.classes_.tolist()}, got "
                f"{np.unique(classes).tolist()}"
            )
        self._add(X, y, sample_weight, forgotten)
        return self

    def _batch(self, X: Any, y: Any, sample_weight: Any) -> Batch:
        labels_of("y", y)
        X = self._rows(X)
        y = checked_targets(self, X, y)
        numbers, _ = encoded_targets(y, "classification", self.classes_)
        weights = row_weights(sample_weight, self.class_weight, numbers, self.classes_)
        return X, 2 * numbers - 1 if self.model_.code is None else numbers, weights

    def _row_errors(self, X: Any, y: Any) -> np.ndarray:
        self._batch(X, y, None)
        return (self.predict(X) != np.asarray(y)).astype(float)


class MoreRowsRegressor(_MoreRows, Regressor):
    """A regressor with `partial_fit`."""

    _progressive_metric = "mse"

    def partial_fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        forget: float | None = None,
        half_life: float | None = None,
        window: int | None = None,
    ) -> "MoreRowsRegressor":
        """Add rows to the machine; fit the estimator if it is not fitted.

        See `MoreRowsClassifier.partial_fit`, which also explains how the machine forgets.

        Args:
            X: inputs, shape `(n_samples, n_features)`, an array or a table; cast to the precision
                of the machine.
            y: targets, shape `(n_samples,)` or `(n_samples, n_targets)`, as in the first call.
            sample_weight: row weights, shape `(n_samples,)`.
            forget: factor from 0 to 1 by which this call multiplies the weights of all earlier
                rows.
            half_life: number of later rows that halve a row's weight.
            window: number of last rows that count; equal in every call.

        Returns:
            The estimator itself. An error after the first call leaves it unchanged.

        Raises:
            ValueError: for columns or numbers of targets that differ from the first call; if
                several of `forget`, `half_life` and `window` are stated, or the window differs
                from the window of the first call.
        """
        forgotten = forgetting(forget, half_life, window)
        if not hasattr(self, "model_"):
            weights = _first_weights(forgotten, y, sample_weight)
            self.fit(X, y, weights)
            self._keep_window(X, y, weights, window)
            return self
        self._add(X, y, sample_weight, forgotten)
        return self

    def _batch(self, X: Any, y: Any, sample_weight: Any) -> Batch:
        X = self._rows(X)
        y = vector_of(checked_targets(self, X, y, y_numeric=True, multi_output=True))
        shape = (len(X), *self.intercept_.shape)
        if y.shape != shape:
            raise ValueError(f"y: expected shape {shape}, as in the first call, got {y.shape}")
        weights = None if sample_weight is None else row_weights(sample_weight, None, y, None)
        return X, y, weights

    def _row_errors(self, X: Any, y: Any) -> np.ndarray:
        _, targets, _ = self._batch(X, y, None)
        return np.square(self.predict(X) - targets).reshape(len(targets), -1).mean(axis=1)
