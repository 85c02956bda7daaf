"""Reading CSV and Parquet files, with errors that name the file, the column and the row."""

import csv
import difflib
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .arrow import pa, pa_csv, pa_parquet, pc
from .numerals import EXACT, are_hexadecimal, are_numbers, exact_numbers, may_be_thousands
from .schema import Schema, Value

NULL_VALUES = (
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "-NaN",
    "n/a",
    "nan",
    "null",
)
"""What a CSV cell may hold to mean that the value is missing."""

_SOURCE = b"jsparse.source"
_NOT_TABLES = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; export it as CSV",
    b"ARROW1": "an Arrow (Feather) file; save it as Parquet",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
    b"\x89HDF": "an HDF5 file; save it as Parquet",
}

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")


class TableError(ValueError):
    """A table is not what was expected; the message names the file, column or row."""


def read_table(
    path: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    null_values: Sequence[str] | None = None,
) -> pa.Table:
    """Read a CSV or Parquet file as a table with at least one row and distinct column names.

    Parquet is known by its first bytes; anything else is read as CSV in UTF-8 with a header line,
    compressed or not (`.gz`, `.bz2`). The delimiter is the comma, or the semicolon, tab or bar if
    the header holds that and no comma; then numbers may have decimal commas. Quoted cells may hold
    line ends; blank lines are skipped. Whole numbers are read exactly up to 76 digits.

    Args:
        path: the file.
        schema: the training table's schema. Texts stay texts in CSV files (such as the code "01"),
            and missing is what was missing there.
        null_values: what a CSV cell may hold to mean that the value is missing; by default the
            schema's, or `NULL_VALUES`.

    Raises:
        TableError: if the file is missing, a folder, empty, unreadable, truncated or of another
            kind, has a row with too many or too few cells, no rows, or a repeated column name.
    """
    path = Path(path)
    name = repr(os.fspath(path))
    if not os.path.isfile(path):
        what = "it is not a file" if os.path.exists(path) else "there is no such file"
        raise TableError(f"{name}: expected a CSV or Parquet file; {what}")
    if null_values is None:
        null_values = NULL_VALUES if schema is None else schema.null_values
    kind, delimiter, point = "Parquet", "", None
    try:
        with path.open("rb") as file:
            start = file.read(8)
        check_start(start, name)
        if start.startswith(b"PAR1") or path.suffix in (".parquet", ".pq"):
            # Not read_table, which takes a part of the path "a=1/" for a column.
            table = pa_parquet.ParquetFile(path).read()
            table.validate(full=True)  # texts may be anything but UTF-8
        else:
            kind = "CSV"
            delimiter = delimiter_of(path)
            table, point = _read_csv(path, delimiter, null_values, schema)
            table = exactly(table, () if schema is None else schema.with_origin, point)
        names = list(table.column_names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise TableError(f"{name}: expected a readable {kind} file; {reason}") from error
    repeated = sorted({column for column in names if names.count(column) > 1})
    if repeated:
        raise TableError(f"{name}: expected distinct column names; repeated: {listing(repeated)}")
    if table.num_rows == 0:
        raise TableError(f"{name}: expected at least one row of data; it has none")
    # What pandas writes to restore its row labels is no data.
    table = table.select([column for column in names if not column.startswith("__index_level_")])
    source = {
        "path": os.fspath(path),
        "rows": table.num_rows,
        "delimiter": delimiter,
        "point": point,
        "null_values": list(null_values),
    }
    metadata = {**(table.schema.metadata or {}), _SOURCE: json.dumps(source).encode()}
    return table.replace_schema_metadata(metadata)


def source_of(table: pa.Table) -> dict[str, Any]:
    """Return the notes of `read_table`: path, rows, delimiter, point, null_values."""
    noted = (table.schema.metadata or {}).get(_SOURCE)
    return json.loads(noted) if noted else {}


def point_of(table: pa.Table) -> str:
    """Return the decimal point of a table's texts."""
    return source_of(table).get("point") or "."


def is_csv(table: pa.Table) -> bool:
    """Whether a table was read from a CSV file, in which all is text."""
    return source_of(table).get("point") is not None


def locate(table: pa.Table, row: int) -> str:
    """Words for the row at index `row`: counted from 1, and its line if it came from a CSV file.

    The file is read again, as blank lines and line ends within cells move the lines. A table that
    is no longer the whole file gives the row only.
    """
    source = source_of(table)
    number = source["numbers"][row] if "numbers" in source else source.get("first", 0) + row
    words = f"row {number + 1}"
    if not source.get("delimiter") or source["rows"] != table.num_rows:
        return words
    try:
        with _open_text(Path(source["path"])) as file:
            line, at = 0, -1  # the header is the record before row 0
            reader = csv.reader(file, delimiter=source["delimiter"])
            for cells in reader:
                if cells and at == row:
                    return f"{words} (line {line + 1} of {source['path']})"
                at += bool(cells)
                line = reader.line_num
    except (OSError, csv.Error):
        pass  # the file has changed since; the row still stands
    return words


def note_rows(
    table: pa.Table,
    *,
    null_values: Sequence[str],
    point: str | None = None,
    first: int = 0,
    numbers: Sequence[int] = (),
) -> pa.Table:
    """Note which rows of a file these are, those from `first` on or as numbered, for `locate`."""
    noted: dict[str, Any] = {"numbers": list(numbers)} if numbers else {"first": first}
    noted |= {"null_values": list(null_values), "point": point}
    return table.replace_schema_metadata({_SOURCE: json.dumps(noted).encode()})


def table_bytes(path: str | os.PathLike[str]) -> int:
    """Estimate the memory that a file takes as a table."""
    if not os.path.isfile(path):
        return 0  # said better where it is read
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PAR1":
                return os.path.getsize(path)
        metadata = pa_parquet.ParquetFile(path).metadata
    except (pa.ArrowException, OSError):
        return 0  # as above
    return 8 * metadata.num_rows * metadata.num_columns


def check_names(table: pa.Table, wanted: Iterable[str], what: str) -> None:
    """See that the columns `wanted` are there.

    Raises:
        TableError: naming those missing and the nearest that are there.
    """
    missing = [name for name in wanted if name not in table.column_names]
    if not missing:
        return
    lower = {name.lower().strip(): name for name in table.column_names}
    near = {
        lower[match]: None
        for name in missing
        for match in difflib.get_close_matches(name.lower().strip(), lower, n=3, cutoff=0.5)
    }
    hint = f"nearest: {listing(near)}" if near else f"the table has {listing(table.column_names)}"
    where = source_of(table).get("path")
    raise TableError(
        f"{f'{where!r}: ' if where else ''}expected {what} {listing(missing)}, not found; {hint}"
    )


def listing(values: Iterable[Any], most: int = 10) -> str:
    """Return the first few values, for a message."""
    values = list(values)
    words = ", ".join(repr(value) for value in values[:most])
    return words if len(values) <= most else f"{words} and {len(values) - most} more"


def check_start(start: bytes, name: str) -> None:
    """Raise if a file's first bytes say that it is no table."""
    if not start:
        raise TableError(f"{name}: expected a CSV or Parquet file; it is empty")
    for magic, what in _NOT_TABLES.items():
        if start.startswith(magic):
            raise TableError(f"{name}: expected a CSV or Parquet file; it is {what}")
    if b"\0" in start and not start.startswith((b"PAR1", *_COMPRESSED)):
        raise TableError(
            f"{name}: expected a CSV or Parquet file; it is text in UTF-16 or UTF-32, to be saved "
            "as UTF-8, or no text"
        )


def _open_text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        pa.input_stream(path), encoding="utf-8-sig", errors="replace", newline=""
    )


