"""Rows that are in memory: validated on and fitted to."""

import dataclasses
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._blocks import padded
from .._mesh import on_default_device
from .._numerics import is_concrete
from .._repr import short_repr
from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel, Linear
from ..machines.family import Family
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method, Points, Shape, TrainingRows, rows_at
from ..machines.rows import Rows
from ..multiclass import Code
from ..search.problem import Problem, Table
from ..search.template import Template
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds
from ..validation.validate import Kept, Scoring, Validation
from .categories import indicators
from .counting import CountingRows
from .encoding import Encoding
from .plan import Plan, plan
from .programs import (
    evaluate,
    evaluate_batch,
    hold_out,
    some_rows,
    standardised,
    target_columns,
)
from .settings import Config

_NOTHING_KEPT = Kept(np.int32(0), np.int32(0))  # one program serves searches and predictions


class Facts(NamedTuple):
    """What training knows of a table besides the rows themselves; on the host."""

    encoding: Encoding
    X: Float[np.ndarray, "n d"]  # raw inputs of the rows that count
    numbers: Shaped[np.ndarray, "n *c"]  # class numbers, or raw targets, of the rows that count
    weights: Float[np.ndarray, " n"] | None  # of the rows that count
    counting: CountingRows

    __repr__ = short_repr


def shape_of(n: int, d: int, folds: Folds, n_classes: int | None, kernel: Kernel) -> Shape:
    """Return what a method may know of `n` rows before any work on them.

    Raises:
        ValueError: for a fold of all rows.
    """
    in_fold = np.asarray(folds.valid).sum(axis=1)
    if int(in_fold.max()) == n:
        raise ValueError(
            "folds: expected rows with weight outside of every fold; fold "
            f"{int(np.argmax(in_fold))} has all {n}"
        )
    return Shape(n, n, n - int(in_fold.max()), d, n_classes, isinstance(kernel, Linear))


