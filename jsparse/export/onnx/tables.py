"""The encoding of a table as ONNX formulas: one named input for each column."""

from typing import NamedTuple

import numpy as np

from ..._repr import short_repr
from ...predictor.schema import Column, Schema
from ...predictor.tables import listing
from .graph import ML, Graph, Tensor

_NOT_A_TIME = np.iinfo(np.int64).min  # NumPy's NaT as a whole number


class Input(NamedTuple):
    """A named input of shape `n width` and its dtype; texts have kind "U"."""

    name: str
    dtype: np.dtype
    width: int
    contents: str  # in words, for readers of the file

    __repr__ = short_repr


def input_of(column: Column, dtype: np.dtype) -> Input:
    """Return the input for a column.

    - Numbers have the model's `dtype`, and NaN for a missing value.
    - Dates and times are whole microseconds since 1970 in UTC (or since midnight), and the least
      whole number of 64 bits, NumPy's NaT, for a missing value.
    - Categories are texts, whole numbers, booleans or float64 as in training. With a category of
      missing values, texts have "" for it; numbers and booleans are float64 and have NaN.
    """
    kind, contents = np.dtype(dtype), "numbers"
    if column.origin is not None:
        kind = np.dtype(np.int64)
        contents = "microseconds since 1970 in UTC, or since midnight for times of a day"
    elif column.categories is not None:
        contents = f"categories: {listing('' if c is None else c for c in column.categories)}"
        known = np.array([value for value in column.categories if value is not None])
        kind = np.dtype({"U": "U", "i": "int64", "b": "bool"}.get(known.dtype.kind, "float64"))
        if None in column.categories and kind.kind != "U":
            kind = np.dtype(np.float64)
    return Input(column.name, kind, 1, contents)


def encoded(schema: Schema, graph: Graph) -> Tensor:
    """Return the encoded inputs, shape `n d`, from tensors with the names of the columns."""
    return graph.concatenated(
        [_encoded_column(column, Tensor(graph, column.name), schema) for column in schema.columns]
    )


def _encoded_column(column: Column, values: Tensor, schema: Schema) -> Tensor:
    """Return the encoded inputs of one column, shape `n 1`, or `n k` for `k` indicators."""
    graph = values.graph
    fill = column.fill if schema.impute else None
    if column.origin is not None:
        missing = graph.op("Equal", values, np.array(_NOT_A_TIME))
        # Float64 holds the difference even if the model's dtype does not.
        elapsed = (values - np.array(column.origin)).cast(np.float64)
        filler = np.array(np.nan if fill is None else fill)
        return graph.op("Where", missing, filler, elapsed).cast()
    if column.categories is None:
        if fill is None:
            return values
        return graph.op("Where", graph.op("IsNaN", values), fill, values)
    indicators = _indicators(column, values).cast()
    if not column.coded:
        return indicators
    numbers = np.arange(1, len(column.categories) + 1, dtype=graph.dtype)[:, None]
    return indicators @ numbers - 1.0  # an unseen category has the number -1


def _indicators(column: Column, values: Tensor) -> Tensor:
    """Return whether each value is each category, shape `n k`; all False for an unseen value."""
    graph, categories = values.graph, column.categories or ()
    present = [value for value in categories if value is not None]
    kind = input_of(column, graph.dtype).dtype
    if kind.kind == "U":
        texts = ["" if value is None else value for value in categories]
        if "" in present:  # the empty text is a category, and does not mean a missing value
            texts = present
        codes = graph.op(
            "LabelEncoder", values, domain=ML, keys_strings=texts,
            values_int64s=list(range(len(texts))), default_int64=-1,
        )  # fmt: skip
        return graph.op("Equal", codes, np.arange(len(categories)))
    if kind.kind == "b":
        values, kind = values.cast(np.int64), np.dtype(np.int64)
    equal = graph.op("Equal", values, np.array(present, kind))
    if len(present) == len(categories):
        return equal
    return graph.concatenated([equal, graph.op("IsNaN", values)])