def delimiter_of(path: Path) -> str:
    """Infer the delimiter of a CSV file from its header."""
    with _open_text(path) as file:
        header = next((line for line in file if line.strip()), "")
    header = re.sub(r'"[^"]*"', "", header)
    others = {mark: header.count(mark) for mark in ";\t|"}
    most = max(others, key=lambda mark: others[mark])
    return most if others[most] and "," not in header else ","


def csv_options(
    null_values: Sequence[str], types: dict[str, pa.DataType], point: str, **others: Any
) -> pa_csv.ConvertOptions:
    """How the cells of a CSV file are read."""
    return pa_csv.ConvertOptions(
        null_values=list(null_values),
        strings_can_be_null=True,
        column_types=types,
        decimal_point=point,
        # And not 1 and 0, by which a column of 1 and "true" would be one of booleans.
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
        **others,
    )


def _read_csv(
    path: Path, delimiter: str, null_values: Sequence[str], schema: Schema | None
) -> tuple[pa.Table, str]:
    """Return the table, and the decimal point of its numbers."""
    types = {} if schema is None else column_types(schema)
    # Of other types what the cells hold is said better by their own.
    types = {name: kind for name, kind in types.items() if kind == pa.string()}

    def read(threads: bool, point: str = ".", **others: Any) -> pa.Table:
        return pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(use_threads=threads),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv_options(null_values, {**types, **others}, point),
        )

    try:
        table, point = read(threads=True), "."
        used = set(table.column_names if schema is None else schema.names)
        shown = [c for n, c in zip(table.column_names, table.columns, strict=True) if n in used]
        if delimiter != "," and has_decimal_commas(shown):
            table, point = read(threads=True, point=","), ","
    except pa.ArrowInvalid:
        read(threads=False)  # the same failure, but it names the row
        raise
    names = table.column_names
    doubtful = doubtful_columns(path, table, [n for n in names if names.count(n) == 1])
    if doubtful:
        again = read(threads=True, point=point, **dict.fromkeys(doubtful, pa.string()))
        for name in doubtful:
            exact = read_again(again[name], point)
            if exact is not None:
                table = table.set_column(names.index(name), name, exact)
    return table, point


