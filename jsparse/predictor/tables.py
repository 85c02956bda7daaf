"""Encode tables (mappings of columns, pandas, Arrow) as inputs by the schema of training."""

import abc
import datetime
import decimal
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .checks import (
    NameRow,
    TableError,
    UnseenCategoryWarning,
    row_index,
    short_repr,
    warn_caller,
)
from .schema import Column, Schema

_IMPUTE = (
    "fill them in, leave those rows out, or train with imputation: "
    "jsparse.data.frames.Frame(table, impute=True) in place of the table; on the command line "
    "jsparse fit --impute, jsparse compare --impute"
)


class Encoded(NamedTuple):
    """Inputs as numbers, with counts of unseen categories and missing values.

    Attributes:
        X: inputs, shape `n d`; the columns are in the order of `Schema.features`.
        unseen: for each column, the number of rows whose category training did not see.
        imputed: for each column, the number of rows whose missing value was filled in.
        unseen_values: for each column, the distinct categories that training did not see.
    """

    X: np.ndarray
    unseen: dict[str, int]
    imputed: dict[str, int]
    unseen_values: dict[str, list[Any]]

    __repr__ = short_repr

    def with_warning(self) -> np.ndarray:
        """Return `X`; warn once of all categories that training did not see.

        Warns:
            UnseenCategoryWarning: at the line that called this package.
        """
        if self.unseen:
            phrases = [
                f"column {name!r}: {listing(self.unseen_values[name], 5)} (rows: {count})"
                for name, count in self.unseen.items()
            ]
            message = (
                f"categories that training did not see: {'; '.join(phrases)}; each is predicted as "
                "different from all known categories. Correct the spelling, or train with rows of "
                "these categories; to predict them in silence, ignore UnseenCategoryWarning"
            )
            warn_caller(message, UnseenCategoryWarning)
        return self.X


