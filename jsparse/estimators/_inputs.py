"""Inputs of the estimators: arrays that scikit-learn checks, and tables."""

import dataclasses
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Float, Shaped

from ..data.frames import EncodedFrame, Frame, as_frame
from ..machines.method import Task
from ..predictor.schema import Schema
from ..training.inputs import weighted_rows
from ._sklearn import check_X_y, validate_data

FLOATS = [np.float64, np.float32]
Categories = Literal["indicators", "kernel"]


def as_table(X: Any, categories: str = "indicators") -> Frame | None:
    """Return the table `X` as a `Frame` whose columns are all inputs; None if `X` is an array.

    A `Frame` keeps its settings. Any other table gets the setting `categories` of `Frame`.
    """
    frame = as_frame(X)
    if frame is None:
        return None
    return (frame if frame is X else dataclasses.replace(frame, categories=categories)).loaded()


def training_rows(
    estimator: Any, X: Any, y: Any, sample_weight: Any, task: Task, **checks: Any
) -> tuple[Float[np.ndarray, "n d"], Shaped[np.ndarray, " n *c"], EncodedFrame | None]:
    """Check inputs and targets, and set `n_features_in_` and `feature_names_in_`.

    A table is encoded by its rows of weight above 0. `checks` are options of scikit-learn's
    `check_X_y`, such as `multi_output`.

    Returns:
        The inputs as numbers, the targets, and the encoded table (None if `X` is an array).

    Raises:
        ValueError: for arrays that are not finite numbers, tables that cannot be encoded, a column
            name as targets, or targets of a length other than the inputs'.
    """
    if isinstance(y, str):
        raise ValueError(
            f"y: expected targets, one for each row, as scikit-learn takes them, got the name "
            f"{y!r}; give table[{y!r}], without this column in X, or see jsparse.train"
        )
    frame = as_table(X, estimator.categories)
    if frame is None:
        return (*cast(Any, validate_data(estimator, X, y, dtype=FLOATS, **checks)), None)
    validate_data(estimator, frame.table, y, skip_check_array=True)
    y = checked_targets(estimator, np.zeros((len(frame.table), 1)), y, **checks)
    weighted = weighted_rows(sample_weight, len(y))
    table = frame.encoded(y, task, weighted.index)
    return table.inputs, y, table


def checked_targets(
    estimator: Any, X: Float[np.ndarray, "n d"], y: Any, **checks: Any
) -> Shaped[np.ndarray, " n *c"]:
    """Check and return the targets of checked inputs; `checks` are as for `training_rows`."""
    return check_X_y(X, y, estimator=estimator, **checks)[1]


def encoded_rows(
    estimator: Any, X: Any, columns: Schema | None, dtype: np.dtype
) -> Float[np.ndarray, "n d"]:
    """Return inputs as numbers for the machine of a fitted estimator.

    A table must have the columns of training in the order of training, as scikit-learn demands. If
    the estimator was fitted to a table, an array is read as a table with these columns, and
    scikit-learn warns that it has no names. `columns` is the encoding of tables, None if the
    estimator was fitted to an array. `dtype` is the machine's, in which a table is encoded.

    Raises:
        ValueError: for columns other than in training, or values that cannot be encoded.
    """
    frame = as_table(X)
    if columns is None:
        rows = X if frame is None else frame.table
        return cast(np.ndarray, validate_data(estimator, rows, reset=False, dtype=FLOATS))
    if frame is not None:
        validate_data(estimator, frame.table, reset=False, skip_check_array=True)
        return frame.encode(columns, dtype.name)
    rows = cast(np.ndarray, validate_data(estimator, X, reset=False, dtype=None))
    names = [column.name for column in columns.columns]
    return Frame(dict(zip(names, rows.T, strict=True))).encode(columns, dtype.name)
