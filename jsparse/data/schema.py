"""How a table becomes arrays: a plain record that is saved with the model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._repr import short_repr

CLASSIFICATION = "classification"
REGRESSION = "regression"

Value = str | bool | int | float | None


class Column(NamedTuple):
    """One input column.

    Attributes:
        name: its name in the table.
        categories: the values that get an indicator column each, in the type they were read in,
            None standing for a missing value; or None for a numeric column.
        fill: what a missing number is replaced by, or None if it is refused. Counted from
            `origin`.
        coded: whether its categories are numbered in one column, -1 for one that is not among
            them, instead of having an indicator column each.
        time: whether it holds dates or times: as numbers they are microseconds, of dates and
            timestamps since 1970.
        origin: a whole number that is taken from all of the column, exactly, before its numbers
            become floating-point ones: 0 unless some are larger than those hold exactly.
    """

    name: str
    categories: tuple[Value, ...] | None = None
    fill: float | None = None
    origin: int = 0
    time: bool = False
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
        classes: the labels in sorted order, in the type they were read in; None for regression.
        impute: whether missing inputs are filled in rather than refused.
        null_values: what a CSV cell may hold to mean that a value is missing.
    """

    columns: tuple[Column, ...]
    target: str
    task: str
    classes: tuple[str | bool | int | float, ...] | None
    impute: bool
    null_values: tuple[str, ...]

    __repr__ = short_repr

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns, `d` of them."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def codes(self) -> tuple[int, ...]:
        """The encoded columns that hold numbers of categories."""
        ends = np.cumsum([len(column.features) for column in self.columns]).tolist()
        return tuple(
            end - 1 for end, column in zip(ends, self.columns, strict=True) if column.coded
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a table, with the target."""
        return (*(column.name for column in self.columns), self.target)

    @property
    def with_origin(self) -> tuple[str, ...]:
        """Names of the columns whose whole numbers float64 does not hold."""
        return tuple(column.name for column in self.columns if column.origin)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as dicts, lists, strings, numbers and booleans."""
        parts = self._asdict()
        parts["columns"] = [
            {
                name: list(value) if name == "categories" and value is not None else value
                for name, value in column._asdict().items()
                if name != "coded" or value  # as older files do not know it
            }
            for column in self.columns
        ]
        parts["classes"] = _maybe(list, self.classes)
        parts["null_values"] = list(self.null_values)
        return parts

    @staticmethod
    def from_json(parts: Mapping[str, Any]) -> "Schema":
        """Return the schema from the result of `to_json`.

        Raises:
            ValueError: if `parts` is not of that form.
        """
        try:
            columns = tuple(_column(c) for c in _list("columns", parts["columns"]))
            names = [_text("name", column.name) for column in columns]
            schema = Schema(
                columns=columns,
                target=_text("target", parts["target"]),
                task=parts["task"],
                classes=None if parts["classes"] is None else _values("classes", parts["classes"]),
                impute=parts["impute"],
                null_values=tuple(
                    _text("null_values", v) for v in _list("null_values", parts["null_values"])
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"schema: expected what Schema.to_json gives, got {type(error).__name__}: {error}"
            ) from error
        if len({*names, schema.target}) <= len(names) or not names:
            raise ValueError("schema: expected at least one column, and distinct names")
        if schema.task not in (CLASSIFICATION, REGRESSION) or not isinstance(schema.impute, bool):
            raise ValueError("schema: expected a task that is known, and impute to be a boolean")
        known = schema.classes or ()
        if (len(known) < 2) is (schema.task == CLASSIFICATION) or None in known:
            raise ValueError(f"schema: got {len(known)} classes for a task of {schema.task}")
        return schema


def _column(parts: Any) -> Column:
    name, categories, fill = parts["name"], parts["categories"], parts["fill"]
    origin, time = parts["origin"], parts["time"]
    if categories is not None:
        categories = _values("categories", categories)
    if fill is not None and not (isinstance(fill, float) and math.isfinite(fill)):
        raise TypeError("fill: expected a finite number")
    if type(origin) is not int or abs(origin) >= 10**76:  # as many digits as are read exactly
        raise TypeError("origin: expected a whole number of at most 76 digits")
    if not isinstance(time, bool) or (time and categories is not None):
        raise TypeError("time: expected a boolean, False for categories")
    coded = parts.get("coded", False)
    if not isinstance(coded, bool) or (coded and categories is None):
        raise TypeError("coded: expected a boolean, False for numbers")
    return Column(name, categories, fill, origin, time, coded)


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """Distinct values of one type that a table may hold; the last may be None."""
    values = _list(name, values)
    present = values[:-1] if values and values[-1] is None else values
    if len({type(value) for value in present}) > 1 or len(set(present)) < len(present):
        raise TypeError(f"{name}: expected distinct values of one type")
    for value in present:
        if isinstance(value, str):
            _text(name, value)
        elif not isinstance(value, bool | int | float) or value != value:
            raise TypeError(f"{name}: expected texts, numbers or booleans")
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise TypeError(f"{name}: expected whole numbers of 64 bits")
    if not values:
        raise TypeError(f"{name}: expected at least one value")
    return tuple(values)


def _list(name: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{name}: expected a list, got {type(values).__name__}")
    return values


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a text, got {type(value).__name__}")
    value.encode()  # a table holds UTF-8, which has no lone surrogates
    return value


def _maybe(convert: type, values: Any) -> Any:
    return None if values is None else convert(values)