class Columns(abc.ABC):
    """The columns of a table, as `encode_columns` reads them.

    Attributes:
        names: the names of the columns.
        n_rows: number of rows.
        name_row: names a row in messages.
    """

    names: Sequence[str]
    n_rows: int
    name_row: NameRow

    @abc.abstractmethod
    def numbers(self, column: Column) -> np.ndarray:
        """Return a column of numbers or times as float64, with NaN for missing values."""

    @abc.abstractmethod
    def codes(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's category, -1 if unseen, and where values are missing."""

    @abc.abstractmethod
    def values(self, column: Column, rows: np.ndarray) -> list[Any]:
        """Return a column's values in some rows, given by their indices, for messages."""


def encode_columns(schema: Schema, table: Columns, dtype: Any = "float64") -> Encoded:
    """Return the inputs of a table as an array of `dtype`, encoded by the schema, with counts.

    The columns of the table may have any order. Columns that the schema does not know are ignored,
    and the target column may be absent.

    Raises:
        TableError: for missing columns, values of another kind than in training, values that are
            infinite (or too large for `dtype`), and missing values unless the schema imputes.
            Missing values are reported last, for all columns together.
    """
    check_names(table.names, [column.name for column in schema.columns], "the columns")
    X = np.zeros((table.n_rows, len(schema.features)), dtype)
    unseen, unseen_values, n_missing, first_missing = {}, {}, {}, {}
    offset = 0  # number of encoded columns before this column
    for column in schema.columns:
        name, width = column.name, len(column.features)
        if column.categories is None:
            values = table.numbers(column)
            missing = np.isnan(values)
            if schema.impute and column.fill is not None:
                values = np.where(missing, column.fill, values)
            with np.errstate(over="ignore"):
                X[:, offset] = values
            if np.any(np.isinf(X[:, offset])):
                row = int(np.argmax(np.isinf(X[:, offset])))
                raise TableError(
                    f"column {name!r}: expected numbers that fit {np.dtype(dtype)}, got "
                    f"{values[row]} in {table.name_row(row)}"
                )
        else:
            code, missing = table.codes(column)
            if column.coded:
                X[:, offset] = code
            else:
                known = np.flatnonzero(code >= 0)
                X[known, offset + code[known]] = 1
            unseen_rows = np.flatnonzero((code < 0) & ~missing)
            if len(unseen_rows):
                unseen[name] = len(unseen_rows)
                unseen_values[name] = list(dict.fromkeys(table.values(column, unseen_rows)))
        offset += width
        if np.any(missing):
            n_missing[name] = int(missing.sum())
            first_missing[name] = table.name_row(int(np.argmax(missing)))
    if n_missing and not schema.impute:
        phrases = [
            f"column {name!r} has {n_missing[name]} in {len(X)} rows, the first in {row}"
            for name, row in list(first_missing.items())[:5]
        ]
        more = f"; and {len(n_missing) - 5} more columns" if len(n_missing) > 5 else ""
        raise TableError(f"missing values: {'; '.join(phrases)}{more}: {_IMPUTE}")
    return Encoded(X, unseen, n_missing, unseen_values)


def check_names(names: Sequence[str], wanted: Iterable[str], what: str) -> None:
    """Check that a table with columns of these `names` has the columns `wanted`.

    The message of the error calls the wanted columns `what`, such as "the columns to drop".

    Raises:
        TableError: if columns are missing. The message has their names, and the most similar names
            in the table.
    """
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    lower = {name.lower().strip(): name for name in names}
    similar = {
        lower[match]: None
        for name in missing
        for match in difflib.get_close_matches(name.lower().strip(), lower, n=3, cutoff=0.5)
    }
    hint = f"nearest: {listing(similar)}" if similar else f"the table has {listing(names)}"
    raise TableError(f"expected {what} {listing(missing)}, not found; {hint}")


def listing(values: Iterable[Any], most: int = 10) -> str:
    """Return as text the first `most` values, each cut to 80 characters, and how many follow."""
    values = list(values)
    words = ", ".join(f"{value!r:.80}" for value in values[:most])
    return words if len(values) <= most else f"{words} and {len(values) - most} more"


def inexact(name: str, reason: object) -> TableError:
    """Return the error for whole numbers that float64 cannot represent exactly."""
    return TableError(
        f"column {name!r}: expected whole numbers of at most 2^53, which float64 holds; {reason}"
        "; turn it into floats or times, name it as one of codes (categorical, --categorical), "
        "or drop it"
    )


def wrong_kind(name: str, value: Any, row: str, *, is_time: bool) -> TableError:
    """Return the error for a value that is no number, or no time in a column of times."""
    expected = "dates or times" if is_time else "numbers"
    advice = "; turn texts into times, as pandas.to_datetime does" if is_time else ""
    return TableError(f"column {name!r}: expected {expected}, got {value!r:.80} in {row}{advice}")


def unsupported_type(
    name: str, kind: Any, advice: str = "turn it into numbers or texts, or drop the column"
) -> TableError:
    """Return the error for a column of a type that has no encoding."""
    return TableError(
        f"column {name!r}: expected numbers, booleans or texts, got type {kind}; {advice}"
    )


def refuse_infinite(name: str, numbers: np.ndarray, name_row: NameRow) -> None:
    """Raise TableError, naming the column and the row, if a number is infinite."""
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise TableError(
            f"column {name!r}: expected finite numbers, got {numbers[row]} in {name_row(row)}"
        )


def is_table(X: Any) -> bool:
    """Return whether an input has named columns: a mapping, or a table of pandas or Arrow."""
    if isinstance(X, np.ndarray):
        return False
    named = hasattr(X, "__arrow_c_stream__") or (hasattr(X, "columns") and hasattr(X, "dtypes"))
    return isinstance(X, Mapping) or (named and getattr(X, "ndim", 2) == 2)


def encode_table(schema: Schema, table: Any, dtype: Any) -> np.ndarray:
    """Return the inputs of a table in memory; warn of unseen categories. See `encode_columns`."""
    return encode_columns(schema, TableInMemory(table), dtype).with_warning()


Kind = Literal["number", "text", "boolean", "time", "nothing"]
_WORDS = {"number": "numbers", "text": "texts", "boolean": "booleans", "time": "dates or times"}


class _Values(NamedTuple):
    """A column as arrays of NumPy.

    Attributes:
        kind: what the values are; "nothing" if all are missing.
        array: float64, int64, uint64, bool, text, or int64 microseconds; arbitrary where missing.
        missing: where there is no value.
        raw: the values as the caller gave them, for messages.
    """

    kind: Kind
    array: np.ndarray
    missing: np.ndarray
    raw: Any


class TableInMemory(Columns):
    """The columns of a mapping, or of a table of pandas or Arrow, read by NumPy.

    Raises:
        ValueError: for columns of different lengths or with equal names.
    """

    def __init__(self, table: Any) -> None:
        self.name_row = row_index
        if isinstance(table, Mapping):
            columns = {str(name): values for name, values in table.items()}
        elif hasattr(table, "dtypes"):  # pandas
            columns = {str(name): table[name] for name in table.columns}
        else:
            if not hasattr(table, "column_names"):
                import pyarrow  # for other libraries that hand over Arrow data

                table = pyarrow.table(table)
            columns = {name: table.column(i) for i, name in enumerate(table.column_names)}
        self.names = list(columns)
        n_columns = len(getattr(table, "column_names", getattr(table, "columns", columns)))
        lengths = {name: len(values) for name, values in columns.items()}
        if len(columns) < n_columns or len(set(lengths.values())) > 1:
            raise ValueError(
                f"X: expected columns with distinct names and equal lengths, got {lengths}"
            )
        self.n_rows = next(iter(lengths.values()), 0)
        self._columns = columns

    def numbers(self, column: Column) -> np.ndarray:
        """Return a column of numbers or times as float64, with NaN for missing values.

        Raises:
            TableError: for values of another kind, infinite values, and whole numbers that float64
                does not hold.
        """
        name, is_time = column.name, column.origin is not None
        kind, array, missing, raw = _values(name, self._columns[name])
        if kind == "nothing":
            return np.full(self.n_rows, np.nan)
        if kind == "text" or (kind == "time") is not is_time:
            row = int(np.argmin(missing))
            raise wrong_kind(name, raw[row], self.name_row(row), is_time=is_time)
        if is_time:
            array = array - column.origin
        inexact_rows = (array > 2**53) | (array < -(2**53)) if array.dtype.kind in "iu" else missing
        if np.any(inexact_rows & ~missing):
            value = array[int(np.argmax(inexact_rows & ~missing))]
            raise inexact(name, f"Integer value {value} not in range: -{2**53} to {2**53}")
        numbers = np.where(missing, np.nan, array.astype(float))
        refuse_infinite(name, numbers, self.name_row)
        return numbers

    def codes(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's category, -1 if unseen, and where values are missing.

        Raises:
            TableError: if the values are of another kind than the categories.
        """
        name, known = column.name, column.categories or ()
        kind, array, missing, raw = _values(name, self._columns[name])
        sample = next((value for value in known if value is not None), None)
        if isinstance(sample, str):
            expected, comparable = "text", kind != "time"
            present = map(_as_text, array.tolist()) if kind != "text" else array.tolist()
        else:
            expected = "boolean" if isinstance(sample, bool) else "number"
            comparable, present = kind == expected, array.tolist()
        if not comparable and kind != "nothing":
            row = int(np.argmin(missing))
            raise TableError(
                f"column {name!r}: expected {_WORDS[expected]} as in training, got {_WORDS[kind]} "
                f"({raw[row]!r})"
            )
        number_of = {value: number for number, value in enumerate(known)}
        codes = [number_of.get(value, -1) for value in present]
        return np.where(missing, number_of.get(None, -1), np.array(codes, int)), missing

    def values(self, column: Column, rows: np.ndarray) -> list[Any]:
        """Return a column's values in some rows, given by their indices, for messages."""
        return _array(self._columns[column.name])[rows].tolist()


def _as_text(value: Any) -> str:
    """Return a number or boolean as the text that Arrow makes of it, such as "true" or "1"."""
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")


def _values(name: str, column: Any) -> _Values:
    """Return a column of any library as arrays; raise TableError for values of other types."""
    array = _array(column)
    if array.ndim != 1:
        raise TableError(f"column {name!r}: expected one value in each row, got {array.shape}")
    kind = array.dtype.kind
    if kind == "O":
        return _objects(name, array)
    none_missing = np.zeros(len(array), bool)
    if kind == "f":
        return _Values("number", array.astype(float), np.isnan(array), array)
    if kind in "iu":
        return _Values("number", array, none_missing, array)
    if kind in "bU":
        return _Values("text" if kind == "U" else "boolean", array, none_missing, array)
    if kind in "mM":
        unit = f"{'datetime' if kind == 'M' else 'timedelta'}64[us]"
        return _Values("time", array.astype(unit).astype(np.int64), np.isnat(array), array)
    if kind == "T":  # NumPy's strings of variable length
        return _objects(name, array.astype(object))
    raise unsupported_type(name, array.dtype)


def _array(column: Any) -> np.ndarray:
    """Return a column as an array.

    Whole numbers and booleans with missing values become Python objects, which keep None apart.
    """
    kind = getattr(column, "type", None)  # of Arrow
    if kind is not None and hasattr(column, "null_count"):
        if str(kind).startswith("dictionary"):
            column = column.cast(kind.value_type)
        is_exact = str(column.type).startswith(("int", "uint", "bool"))
        if is_exact and column.null_count:
            return np.array(column.to_pylist(), object)
        return column.to_numpy()
    if getattr(getattr(column, "dtype", None), "tz", None) is not None:  # pandas with a time zone
        return column.to_numpy("datetime64[us]")
    if isinstance(column, list | tuple):
        # NumPy would turn a number among texts into a text.
        kinds = {type(value) for value in column}
        return np.array(column, None if len(kinds) == 1 else object)
    return np.asarray(column)


def _objects(name: str, array: np.ndarray) -> _Values:
    """Convert a column of Python objects to the type that its values share; else TableError."""
    missing = np.array([_is_missing(value) for value in array.tolist()], bool)
    present = array[~missing].tolist()
    if not present:
        return _Values("nothing", array, missing, array)
    matching = (row for row in _TYPES if all(isinstance(value, row[1]) for value in present))
    kind, _, dtype, convert = next(matching, (None,) * 4)
    if kind is None or convert is None:
        types = sorted({type(value).__name__ for value in present})
        raise unsupported_type(name, " and ".join(types))
    try:
        values = np.array([convert(value) for value in present], dtype)
    except (OverflowError, ValueError) as error:
        raise TableError(f"column {name!r}: {error}") from error
    full = np.zeros(len(array), values.dtype)
    full[~missing] = values
    return _Values(kind, full, missing, array)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    # By name, as this package does not import pandas; `bool(NA)` raises.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | decimal.Decimal) and bool(value != value)


def _microseconds(value: Any) -> int:
    """Return a time as microseconds: since 1970 in UTC, or since midnight, or a duration."""
    if isinstance(value, datetime.time):
        day = datetime.date(1970, 1, 1)
        value = datetime.datetime.combine(day, value.replace(tzinfo=None))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    unit = "timedelta64[us]" if isinstance(value, datetime.timedelta) else "datetime64[us]"
    return int(np.array(value, unit).astype(np.int64))


# The kind of values, their types, the dtype of their array, and the function that converts a value
# for this array. Booleans come first, because Python counts them as whole numbers.
_TYPES: tuple[tuple[Kind, Any, Any, Any], ...] = (
    ("boolean", bool | np.bool_, bool, bool),
    ("number", int | np.integer, None, int),
    ("number", int | float | np.number | decimal.Decimal, float, float),
    ("text", str, None, str),
    ("time", datetime.date | datetime.time | datetime.timedelta, np.int64, _microseconds),
)
