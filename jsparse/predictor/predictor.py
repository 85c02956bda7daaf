"""The deployed model in NumPy: raw inputs to labels, probabilities, intervals and sets."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .answers import Answers
from .checks import NameRow, check_scores, row_index, rows_of
from .codes import distances
from .conformal import ConformalScores
from .machine import Machine
from .schema import Schema
from .tables import encode_table, is_table


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor(Answers):
    """A trained machine that maps raw inputs to values, labels and probabilities, by NumPy alone.

    The methods take the arguments of the methods of `jsparse.Model`, return what these return
    outside of JAX's transformations, and raise the same errors. All numbers are NumPy arrays, so a
    predictor may be pickled, and used by several threads and processes, also after a fork.

    Attributes:
        machine: kernel, prototypes, coefficients, intercept and scaling.
        inverse_temperatures: a factor of the scores for each predicted class, shape `k`, float64;
            None for a regression, or a model without probabilities.
        conformal: errors on held-out rows; None for a model without intervals and sets.
        code: matrix of the output code, shape `k l`, float64; None for two classes or a regression.
        decoding: name of the distance that decodes the values of the code's problems.
        labels: the classes in sorted order; None for a regression.
        label_dtype: NumPy's name of the dtype of the labels.
        quantiles: the quantiles of the target that the values estimate, in increasing order; empty
            for a model of means or classes. Several are sorted in each row.
        columns: schema that encodes a table as inputs, if the model was trained on one.
        about: record of the training, such as method, metric and error, in JSON types.
    """

    machine: Machine
    inverse_temperatures: np.ndarray | None = None
    conformal: ConformalScores | None = None
    code: np.ndarray | None = None
    decoding: str = "loss"
    labels: tuple[Any, ...] | None = None
    label_dtype: str = ""
    quantiles: tuple[float, ...] = ()
    columns: Schema | None = None
    about: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def classes(self) -> np.ndarray | None:
        """The labels in sorted order."""
        return None if self.labels is None else np.array(self.labels, dtype=self.label_dtype)

    @property
    def dtype(self) -> np.dtype:
        """The dtype in which the model computes."""
        return self.machine.dtype

    @property
    def size(self) -> int:
        """The number of prototypes."""
        return len(self.machine.prototypes)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the values at raw inputs, shape `n` or `n c`, without checks; quantiles sorted."""
        with np.errstate(over="ignore"):
            values = self.machine(np.asarray(X, self.dtype))
        return np.sort(values, axis=-1) if self._sorts_quantiles else values

    def n_prototypes(self, *, by_fold: bool = False) -> int:
        """Return the number of prototypes that `scores` evaluates; with `by_fold` of all folds."""
        return len(self._machine(by_fold).prototypes)

    def _machine(self, by_fold: bool) -> Machine:
        """Return the machines of the folds if `by_fold` and there are any, else the machine."""
        if by_fold and self.conformal is not None and self.conformal.machines is not None:
            return self.conformal.machines
        return self.machine

    def scores(
        self, inputs: np.ndarray, *, name_row: NameRow = row_index, by_fold: bool = False
    ) -> np.ndarray:
        """Return the scores of an array of finite inputs.

        They have shape `n`, or `n k` for `k` classes with a code or `k` outputs of a regression.

        Args:
            inputs: raw inputs, shape `n d`.
            name_row: names a row in error messages, given its index; by default "row index 4".
            by_fold: return the scores of the `v` folds' machines, if there are any. Their shape is
                `n v` or `n v k`.

        Raises:
            NumericalError: if a score is not finite; the message names the row.
        """
        machine = self._machine(by_fold)
        with np.errstate(all="ignore"):
            values = machine(np.asarray(inputs, self.dtype))
            if machine is not self.machine:
                outputs = self.machine.intercept.shape
                n_machines = machine.intercept.size // math.prod(outputs)
                values = values.reshape(len(values), n_machines, *outputs)
            if self._sorts_quantiles:
                values = np.sort(values, axis=-1)
            if self.code is not None:
                values = -distances(self.code.astype(self.dtype), values, self.decoding)
        check_scores(values, name_row=name_row)
        return values

    @staticmethod
    def _answer(
        model: "Predictor", X: Any, answer: Callable[[Any, Any], Any], *, by_fold: bool = False
    ) -> Any:
        inputs, single = model.inputs(X)
        result = answer(model.scores(inputs, by_fold=by_fold), np)
        return result[0, ...] if single else result

    def inputs(self, X: Any) -> tuple[np.ndarray, bool]:
        """Return the rows of an array or a table as an array, and whether `X` was one row.

        Raises:
            ValueError: as `decision_function`.
        """
        table = is_table(X)
        if table and self.columns is not None:
            return encode_table(self.columns, X, self.dtype), False
        # A table is taken for an array whose columns are in the order of training.
        rows, single = rows_of(X, self.machine.prototypes.shape[1], self.dtype)
        return rows, single and not table

    def __repr__(self) -> str:
        d = self.machine.prototypes.shape[1]
        what = "regression" if self.labels is None else f"{len(self.labels)} classes"
        return (
            f"Predictor: {what}, {d} inputs, {self.size} prototypes, "
            f"{type(self.machine.kernel).__name__} kernel, {self.dtype}"
        )
