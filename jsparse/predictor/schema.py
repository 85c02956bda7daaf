"""The encoding of a table as arrays: a plain record that is saved with the model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .checks import short_repr

CLASSIFICATION = "classification"
REGRESSION = "regression"

Value = str | bool | int | float | None


NULL_VALUES = (
    *("", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "NaN", "-NaN", "n/a", "nan", "null"),
)
"""The contents of a CSV cell that mean a missing value."""


class CsvFormat(NamedTuple):
    """How the cells of a CSV file are read.

    Attributes:
        null_values: contents of a cell that mean a missing value.
        decimal: the decimal mark, "." or ",".
        delimiter: the character between cells. By default the comma or, if the header has no comma,
            whichever of semicolon, tab and bar is most frequent in the header.
    """

    null_values: tuple[str, ...] = NULL_VALUES
    decimal: str = "."
    delimiter: str | None = None

    __repr__ = short_repr


class Column(NamedTuple):
    """One input column.

    Attributes:
        name: the column's name in the table.
        categories: the values of a column of categories, in the type in which they were read; the
            last may be None, the category of missing values. For a column of numbers or times,
            `categories` is None.
        fill: the value that replaces a missing number or time; None if missing values are refused.
        origin: for a column of dates or times, the first value in training, in whole microseconds
            since 1970. The encoded numbers are microseconds since the origin. None for other
            columns.
        coded: whether one encoded column holds the numbers of the categories, with -1 for an unseen
            category. Otherwise each category has an indicator column.
    """

    name: str
    categories: tuple[Value, ...] | None = None
    fill: float | None = None
    origin: int | None = None
    coded: bool = False

    __repr__ = short_repr

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, such as `age` or `sex=F`."""
        if self.categories is None or self.coded:
            return (self.name,)
        return tuple(f"{self.name}={'(missing)' if c is None else c}" for c in self.categories)


class Schema(NamedTuple):
    """The encoding of a table, fixed by the table a model is trained on.

    Attributes:
        columns: the input columns, in the order in which they are encoded.
        target: name of the target column.
        task: "classification" or "regression".
        classes: the labels in sorted order, in the type in which they were read; None for
            regression.
        impute: whether missing inputs are filled in instead of being refused.
        csv: how the cells of CSV files are read.
    """

    columns: tuple[Column, ...]
    target: str
    task: str
    classes: tuple[str | bool | int | float, ...] | None
    impute: bool
    csv: CsvFormat = CsvFormat()

    __repr__ = short_repr

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the `d` encoded columns."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def codes(self) -> tuple[int, ...]:
        """Indices of the encoded columns that hold numbers of categories."""
        ends = np.cumsum([len(column.features) for column in self.columns]).tolist()
        return tuple(
            end - 1 for end, column in zip(ends, self.columns, strict=True) if column.coded
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the input columns of a table, and of the target as the last."""
        return (*(column.name for column in self.columns), self.target)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as dicts, lists, strings, numbers and booleans."""
        parts = self._asdict()
        parts["columns"] = [
            {
                name: list(value) if name == "categories" and value is not None else value
                for name, value in column._asdict().items()
            }
            for column in self.columns
        ]
        parts["classes"] = None if self.classes is None else list(self.classes)
        parts["csv"] = self.csv._asdict() | {"null_values": list(self.csv.null_values)}
        return parts

    @staticmethod
    def from_json(parts: Mapping[str, Any]) -> "Schema":
        """Return the schema from the result of `to_json`.

        Raises:
            ValueError: if `parts` does not have the form of such a result.
        """
        try:
            labels = parts["classes"]
            columns = tuple(_column(c) for c in _list("columns", parts["columns"]))
            names = [_text("name", column.name) for column in columns]
            schema = Schema(
                columns=columns,
                target=_text("target", parts["target"]),
                task=parts["task"],
                classes=None if labels is None else _distinct_values("classes", labels),
                impute=parts["impute"],
                csv=_csv_format(parts["csv"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"schema: expected what Schema.to_json gives, got {type(error).__name__}: {error}"
            ) from error
        if len({*names, schema.target}) <= len(names) or not names:
            raise ValueError("schema: expected at least one column, and distinct names")
        if schema.task not in (CLASSIFICATION, REGRESSION) or not isinstance(schema.impute, bool):
            raise ValueError("schema: expected a known task, and a boolean for impute")
        known = schema.classes or ()
        if (len(known) < 2) is (schema.task == CLASSIFICATION) or None in known:
            raise ValueError(f"schema: got {len(known)} classes for a task of {schema.task}")
        return schema


def _column(parts: Any) -> Column:
    """Return the `Column` that an entry of `columns` in the JSON document describes."""
    name, categories, fill = parts["name"], parts["categories"], parts["fill"]
    origin, coded = parts["origin"], parts["coded"]
    if categories is not None:
        categories = _distinct_values("categories", categories)
    if fill is not None and not (isinstance(fill, float) and math.isfinite(fill)):
        raise TypeError("fill: expected a finite number")
    is_int64 = type(origin) is int and abs(origin) < 2**63
    if not (origin is None or (is_int64 and categories is None)):
        raise TypeError("origin: expected a whole number of 64 bits, and None for categories")
    if not isinstance(coded, bool) or (coded and categories is None):
        raise TypeError("coded: expected a boolean, False for numbers")
    return Column(name, categories, fill, origin, coded)


def _csv_format(parts: Any) -> CsvFormat:
    """Return the format that the entry `csv` of the JSON document describes."""
    null_values, decimal, delimiter = parts["null_values"], parts["decimal"], parts["delimiter"]
    if decimal not in (".", ","):
        raise TypeError("decimal: expected '.' or ','")
    if delimiter is not None and len(_text("delimiter", delimiter).encode()) != 1:
        raise TypeError("delimiter: expected one character or None")
    texts = tuple(_text("null_values", v) for v in _list("null_values", null_values))
    return CsvFormat(texts, decimal, delimiter)


def _distinct_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return the categories or the classes that a list of the JSON document holds.

    They are distinct values of one type: texts, booleans, integers or floats. The last category may
    be None, the category of missing values.
    """
    values = _list(name, values)
    present = values[:-1] if values and values[-1] is None else values
    if len({type(value) for value in present}) > 1 or len(set(present)) < len(present):
        raise TypeError(f"{name}: expected distinct values of one type")
    for value in present:
        if isinstance(value, str):
            _text(name, value)
        elif not isinstance(value, bool | int | float) or value != value:
            raise TypeError(f"{name}: expected texts, numbers or booleans")
        elif type(value) is int and not -(2**63) <= value < 2**63:
            raise TypeError(f"{name}: expected whole numbers of 64 bits")
    if not values:
        raise TypeError(f"{name}: expected at least one value")
    return tuple(values)


def _list(name: str, values: Any) -> Sequence[Any]:
    """Return a list of the JSON document; raise a `TypeError` for another value."""
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name}: expected a list, got {type(values).__name__}")
    return values


def _text(name: str, value: Any) -> str:
    """Return a text of the JSON document; raise for another value, or one that is not UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a text, got {type(value).__name__}")
    value.encode()  # a table holds UTF-8, which has no lone surrogates
    return value
