"""What sources of rows share: they predict held-out rows by the same programs."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._mesh import on_default_device
from ..machines.held_out import HeldOut, OnFold
from ..machines.rows import Rows
from ..multiclass import Code
from ..search.problem import Problem
from ..validation.folds import Folds
from ..validation.validate import FoldLosses, Kept, Scoring, Validation
from .programs import HeldOutRows, evaluate, hold_out

NOTHING_KEPT = Kept(np.int32(0), np.int32(0))  # one program serves searches and predictions


class TrainingSource(abc.ABC):
    """The part of a `search.problem.Source` that rows in memory and streams have in common.

    Attributes:
        placed: the rows that are predicted, as programs take them.
        folds: their folds by row number.
        n_predicted: how many they are without padding.
    """

    placed: Rows
    folds: Folds
    n_predicted: int

    @abc.abstractmethod
    def held_out_rows(self, problem: Problem, theta: Float[Any, "*q p"]) -> HeldOutRows:
        """Return what programs take of the problem and the rows, at points of the template."""

    @property
    def dtype(self) -> jnp.dtype:
        """See `Source`."""
        return self.placed.dtype

    @property
    def code(self) -> Code | None:
        """See `Source`."""
        return self.placed.code

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
