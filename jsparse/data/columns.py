"""Columns of whatever Arrow type as one of four: booleans, integers, float64, strings."""

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .arrow import pa, pc
from .numerals import EXACT, are_numbers, are_times, exact_numbers
from .tables import TableError, locate, point_of


def plain_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the column as booleans, integers, strings, or float64 with null in place of NaN.

    Dates and times are integers, microseconds.

    Raises:
        TableError: for any other type.
    """
    values = _stored(table, name)
    types, kind = pa.types, values.type
    if types.is_decimal(kind):
        return _nearest(values)
    if types.is_floating(kind):
        values = values.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind):
        return values
    if is_text(kind):
        return values.cast(pa.string())
    advice = "turn it into numbers or texts, or drop the column"
    if types.is_binary(kind) or types.is_large_binary(kind):
        advice = "if it is text, save the file in UTF-8; else drop the column"
    raise TableError(
        f"column {name!r}: expected numbers, booleans or texts, got type {kind}; {advice}"
    )


def exact_column(
    table: pa.Table, name: str, null_values: Sequence[str] = (), *, time: bool = False
) -> pa.ChunkedArray:
    """Return the column as exact numbers: integers, decimals or float64.

    Booleans are 0 and 1. Texts are what they say, or missing if they are among `null_values`; if
    `time`, they are dates and times of ISO 8601.

    Raises:
        TableError: for a text that is no number, numbers of more than 76 digits of which float64
            would lose some, or another type.
    """
    values = _stored(table, name)
    if pa.types.is_decimal(values.type):
        return values
    values = plain_column(table, name)
    if pa.types.is_boolean(values.type):
        return values.cast(pa.uint8())
    if not is_text(values.type):
        return values
    values, point = without(values, null_values), point_of(table)
    if time:
        return _times(table, name, values)
    numbers = exact_numbers(values, point)
    if numbers is None:
        fine = are_numbers(values, point).fill_null(True)
        row = pc.index(fine, False).as_py()
        words = "numbers"
        if row < 0:
            # Long itself, or made so by its exponent; or else no one of them is.
            long = pc.match_substring_regex(values, r"[eE]|.{77}").fill_null(False)
            row = max(0, pc.index(long, True).as_py())
            words = "numbers that take at most 76 digits, as some are beyond float64"
        got = f"{values[row].as_py():.80}"
        raise TableError(f"column {name!r}: expected {words}, got {got!r} in {locate(table, row)}")
    return numbers


def without(texts: pa.ChunkedArray, null_values: Sequence[str]) -> pa.ChunkedArray:
    """Return the texts with null in place of the spellings of missing values."""
    missing = pc.is_in(texts, value_set=pa.array(null_values, pa.string()))
    return pc.if_else(missing, pa.scalar(None, pa.string()), texts)


def float_column(
    table: pa.Table,
    name: str,
    origin: int = 0,
    null_values: Sequence[str] = (),
    *,
    time: bool = False,
) -> Float[np.ndarray, "n"]:
    """Return the column less `origin` as finite float64, with NaN for missing values.

    The difference is rounded once, as if it had been exact.

    Raises:
        TableError: see `exact_column`; and for an infinite value.
    """
    numbers = _less(exact_column(table, name, null_values, time=time), origin)
    infinite = np.isinf(numbers)
    if np.any(infinite):
        row = int(np.argmax(infinite))
        raise TableError(
            f"column {name!r}: expected finite numbers, got {numbers[row]} in {locate(table, row)}"
        )
    return numbers


def beyond_float64(values: pa.ChunkedArray) -> bool:
    """Whether an exact column has numbers so large that float64 does not hold all such."""
    if not is_exact(values.type) or values.null_count == len(values):
        return False
    ends = pc.min_max(values).as_py()
    return max(abs(ends["min"]), abs(ends["max"])) > EXACT


def holds_times(table: pa.Table, name: str, null_values: Sequence[str] = ()) -> bool:
    """Whether a column is of dates or times, or of texts all of which are such of ISO 8601."""
    if pa.types.is_temporal(stored_type(table, name)):
        return True
    if not is_text(stored_type(table, name)):
        return False
    present = without(plain_column(table, name), null_values).drop_null()
    return len(present) > 0 and pc.all(are_times(present)).as_py()


def _times(table: pa.Table, name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of ISO 8601 as microseconds since 1970.

    Raises:
        TableError: for one that is none.
    """
    try:
        return pc.utf8_trim_whitespace(texts).cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid as error:
        fine = are_times(texts).fill_null(True)
        row = max(0, pc.index(fine, False).as_py())
        raise TableError(
            f"column {name!r}: expected dates or times such as 2024-01-31 or 2024-01-31 12:00, got "
            f"{texts[row].as_py()!r:.80} in {locate(table, row)}"
        ) from error


