"""Columns of any Arrow type as numbers, times, texts or booleans."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ..predictor.tables import inexact, refuse_infinite, unsupported_type, wrong_kind
from .arrow import pa, pc
from .tables import NameRow, TableError, row_index


def plain_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column with the simplest type that holds its values.

    Dictionaries are replaced by their values, decimals and other floating-point types by float64
    with null in place of NaN, and every text layout by plain strings. Booleans, integers, dates and
    times stay as they are.

    Raises:
        TableError: for any other type.
    """
    values, types = table[name], pa.types
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    plain = (
        types.is_floating, types.is_decimal, types.is_string, types.is_large_string,
        types.is_string_view, types.is_boolean, types.is_integer, types.is_temporal, types.is_null,
    )  # fmt: skip
    if not any(matches(kind) for matches in plain):
        if types.is_binary(kind) or types.is_large_binary(kind):
            advice = "if it is text, save the file in UTF-8; else drop the column"
            raise unsupported_type(name, kind, advice)
        raise unsupported_type(name, kind)
    if types.is_dictionary(values.type):
        values = values.cast(kind)
    if types.is_floating(kind) or types.is_decimal(kind):
        values = values.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return values.cast(pa.string())
    return values


def float_column(
    table: pa.Table, name: str, name_row: NameRow = row_index, origin: int | None = None
) -> Float[np.ndarray, " n"]:
    """Return a column as finite float64, with NaN for missing values; booleans are 0 and 1.

    Args:
        table: the table.
        name: the column's name.
        name_row: names a row in messages.
        origin: for a column of dates or times, the microseconds to subtract.

    Raises:
        TableError: for texts; for times without an origin, or numbers with an origin; for an
            infinite value; for a whole number that float64 does not represent exactly.
    """
    values = plain_column(table, name)
    if values.null_count == len(values):
        return np.full(len(values), np.nan)
    if pa.types.is_temporal(values.type) is (origin is None) or pa.types.is_string(values.type):
        row = pc.index(values.is_valid(), True).as_py()
        raise wrong_kind(name, values[row].as_py(), name_row(row), is_time=origin is not None)
    if origin is not None:
        values = pc.subtract(microseconds(values), origin)
    try:
        numbers = values.cast(pa.uint8() if pa.types.is_boolean(values.type) else values.type)
        numbers = numbers.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise inexact(name, error) from error
    refuse_infinite(name, numbers, name_row)
    return numbers


def microseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as whole microseconds: since 1970 in UTC, or since midnight, or a duration."""
    kind, types = times.type, pa.types
    unit = pa.timestamp("us")
    if types.is_time(kind):
        unit = pa.time64("us")
    elif types.is_duration(kind):
        unit = pa.duration("us")
    return times.cast(unit, safe=False).cast(pa.int64())


def comparable_column(
    table: pa.Table, name: str, known: Sequence[Any]
) -> tuple[pa.ChunkedArray, pa.Array]:
    """Return a column and the categories `known` from training, both cast to one Arrow type.

    Raises:
        TableError: if the column's values are of another kind than the categories.
    """
    values = plain_column(table, name)
    sample = next((value for value in known if value is not None), None)
    if isinstance(sample, str):
        kind, comparable = pa.string(), not pa.types.is_temporal(values.type)
    elif isinstance(sample, bool):
        kind, comparable = pa.bool_(), pa.types.is_boolean(values.type)
    elif isinstance(sample, int) and pa.types.is_integer(values.type):
        kind, comparable = pa.int64(), True
    else:
        kind, comparable = pa.float64(), is_number(values.type)
    if not comparable and not pa.types.is_null(values.type):
        raise TableError(
            f"column {name!r}: expected {type_words(kind)} as in training, got "
            f"{type_words(values.type)} ({values.drop_null()[0].as_py()!r})"
        )
    try:
        return values.cast(kind, safe=not pa.types.is_floating(kind)), pa.array(known, kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise TableError(f"column {name!r}: expected {type_words(kind)}; {error}") from error


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is an integer or floating-point type."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def type_words(kind: pa.DataType) -> str:
    """Return the plain-language name of a type, for a message."""
    if pa.types.is_string(kind):
        return "texts"
    if pa.types.is_boolean(kind):
        return "booleans"
    return "numbers" if is_number(kind) else f"type {kind}"
