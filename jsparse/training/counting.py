"""The rows that count: those with a weight above 0, which alone take part in training."""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int, Shaped

from .._repr import short_repr
from ..validation.folds import Folds
from .inputs import checked_weights


class CountingRows(NamedTuple):
    """Which of the caller's rows count.

    All others are dropped before anything is computed: random draws depend on the number of rows,
    so that a row of weight 0 that stayed would change folds, prototypes and starts.
    """

    n: int  # rows of the caller
    index: Int[np.ndarray, " k"]  # numbers of the rows that count, increasing
    weights: Float[np.ndarray, " k"] | None  # of the rows that count

    __repr__ = short_repr

    def select(self, values: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "k ..."]:
        """Return the values of the rows with a positive weight."""
        return values if len(self.index) == self.n else values[self.index]

    def spread(self, values: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "n ..."]:
        """Return values in the order of the caller's rows, with NaN for rows of weight 0."""
        if len(self.index) == self.n:
            return values
        every = np.full((self.n, *values.shape[1:]), np.nan, values.dtype)
        every[self.index] = values
        return every

    def folds_within(self, folds: Folds) -> Folds:
        """Drop rows of weight 0 from the caller's folds, and renumber the rows that remain.

        Raises:
            ValueError: unless every row that counts is in one fold, and no other row in several.
        """
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        rows = index[valid]
        if not (np.isin(self.index, rows).all() and np.isin(rows, np.arange(self.n)).all()) or (
            len(np.unique(rows)) < len(rows)
        ):
            raise ValueError(
                f"folds: expected each of the {self.n} rows in exactly one fold; only rows of "
                "weight 0 may be in none"
            )
        if len(self.index) == self.n:
            return Folds(index, valid)
        place = np.full(self.n, -1, np.int32)
        place[self.index] = np.arange(len(self.index))
        members = [place[row[used]] for row, used in zip(index, valid, strict=True)]
        members = [row[row >= 0] for row in members]
        return folds_of_rows(members, max(len(row) for row in members))

    def folds_of_caller(self, folds: Folds) -> Folds:
        """Return folds with the caller's row numbers; no fold has a row of weight 0."""
        if len(self.index) == self.n:
            return folds
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        return Folds(np.where(valid, self.index[index], 0).astype(np.int32), valid)


def folds_of_rows(members: list[np.ndarray], width: int) -> Folds:
    """Return folds of these rows, padded to so many in each."""
    index, valid = (np.zeros((len(members), width), t) for t in (np.int32, bool))
    for fold, rows in enumerate(members):
        index[fold, : len(rows)], valid[fold, : len(rows)] = rows, True
    return Folds(index, valid)


def counting_rows(weights: ArrayLike | None, n: int) -> CountingRows:
    """Select the rows with a weight above 0; without weights, all rows.

    Raises:
        ValueError: unless there are `n` finite weights of at least 0, some of them above 0.
    """
    if weights is None:
        return CountingRows(n, np.arange(n), None)
    w = checked_weights(weights, n)
    index = np.flatnonzero(w > 0)
    return CountingRows(n, index, w[index])
