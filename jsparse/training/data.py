"""The rows of a run, their encoding and their folds."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped

from .._repr import short_repr
from .._types import Key
from ..kernels import Kernel
from ..machines.method import Method, Points, Shape, TrainingRows, rows_at
from ..validation.folds import Folds
from .encoding import Encoding, indicators, standardised
from .inputs import WeightedRows
from .plan import Plan, plan_of
from .settings import Config
from .source import InMemory
from .streamed import Streamed


class TrainingData(NamedTuple):
    """The rows of a run, their encoding and their folds.

    The `n` *validation rows* are all rows in memory, or the sample of a stream. Their arrays in
    `truth`, `weights`, `weighted` and `folds` are on the host.
    """

    source: InMemory | Streamed
    encoding: Encoding
    shape: Shape
    candidates: TrainingRows  # the rows from which points are chosen
    truth: Shaped[np.ndarray, " n *c"]  # class numbers or raw targets of the validation rows
    weights: Float[np.ndarray, " n"] | None  # of the validation rows; 0 for a row in no fold
    weighted: WeightedRows  # the validation rows among the caller's rows, or in the stream
    folds: Folds  # of the validation rows
    compared: dict[str, Any]  # values that must be equal in all processes of a mesh
    planning: dict[str, Any]  # arguments of `plan` that depend on the source

    __repr__ = short_repr

    def predicted(self, method: Method) -> Bool[np.ndarray, " n"]:
        """Return which validation rows have weight and are in a fold that the method validates."""
        folds = method.validation_folds(self.folds, len(self.truth))
        predicted = np.zeros(len(self.truth), bool)
        predicted[np.asarray(folds.index)[np.asarray(folds.valid)]] = True
        return predicted if self.weights is None else predicted & (self.weights > 0)

    def plan(self, method: Method, config: Config, n_parameters: int) -> Plan | None:
        """Return the memory plan of a run; None if the method needs little more than the rows.

        The method is resolved, and the kernel has `n_parameters` tuned leaves.
        """
        return plan_of(
            method, n=self.source.n_rows, d=self.shape.d, code=self.encoding.code,
            n_C=config.C.size, dtype=self.source.dtype, search=config.search,
            n_parameters=n_parameters, memory=config.resources.memory, **self.planning,
        )  # fmt: skip

    def choose_points(self, method: Method, key: Key, kernel: Kernel) -> Points:
        """Return the points that the method chooses: its prototypes, or candidates for them.

        The method sees an indicator column for each category. The chosen points have the original
        columns. If columns hold categories, and the method computes points that are not rows, raise
        a `ValueError`.
        """
        rows, codes = self.candidates, self.encoding.codes
        X = jax.device_put(indicators(np.asarray(rows.X), codes)) if codes else rows.X
        # If each column has one category, the indicators are constant, and of no use.
        if X.shape == rows.X.shape:
            return method.choose_points(key, kernel, rows)
        wide = standardised(X, rows.weights)[1]
        points = method.choose_points(key, kernel, rows._replace(X=wide, coded=rows.X))
        if points.X is None or points.X.shape[1] == rows.X.shape[1]:
            return points
        if points.rows is None:
            raise ValueError(
                f"{type(method).__name__}: expected prototypes that are rows, as some columns hold "
                "categories, which have no means"
            )
        return points._replace(X=rows_at(rows.X, points.rows))
