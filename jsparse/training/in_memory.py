"""Rows that are in memory: validated on and fitted to."""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._mesh import on_default_device
from .._numerics import is_concrete
from .._repr import short_repr
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.held_out import Sums
from ..machines.rows import Rows
from ..search.problem import Problem, Table
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds
from ..validation.validate import FoldLosses, Scoring, Validation
from .plan import Plan
from .programs import RowsOfFolds, evaluate, evaluate_batch, some_rows, target_columns
from .source import NOTHING_KEPT, TrainingSource


@dataclasses.dataclass(frozen=True)
class InMemory(TrainingSource):
    """Standardised rows in memory, and their folds.

    Attributes:
        rows: the rows in their own order, padded with rows of weight 0.
        placed: the same rows as programs take them, spread over the devices of a mesh.
        layout: the folds of the placed rows.
        folds: the folds by row number, padded as the rows are.
        n_rows: how many rows there are without the padding.
    """

    rows: Rows
    placed: Rows
    layout: Folds | ShardedFolds
    folds: Folds
    n_rows: int

    __repr__ = short_repr

    @property
    def n_predicted(self) -> int:  # type: ignore[override]
        """All of them."""
        return self.n_rows

    @property
    def rows_scored(self) -> int:
        """See `Source`."""
        weights = self.rows.weights
        return int(np.sum(np.asarray(weights) > 0)) if is_concrete(weights) else len(self.rows)

    @property
    def kernels_at_once(self) -> int:
        """One on a CPU, which it fills and which can report after each; else all there are."""
        return 1 if jax.default_backend() == "cpu" else sys.maxsize

    def held_out_rows(self, problem: Problem, theta: Float[Any, "*q p"]) -> RowsOfFolds:
        """See `TrainingSource`."""
        return RowsOfFolds(
            problem.method, problem.template, problem.points, self.placed, self.layout,
            problem.key, theta,
        )  # fmt: skip

    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring
    ) -> list[Validation]:
        """See `Source`."""
        if len(thetas) > 1 and problem.method.shares_work_over_C:
            batch = evaluate_batch(self.held_out_rows(problem, thetas), C, FoldLosses(scoring))
            return [
                jax.tree.map(lambda a, i=i: np.asarray(a)[i], batch) for i in range(len(thetas))
            ]
        on_fold = FoldLosses(scoring, NOTHING_KEPT)
        each = [
            evaluate(self.held_out_rows(problem, theta), c, on_fold)
            for theta, c in zip(thetas, C, strict=True)
        ]
        return [validation._replace(predictions=None, total=None) for validation in each]

    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, "*l"], sums: Sums | None
    ) -> tuple[Family, Sums | None]:
        """See `Source`."""
        arguments = kernel, problem.points, C, self.placed, problem.key, sums
        return on_default_device(self.placed.mesh, problem.method.fit_and_sum(*arguments))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`; each class against all others, whatever the code."""
        rows, k = self.rows, None if self.code is None else len(self.code.matrix)
        return rows.X, target_columns(rows.X, rows.y, k), rows.weights

    def follow(self, plan: Plan | None) -> None:
        """Do nothing: what is evaluated at once does not depend on the plan."""

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "InMemory":
        """See `Source`; they have no folds of their own."""
        X, y, weights = some_rows((self.rows.X, self.rows.y, self.rows.weights), rows)
        some = Rows(X, y, weights, self.code)
        return dataclasses.replace(self, rows=some, placed=some)

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
        """
        folds = problem.method.validation_folds(self.folds, self.n_rows)
        machines = problem.method.fold_machines(
            kernel, problem.points, C, size, self.rows, folds, problem.key, sums
        )
        fold_of_row = np.zeros(self.n_rows, np.int32)
        numbers, places = np.nonzero(folds.valid)
        fold_of_row[np.asarray(folds.index)[numbers, places]] = numbers
        return machines, fold_of_row
