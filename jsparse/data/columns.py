"""Columns of whatever Arrow type as one of four: booleans, integers, float64, strings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ._arrow import pa, pc
from .tables import TableError, locate


def plain_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """The column as booleans, integers, float64 without NaN (null instead), or strings.

    Raises:
        TableError: for any other type.
    """
    values = table[name]
    types = pa.types
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_floating(kind) or types.is_decimal(kind):
        values = values.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind):
        return values
    if is_text(kind):
        return values.cast(pa.string())
    advice = "turn it into numbers or texts, or drop the column"
    if types.is_binary(kind) or types.is_large_binary(kind):
        advice = "if it is text, save the file in UTF-8; else drop the column"
    elif types.is_temporal(kind):
        advice = "turn it into numbers (such as days since a date), or drop the column"
    raise TableError(
        f"column {name!r}: expected numbers, booleans or texts, got type {kind}; {advice}"
    )


def float_column(table: pa.Table, name: str) -> Float[np.ndarray, "n"]:
    """The column as finite float64, NaN where a value is missing."""
    values = plain_column(table, name)
    if is_text(values.type):
        values = _parse(table, name, values)
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    numbers = values.cast(pa.float64(), safe=False).to_numpy()
    infinite = np.isinf(numbers)
    if np.any(infinite):
        row = int(np.argmax(infinite))
        raise TableError(
            f"column {name!r}: expected finite numbers, got {numbers[row]} in {locate(table, row)}"
        )
    return numbers


def _parse(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    trimmed = pc.utf8_trim_whitespace(values)
    try:
        return trimmed.cast(pa.float64())
    except pa.ArrowInvalid as error:
        for value in trimmed.unique().drop_null().to_pylist():
            if not reads_as_number(value):
                row = trimmed.index(value).as_py()
                raise TableError(
                    f"column {name!r}: expected numbers, got {value!r} in {locate(table, row)}"
                ) from error
        raise TableError(f"column {name!r}: expected numbers; {error}") from error


def comparable_column(
    table: pa.Table, name: str, known: Sequence[Any]
) -> tuple[pa.ChunkedArray, pa.Array]:
    """The column and the values `known` from training, in one type in which they compare."""
    values = plain_column(table, name)
    sample = next((value for value in known if value is not None), None)
    if isinstance(sample, str):
        kind, fits = pa.string(), True
    elif isinstance(sample, bool):
        kind, fits = pa.bool_(), pa.types.is_boolean(values.type)
    elif isinstance(sample, int) and pa.types.is_integer(values.type):
        beyond = pa.types.is_uint64(values.type) and min(v for v in known if v is not None) >= 0
        kind, fits = pa.uint64() if beyond else pa.int64(), True
    else:
        kind, fits = pa.float64(), is_number(values.type)
    if not fits and not pa.types.is_null(values.type):
        raise TableError(
            f"column {name!r}: expected {type_words(kind)} as in training, got "
            f"{type_words(values.type)} ({values.drop_null()[0].as_py()!r})"
        )
    try:
        return values.cast(kind, safe=not pa.types.is_floating(kind)), pa.array(known, kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise TableError(f"column {name!r}: expected {type_words(kind)}; {error}") from error


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is a plain number."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text, in any of Arrow's layouts."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def type_words(kind: pa.DataType) -> str:
    """A type in words for a message."""
    if is_text(kind):
        return "texts"
    if pa.types.is_boolean(kind):
        return "booleans"
    return "numbers" if is_number(kind) else f"type {kind}"


def reads_as_number(text: str) -> bool:
    """Whether a text is a number written out."""
    try:
        float(text)
    except ValueError:
        return False
    return True
