"""The rows of a run, and what training knows of them."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped

from .._repr import short_repr
from .._types import Key
from ..kernels import Kernel
from ..machines.method import Method, Points, Shape, TrainingRows, rows_at
from ..validation.folds import Folds
from .encoding import Encoding, indicators, standardised
from .inputs import CountingRows
from .plan import Plan, plan
from .settings import Config
from .source import InMemory
from .streamed import Streamed


class TrainingData(NamedTuple):
    """The rows of a run, and what training knows of them; but for the source on the host."""

    source: InMemory | Streamed
    encoding: Encoding
    shape: Shape
    candidates: TrainingRows  # from which points are chosen
    truth: Shaped[np.ndarray, "n *c"]  # class numbers or raw targets of the rows that are predicted
    weights: Float[np.ndarray, " n"] | None  # of these rows; 0 for a row that is in no fold
    counting: CountingRows  # their numbers among the caller's rows, or in the stream
    folds: Folds  # by number among them
    compared: dict[str, Any]  # what must be the same in all processes of a mesh
    planning: dict[str, Any]  # arguments of `plan` that depend on the source

    __repr__ = short_repr

    @property
    def predicted(self) -> slice | np.ndarray:
        """Which rows are in a fold: all, or a mask."""
        return slice(None) if self.weights is None else self.weights > 0

    def plan(self, method: Method, config: Config, n_parameters: int) -> Plan | None:
        """Return what a run of the resolved method takes; None if hardly more than the rows."""
        arguments = {
            "n": self.source.n_rows,
            "d": self.shape.d,
            "code": self.encoding.code,
            "n_C": config.C.size,
            "dtype": self.source.dtype,
            "search": config.search,
            "n_parameters": n_parameters,
            "memory": config.resources.memory,
            **self.planning,
        }
        if method.memory is not None:
            arguments["m"] = method.memory
        return plan(**arguments) if "m" in arguments else None

    def choose_points(self, method: Method, key: Key, kernel: Kernel) -> Points:
        """Return the points that may carry the model.

        While they are chosen, categories have a column of indicators each.
        """
        rows, codes = self.candidates, self.encoding.codes
        if not codes:
            return method.choose_points(key, kernel, rows)
        X = jax.device_put(indicators(np.asarray(rows.X), codes))
        wide = standardised(X, rows.weights)[1]
        points = method.choose_points(key, kernel, rows._replace(X=wide))
        if points.X is None or points.X.shape[1] == rows.X.shape[1]:
            return points
        if points.rows is None:
            raise ValueError(
                f"{type(method).__name__}: expected prototypes that are rows, as some columns hold "
                "categories, which have no means"
            )
        return points._replace(X=rows_at(rows.X, points.rows))
