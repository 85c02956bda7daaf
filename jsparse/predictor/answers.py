"""What a model answers about rows: scores, labels, probabilities, intervals and sets."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from .codes import decisions, probabilities
from .conformal import in_blocks, intervals, margin_deficit, sets


class Answers(abc.ABC):
    """The predictions of `jsparse.Model` and `Predictor`, which differ in how they get scores."""

    inverse_temperatures: Any
    conformal: Any
    labels: Any
    quantiles: tuple[float, ...]

    @property
    def _sorts_quantiles(self) -> bool:
        """Whether the model estimates several quantiles, whose values are sorted in each row."""
        return len(self.quantiles) > 1

    @property
    @abc.abstractmethod
    def classes(self) -> np.ndarray | None:
        """The labels in sorted order; None for a regression."""

    # These functions are static. `equinox` wraps a method in a pytree each time the method is read
    # from a module, which takes as long as a prediction.

    @staticmethod
    @abc.abstractmethod
    def _answer(
        model: Any, X: Any, answer: Callable[[Any, Any], Any], *, by_fold: bool = False
    ) -> Any:
        """Return `answer(scores, xp)` for the scores of `X`; `xp` is `numpy` or `jax.numpy`.

        If `X` is one row, the result has no axis of rows. With `by_fold`, the scores come from the
        machines of the folds, if any, and have an axis of machines after the axis of rows.
        """

    @staticmethod
    def _labels_in(xp: Any, classes: np.ndarray) -> Any:
        """Return the labels `classes` as an array of `xp`, which is `numpy` or `jax.numpy`."""
        return classes

    @staticmethod
    def _map_blocks_in(xp: Any) -> Callable[..., Any]:
        """Return `map_blocks(function, rows, step)`, which applies a function to blocks of rows.

        The blocks have `step` rows. The rows are an array of `xp`: `numpy` or `jax.numpy`.
        """
        return in_blocks

    def decision_function(self, X: Any) -> Any:
        """Return scores, which are largest for the predicted class, or the values of a regression.

        Differentiable in `X`, except for the signs that "hamming" decoding counts.

        Args:
            X: raw inputs of shape `n d`, or one row of shape `d`; or a table with the columns of
                training, in any order.

        Returns:
            For two classes shape `n`, positive for the second class. For more classes shape `n k`,
            the negative distances from the classes' codes. For a regression shape `n` or, with
            several targets or quantiles, `n c`. For one row without the axis of rows.

        Raises:
            ValueError: for inputs that are not finite, or that have other columns.
            NumericalError: if a value of the model is not finite; the message names the row.

        Warns:
            UnseenCategoryWarning: once for a table with categories that training did not see.
        """
        return self._answer(self, X, lambda scores, xp: scores)

    def predict(self, X: Any) -> Any:
        """Return predicted labels, shape `n`, or the values of a regression, `n` or `n c`.

        Arguments and further errors are as for `decision_function`.

        Raises:
            ValueError: under JAX's transformations, for labels that JAX's arrays cannot hold.
        """

        def decide(scores: Any, xp: Any) -> Any:
            classes = self.classes
            if classes is None:
                return scores
            return self._labels_in(xp, classes)[decisions(scores)]

        return self._answer(self, X, decide)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes in their order, shape `n k`.

        They are the softmax of the scores times an inverse temperature, which depends on the
        predicted class and is fitted to the held-out scores of cross-validation. The predicted
        class is the most probable class. See `decision_function` for the arguments. Differentiable
        in `X` where the decision does not change.

        Raises:
            ValueError: for a regression, or a model without out-of-fold scores.
        """
        inverse_temperatures = self.inverse_temperatures
        if inverse_temperatures is None:
            hint = "train with out_of_fold=True; only the selected size has calibrated scores"
            hint = "this model has no classes" if self.labels is None else hint
            raise ValueError(f"predict_proba: expected a model with calibrated scores; {hint}")
        return self._answer(
            self, X, lambda scores, xp: probabilities(scores, inverse_temperatures, xp)
        )

    def interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return the ends of intervals that hold a new row's target with probability `coverage`.

        The intervals come from errors on held-out rows. If rows are exchangeable:

        - for a model `calibrated` on separate rows, the probability is at least `coverage` (split
          conformal prediction);
        - for a model trained with `out_of_fold="machines"`, it is at least `2 coverage - 1` up to a
          term of order `1 / sqrt(n)`, and usually close to `coverage` (CV+, Barber et al. 2021,
          Theorem 4; for the dual, jackknife+, Theorem 1). The guarantee is approximate: kernel,
          `C`, prototypes and scaling were chosen on the same rows. The centres are the values of
          the folds' machines, so the value of the model may rarely lie outside its interval;
        - otherwise nothing is guaranteed. The probability is close to `coverage` if the machine of
          all rows differs little from the folds' machines.

        The interval of a model of several quantiles is the band between the outermost, widened or
        narrowed on both sides by the same number (conformalised quantile regression, Romano et al.
        2019). Its width differs from row to row. Each of several targets has separate intervals.

        The model keeps some hundred quantiles of the errors. If `1 - coverage` has at most two
        significant digits, as for 0.9, 0.95 and 0.999, these quantiles give the intervals that all
        errors would give (with machines of the folds, if no fold has more than 99 rows). Any other
        coverage gets the intervals of the next larger such coverage, which are never too short.

        Args:
            X: raw inputs or a table, see `decision_function`.
            coverage: between 0 and 1, at most `n / (n + 1)` with the errors of n rows.

        Returns:
            Lower and upper ends, shape `n 2`, or `n c 2` for several targets; for one row without
            the axis of rows.

        Raises:
            ValueError: for a classifier, or a model without errors on held-out rows.
        """
        if self.labels is not None:
            raise ValueError("interval: expected a regression; for classes see `predict_set`")
        conformal = known_errors(self.conformal, "interval")

        def ends(values: Any, xp: Any) -> Any:
            values = _by_machine(values, conformal)
            return intervals(values, conformal, coverage, xp, self._map_blocks_in(xp))

        return self._answer(self, X, ends, by_fold=True)

    def predict_set(self, X: Any, coverage: float = 0.9) -> Any:
        """Return sets of classes that hold a new row's class with probability `coverage`.

        The margin deficit of a class is the best score of the other classes less the score of the
        class. A class is in the set unless its deficit exceeds the deficits of the true class on
        most held-out rows. `interval` states the guarantees (for CV+, Romano et al. 2020, Theorem
        3). If mistakes are rare, a set may be empty where several classes have similar scores.

        Args:
            X: raw inputs or a table, see `decision_function`.
            coverage: between 0 and 1, at most `n / (n + 1)` with the errors of n rows.

        Returns:
            Whether each class is in the set, in the order of `classes`, shape `n k`; for one row
            without the axis of rows.

        Raises:
            ValueError: for a regression, or a model without errors on held-out rows.
        """
        if self.labels is None:
            raise ValueError("predict_set: expected a classifier; of numbers see `interval`")
        conformal, k = known_errors(self.conformal, "predict_set"), len(self.labels)

        def in_set(scores: Any, xp: Any) -> Any:
            scores = _by_machine(scores, conformal)
            n, machines = scores.shape[:2]
            deficits = margin_deficit(scores.reshape(n * machines, *scores.shape[2:]), xp)
            deficits = deficits.reshape(n, machines, k)
            return sets(deficits, conformal, coverage, xp, self._map_blocks_in(xp))

        return self._answer(self, X, in_set, by_fold=True)


def known_errors(conformal: Any, what: str) -> Any:
    """Return `conformal`, the errors of a model on held-out rows, unless it is None.

    Raises:
        ValueError: if it is None. The message begins with `what`, the method or argument at fault.
    """
    if conformal is None:
        raise ValueError(
            f"{what}: expected a model with errors on held-out rows, which only the selected size "
            "of a training with out_of_fold=True has; `model.calibrated(X, y)` computes them on "
            "rows that were not trained on"
        )
    return conformal


def _by_machine(values: Any, conformal: Any) -> Any:
    """Return values with an axis of machines after the axis of rows, of length 1 without folds."""
    return values[:, None] if conformal.machines is None else values