def origin_of(values: pa.ChunkedArray) -> int:
    """Return the origin of an exact column: its first value if float64 cannot hold all, else 0."""
    return int(values.drop_null()[0].as_py()) if beyond_float64(values) else 0


def check_told_apart(
    table: pa.Table, name: str, origin: int = 0, null_values: Sequence[str] = ()
) -> None:
    """See that numbers that differ still do as float64, less the origin.

    Raises:
        TableError: naming two that do not.
    """
    values = exact_column(table, name, null_values)
    if not (pa.types.is_decimal(values.type) or beyond_float64(values)):
        return
    distinct = values.unique().drop_null()
    numbers = _less(pa.chunked_array([distinct]), origin)
    order = np.argsort(numbers, kind="stable")
    same = np.flatnonzero(np.diff(numbers[order]) == 0)
    if len(same):
        first, other = (distinct[int(order[i])] for i in (same[0], same[0] + 1))
        row = locate(table, pc.index(values, other).as_py())
        raise TableError(
            f"column {name!r}: expected numbers that float64 tells apart, got {first} and {other}, "
            f"the latter in {row}; subtract a number near them, name the column as one of codes "
            "(categorical, --categorical) if it is that, or drop it"
        )


def check_labels(table: pa.Table, name: str) -> None:
    """Return decimals as float64, as labels and codes need; whole numbers stay whole."""
    if pa.types.is_decimal(stored_type(table, name)):
        check_told_apart(table, name)


def is_exact(kind: pa.DataType) -> bool:
    """Whether a type is of numbers that float64 may not hold."""
    return pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def stored_type(table: pa.Table, name: str) -> pa.DataType:
    """Return the type of a column's values, of a dictionary's too."""
    kind = table[name].type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _stored(table: pa.Table, name: str) -> pa.ChunkedArray:
    kind, types = stored_type(table, name), pa.types
    values = table[name] if table[name].type == kind else table[name].cast(kind)
    if types.is_timestamp(kind) or types.is_date(kind):
        return values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    if types.is_duration(kind):
        return values.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if types.is_time(kind):
        return values.cast(pa.time64("us"), safe=False).cast(pa.int64())
    return values


def _nearest(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals as float64, by way of texts: Arrow's own cast may round to the one beside."""
    return decimals.cast(pa.string()).cast(pa.float64())


def _less(values: pa.ChunkedArray, origin: int) -> Float[np.ndarray, "n"]:
    if is_exact(values.type) and origin:
        with decimal.localcontext(decimal.Context(prec=200)):
            cells = values.to_pylist()
            return np.array([np.nan if v is None else float(v - origin) for v in cells], float)
    if pa.types.is_decimal(values.type):
        values = _nearest(values)
    numbers = values.cast(pa.float64(), safe=False).to_numpy()
    rounded = float(origin)
    return (numbers - rounded) - float(origin - int(rounded)) if origin else numbers


def comparable_column(
    table: pa.Table, name: str, known: Sequence[Any]
) -> tuple[pa.ChunkedArray, pa.Array]:
    """Return the column and the values `known` from training in one comparable type."""
    values = plain_column(table, name)
    sample = next((value for value in known if value is not None), None)
    if isinstance(sample, str):
        kind, fits = pa.string(), True
    elif isinstance(sample, bool):
        kind, fits = pa.bool_(), pa.types.is_boolean(values.type)
    elif isinstance(sample, int) and pa.types.is_integer(values.type):
        kind, fits = _type_of_both(values, [v for v in known if v is not None]), True
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


def _type_of_both(values: pa.ChunkedArray, known: Sequence[int]) -> pa.DataType:
    """Return a type that holds the whole numbers of a column and the known ones."""
    ends = pc.min_max(values).as_py()
    low, high = min(ends["min"] or 0, *known), max(ends["max"] or 0, *known)
    if high < 2**63:
        return pa.int64()
    return pa.uint64() if low >= 0 else pa.decimal128(20, 0)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is a plain number."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text, in any of Arrow's layouts."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def type_words(kind: pa.DataType) -> str:
    """Return a type in words, for a message."""
    if is_text(kind):
        return "texts"
    if pa.types.is_boolean(kind):
        return "booleans"
    return "numbers" if is_number(kind) else f"type {kind}"
