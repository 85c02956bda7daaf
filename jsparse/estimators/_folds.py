"""The parameter `cv` of the estimators, as folds of `train`."""

import reprlib
from typing import Any, Literal

import numpy as np

from .._arguments import whole_number
from ..predictor.checks import row_index
from ..training.inputs import WeightedRows
from ..validation.folds import Folds, folds_from_assignment

FoldsLike = int | Folds | Literal["auto"]


def folds_of(cv: Any, X: np.ndarray, y: np.ndarray, weighted: WeightedRows) -> FoldsLike:
    """Return the argument `folds` of `train`; `cv` is "auto", a number, a splitter or splits.

    A splitter gets only the rows of positive weight. Returned `Folds` number the rows as in `X`.

    Raises:
        ValueError: for a number below 2 or above the number of rows of positive weight, and unless
            the splits hold out each row of positive weight once.
    """
    if isinstance(cv, str):
        return "auto"
    if not (hasattr(cv, "split") or isinstance(cv, list | tuple)):
        return whole_number("cv", cv, 2, len(weighted.index), "the number of rows")
    split: Any = getattr(cv, "split", None)
    if split is None:
        assignment = _assignment(cv, len(X))[weighted.index]
        row_numbers = weighted.index
    else:
        X, y = weighted.select(X), weighted.select(y)
        assignment, row_numbers = _assignment(split(X, y), len(X)), np.arange(len(X))
    if np.any(assignment < 0):
        raise ValueError(
            "cv: expected splits that hold out each row once, as KFold's do, got none that "
            f"holds out {row_index(row_numbers[np.argmax(assignment < 0)])}"
        )
    # Renumber the folds, as a fold may have only rows of weight 0.
    _, assignment = np.unique(assignment, return_inverse=True)
    return weighted.with_caller_rows(folds_from_assignment(assignment))


def _assignment(splits: Any, n: int) -> np.ndarray:
    """Return the number of the split that holds out each row; -1 for a row in no split."""
    assignment = np.full(n, -1)
    for number, parts in enumerate(splits):
        test = _held_out(parts, n)
        expected = "cv: expected splits that hold out each row once, as KFold's do, got"
        if len(test) == 0:
            raise ValueError(f"{expected} no row to hold out in split {number}")
        if np.any(repeated := assignment[test] >= 0):
            raise ValueError(
                f"{expected} several splits with {row_index(test[np.argmax(repeated)])}"
            )
        assignment[test] = number
    return assignment


def _held_out(parts: Any, n: int) -> np.ndarray:
    """Return the indices of the held-out rows of `parts`, a pair of training and held-out rows.

    Both are indices into `n` rows, or masks of them, as a splitter of scikit-learn gives them.
    """
    try:
        _, test = parts
        return np.atleast_1d(np.arange(n)[np.asarray(test)])
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            "cv: expected a number, a splitter or pairs (rows to train on, rows to hold out), got "
            f"{reprlib.repr(parts)}"
        ) from error