def doubtful_columns(
    path: Path, table: pa.Table, names: Iterable[str], most: int | None = None
) -> list[str]:
    """Return the columns whose numbers may differ from what the cells of the CSV file say.

    It reads 0x1F as 31, and whole numbers of more than 64 bits as the nearest float64. The table is
    that of the first `most` bytes of the file, by default of all.
    """
    integers = [name for name in names if pa.types.is_integer(table[name].type)]
    hexadecimal = integers if integers and _holds_0x(path, most) else []
    return [name for name in names if name in hexadecimal or has_large_floats(table[name])]


def has_large_floats(column: pa.ChunkedArray) -> bool:
    """Whether some are so large that float64 does not hold every whole number of that size."""
    if not pa.types.is_floating(column.type):
        return False
    most = pc.max(pc.abs(column), skip_nulls=True).as_py()
    return most is not None and most >= EXACT


def read_again(texts: pa.ChunkedArray, point: str) -> pa.ChunkedArray | None:
    """Return the cells of a doubtful column as texts.

    None if they are what they were taken for.
    """
    if pc.any(are_hexadecimal(texts), min_count=0).as_py():
        return texts
    exact = exact_numbers(texts, point)
    if exact is None:  # those of too many digits are texts, which are refused where they are used
        numbers = pc.all(are_numbers(texts, point), min_count=0).as_py()
        return texts if numbers else None
    return None if pa.types.is_floating(exact.type) else exact


def exactly(table: pa.Table, names: Iterable[str], point: str) -> pa.Table:
    """Return the table with numeric texts of these columns as numbers."""
    for name in {*names} & {*table.column_names}:
        text = pa.types.is_string(table[name].type)
        exact = exact_numbers(table[name], point) if text else None
        if exact is not None:
            table = table.set_column(table.column_names.index(name), name, exact)
    return table


def _holds_0x(path: Path, most: int | None) -> bool:
    with pa.input_stream(path) as file:
        before, left = b"", most
        while piece := file.read(1 << 20 if left is None else min(1 << 20, left)):
            if b"0x" in (before + piece).lower():
                return True
            before = piece[-1:]
            left = None if left is None else left - len(piece)
    return False


def has_decimal_commas(columns: Iterable[pa.ChunkedArray]) -> bool:
    """Whether most texts of some column are numbers such as 1,5, not counting whole numbers.

    All such as 1,234 are none: these may be thousands.
    """
    for column in columns:
        if pa.types.is_string(column.type) and len(column) > column.null_count:
            integers = pc.match_substring_regex(column, r"^\s*[-+]?\d+\s*$")
            others = column.filter(pc.invert(integers).fill_null(False))
            commas = pc.match_substring_regex(others, r"^\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*$")
            decimals = pc.and_(commas, pc.invert(may_be_thousands(others, ",")))
            most = (pc.mean(commas.cast(pa.uint8())).as_py() or 0) > 0.5
            if most and pc.any(decimals).as_py():
                return True
    return False


def column_types(schema: Schema) -> dict[str, pa.DataType]:
    """For each column a type that holds every value of training."""
    known = {column.name: column.categories for column in schema.columns}
    types = {
        name: _type_of(values or ())
        for name, values in {**known, schema.target: schema.classes}.items()
    }
    return {**types, **dict.fromkeys(schema.with_origin, pa.string())}


def _type_of(values: Sequence[Value]) -> pa.DataType:
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, str):
        return pa.string()
    if isinstance(sample, bool):
        return pa.bool_()
    integers = [value for value in values if isinstance(value, int)]
    if max(map(abs, integers), default=0) > 2**53:  # not exact as float64
        return pa.int64() if max(integers) < 2**63 else pa.uint64()
    return pa.float64()