@dataclasses.dataclass(frozen=True)
class InMemory:
    """Standardised rows in memory, and their folds: a `search.problem.Source`.

    Attributes:
        rows: the rows in their own order, padded with rows of weight 0.
        placed: the same rows as programs take them, spread over the devices of a mesh.
        layout: the folds of the placed rows.
        folds: the folds by row number, padded as the rows are.
        n_rows: how many rows there are without the padding.
        facts: what training knows of the table; None for a problem made of arrays.
    """

    rows: Rows
    placed: Rows
    layout: Folds | ShardedFolds
    folds: Folds
    n_rows: int
    facts: Facts | None = None

    __repr__ = short_repr

    @property
    def dtype(self) -> jnp.dtype:
        """See `Source`."""
        return self.rows.dtype

    @property
    def code(self) -> Code | None:
        """Several classes as several binary problems."""
        return self.rows.code

    @property
    def rows_scored(self) -> int:
        """See `Source`."""
        weights = self.rows.weights
        return int(np.sum(np.asarray(weights) > 0)) if is_concrete(weights) else len(self.rows)

    @property
    def kernels_at_once(self) -> int:
        """One on a CPU, which it fills and which can report after each; else all there are."""
        return 1 if jax.default_backend() == "cpu" else sys.maxsize

    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring
    ) -> list[Validation]:
        """See `Source`."""
        if len(thetas) > 1 and problem.method.shares_work_over_C:
            every = evaluate_batch(*self._program(problem), thetas, C, scoring)
            return [
                jax.tree.map(lambda a, i=i: np.asarray(a)[i], every) for i in range(len(thetas))
            ]
        return [
            self._evaluate(problem, theta, c, scoring, _NOTHING_KEPT)._replace(
                predictions=None, total=None
            )
            for theta, c in zip(thetas, C, strict=True)
        ]

    def validate(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> Validation:
        """See `Source`."""
        found = self._evaluate(problem, theta, C, scoring, keep)
        found = on_default_device(self.placed.mesh, found)
        return found._replace(predictions=self._in_order(problem.method, found.predictions))

    def held_out(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """See `Source`."""
        found = hold_out(*self._program(problem), theta, C, on_fold)
        return on_default_device(self.placed.mesh, found._replace(total=None))

    def fit(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        sums: Sums | None,
    ) -> tuple[Family, Sums | None]:
        """See `Source`."""
        arguments = kernel, problem.points, C, self.placed, problem.key, sums
        return on_default_device(self.placed.mesh, problem.method.fit_and_sum(*arguments))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`; each class against all others, whatever the code."""
        rows, k = self.rows, None if self.code is None else len(self.code.matrix)
        return rows.X, target_columns(rows.X, rows.y, k), rows.weights

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "InMemory":
        """See `Source`; they have no folds of their own."""
        X, y, weights = some_rows((self.rows.X, self.rows.y, self.rows.weights), rows)
        some = Rows(X, y, weights, self.code)
        return dataclasses.replace(self, rows=some, placed=some)

    def _program(self, problem: Problem) -> tuple[Any, ...]:
        """Return what the programs take of a problem and of these rows."""
        points, key = problem.points, problem.key
        return problem.method, problem.template, points, self.placed, self.layout, key

    def _evaluate(
        self, problem: Problem, theta: Any, C: Any, scoring: Scoring, keep: Kept
    ) -> Validation:
        return evaluate(*self._program(problem), theta, C, scoring, keep)

    def _in_order(self, method: Method, values: Float[Array, "v r l"]) -> np.ndarray:
        """Return values laid out by folds in the order of the rows, shape `n *outputs`."""
        folds = method.validation_folds(self.folds, len(self.rows))
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        by_fold = np.asarray(values)[:, : index.shape[1]]
        ordered = np.zeros((len(self.rows), by_fold.shape[2]), by_fold.dtype)
        ordered[index[valid]] = by_fold[valid]
        return ordered[: self.n_rows].reshape(self.n_rows, *self.rows.outputs)

    def fold_machines(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        size: int | None,
        sums: Sums | None,
    ) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """See `TrainingSource`."""
        method, fold = problem.method, np.zeros(self.n_rows, np.int32)
        folds = method.validation_folds(self.folds, self.n_rows)
        index, valid = (np.asarray(a) for a in folds)
        for number, members in enumerate(valid):
            fold[index[number, members]] = number
        machines = method.fold_machines(
            kernel, problem.points, C, size, self.rows, folds, problem.key, sums
        )
        return machines, fold

    def shape(self, method: Method, template: Template) -> Shape:
        """Return what a method may know of the rows before any work, see `shape_of`."""
        d, classes = self.rows.X.shape[1], self.encoding.n_classes
        return shape_of(self.n_rows, d, self.folds, classes, template.kernel)

    def plan(self, method: Method, template: Template, config: Config) -> Plan | None:
        """Return what a run will take; None for a method whose memory is hardly more than rows."""
        if method.memory is None:
            return None
        return plan(
            self.n_rows, self.rows.X.shape[1], method.memory, folds=len(self.folds.index),
            code=self.code, n_C=config.C.size, dtype=self.dtype, memory=config.resources.memory,
        )  # fmt: skip

    def planned(self, plan: Plan | None) -> "InMemory":
        """Return the source for a run of that plan."""
        return self

    def choose_points(self, method: Method, key: Key, kernel: Kernel) -> Points:
        """Return the points that may carry the model.

        While they are chosen, categories have a column of indicators each.
        """
        rows, encoding = self.rows, self.encoding
        assert self.facts is not None
        labels = padded(self.facts.numbers, len(rows)) if encoding.classes is not None else None
        weights = np.asarray(rows.weights)
        training = TrainingRows(rows.X, labels, weights, encoding.scaling, self.n_rows)
        if not encoding.codes:
            return method.choose_points(key, kernel, training)
        X = jax.device_put(indicators(np.asarray(rows.X), encoding.codes))
        wide = standardised(X, rows.weights)[1]
        points = method.choose_points(key, kernel, training._replace(X=wide))
        if points.X is None or points.X.shape[1] == rows.X.shape[1]:
            return points
        if points.rows is None:
            raise ValueError(
                f"{type(method).__name__}: expected prototypes that are rows, as some columns hold "
                "categories, which have no means"
            )
        return points._replace(X=rows_at(rows.X, points.rows))

    @property
    def encoding(self) -> Encoding:
        """How raw rows became numbers."""
        assert self.facts is not None
        return self.facts.encoding

    def compared(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a mesh."""
        facts = self.facts
        assert facts is not None
        return {
            "X": facts.X,
            "y": facts.numbers,
            "classes": facts.encoding.classes,
            "weights": facts.weights,
            "columns of categories": facts.encoding.codes,
        }

    def truth(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return class numbers, or targets, and weights of the rows that are predicted."""
        assert self.facts is not None
        return self.facts.numbers, self.facts.weights

    def caller_rows(self, numbers: np.ndarray | None) -> np.ndarray | None:
        """Return row numbers as the caller counts."""
        assert self.facts is not None
        return None if numbers is None else self.facts.counting.index[numbers]

    def for_caller(self, values: np.ndarray | None) -> np.ndarray | None:
        """Return values of the caller's rows, NaN for a row of weight 0."""
        assert self.facts is not None
        return None if values is None else self.facts.counting.spread(values)

    @property
    def caller_folds(self) -> Folds:
        """The folds by the numbers of the caller's rows."""
        assert self.facts is not None
        index, valid = (np.asarray(a) for a in self.folds)
        width = max(1, int(valid.sum(axis=1).max()))
        return self.facts.counting.folds_of_caller(Folds(index[:, :width], valid[:, :width]))
