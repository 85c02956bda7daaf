"""The rows of a run: the source that searches evaluate on, and what else training knows of them."""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._mesh import on_default_device
from .._repr import short_repr
from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method, Points, Shape, TrainingRows, rows_at
from ..machines.rows import Rows
from ..multiclass import Code
from ..search.problem import Problem, Table
from ..validation.folds import Folds
from ..validation.validate import FoldLosses, Kept, Scoring, Validation
from .counting import CountingRows
from .encoding import Encoding, indicators
from .plan import Plan, plan
from .programs import HeldOutRows, evaluate, hold_out, standardised
from .settings import Config

NOTHING_KEPT = Kept(np.int32(0), np.int32(0))  # one program serves searches and predictions


class TrainingSource(abc.ABC):
    """A `search.problem.Source`: rows in memory, or a stream after its first pass.

    Attributes:
        placed: the rows that are predicted, as programs take them.
        folds: their folds by row number.
        n_predicted: how many they are without padding.
        n_rows: how many rows there are to train on.
    """

    placed: Rows
    folds: Folds
    n_predicted: int
    n_rows: int

    @property
    def dtype(self) -> jnp.dtype:
        """See `Source`."""
        return self.placed.dtype

    @property
    def code(self) -> Code | None:
        """See `Source`."""
        return self.placed.code

    @property
    @abc.abstractmethod
    def rows_scored(self) -> int:
        """See `Source`."""

    @property
    @abc.abstractmethod
    def kernels_at_once(self) -> int:
        """See `Source`."""

    @abc.abstractmethod
    def held_out_rows(self, problem: Problem, theta: Float[Any, "*q p"]) -> HeldOutRows:
        """Return what programs take of the problem and the rows, at points of the template."""

    @abc.abstractmethod
    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring
    ) -> list[Validation]:
        """See `Source`."""

    @abc.abstractmethod
    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, "*l"], sums: Sums | None
    ) -> tuple[Family, Sums | None]:
        """See `Source`."""

    @abc.abstractmethod
    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`."""

    def validate(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> Validation:
        """See `Source`; predictions are NaN for rows that are in no fold."""
        validation = evaluate(self.held_out_rows(problem, theta), C, FoldLosses(scoring, keep))
        validation = on_default_device(self.placed.mesh, validation)
        index, valid = map(
            np.asarray, problem.method.validation_folds(self.folds, self.n_predicted)
        )
        by_fold = np.asarray(validation.predictions)[: len(index), : index.shape[1]]
        values = np.full((self.n_predicted, by_fold.shape[2]), np.nan, by_fold.dtype)
        values[index[valid]] = by_fold[valid]
        return validation._replace(predictions=values.reshape(-1, *self.placed.outputs))

    def held_out(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """See `Source`."""
        held = hold_out(self.held_out_rows(problem, theta), C, on_fold)
        return on_default_device(self.placed.mesh, held._replace(total=None))

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "TrainingSource":
        """See `Source`."""
        raise ValueError("stream: expected a method that is tuned on all rows")

    def fold_machines(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, "*l"],
        size: int | None,
        sums: Sums | None,
    ) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """Return the machines that have not seen a fold, and the fold of each row.

        See `Method.fold_machines`.

        Raises:
            ValueError: for a stream.
        """
        raise ValueError("out_of_fold: expected True or False for a stream, got 'machines'")

    def follow(self, plan: Plan | None) -> None:
        """Evaluate as many kernels at once as the plan says, where memory sets a limit."""
        return


class TrainingData(NamedTuple):
    """The rows of a run, and what training knows of them; but for the source on the host."""

    source: TrainingSource
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
        """Return what a run will take; None if that is hardly more than the rows.

        Args:
            method: with every setting a value.
            config: of the run.
            n_parameters: the number of tuned leaves of the kernel.
        """
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
