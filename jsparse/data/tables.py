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

from ._arrow import pa, pa_csv, pa_parquet, pc
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


class TableError(ValueError):
    """A table is not what was expected; the message names the file, column or row."""


def read_table(
    path: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    null_values: Sequence[str] | None = None,
) -> pa.Table:
    """A CSV or Parquet file as a table with at least one row and distinct column names.

    Parquet is known by its first bytes; anything else is read as CSV in UTF-8 with a header line,
    compressed or not (`.gz`, `.bz2`). The delimiter is the comma, or the semicolon, tab or bar if
    the header holds that and no comma; then numbers may have decimal commas. Quoted cells may hold
    line ends; blank lines are skipped.

    Args:
        path: the file.
        schema: that of the training table. Texts stay texts in CSV files (such as the code "01"),
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
    kind, delimiter = "Parquet", ""
    try:
        with path.open("rb") as file:
            start = file.read(8)
        check_start(start, name)
        if start.startswith(b"PAR1") or path.suffix in (".parquet", ".pq"):
            # Not read_table, which takes a part of the path "a=1/" for a column.
            table = pa_parquet.ParquetFile(path).read()
        else:
            kind = "CSV"
            delimiter = delimiter_of(path)
            # Of other types what the cells hold is told better by their own.
            types = {} if schema is None else column_types(schema)
            texts = {name: kind for name, kind in types.items() if kind == pa.string()}
            table = _read_csv(path, delimiter, null_values, texts)
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
        "null_values": list(null_values),
    }
    metadata = {**(table.schema.metadata or {}), _SOURCE: json.dumps(source).encode()}
    return table.replace_schema_metadata(metadata)


def source_of(table: pa.Table) -> dict[str, Any]:
    """What `read_table` noted: path, rows, delimiter ("" for Parquet), null_values; else empty."""
    noted = (table.schema.metadata or {}).get(_SOURCE)
    return json.loads(noted) if noted else {}


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


def note_rows(table: pa.Table, *, first: int = 0, numbers: Sequence[int] = ()) -> pa.Table:
    """Note which rows of a file these are, those from `first` on or as numbered, for `locate`."""
    noted = {"numbers": list(numbers)} if numbers else {"first": first}
    return table.replace_schema_metadata({_SOURCE: json.dumps(noted).encode()})


def table_bytes(path: str | os.PathLike[str]) -> int:
    """What a file will roughly take in memory as a table."""
    if not os.path.isfile(path):
        return 0  # said better where it is read
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PAR1":
                return os.path.getsize(path)
        found = pa_parquet.ParquetFile(path).metadata
    except (pa.ArrowException, OSError):
        return 0  # as above
    return 8 * found.num_rows * found.num_columns


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
    """The first few values for a message."""
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


def _open_text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        pa.input_stream(path), encoding="utf-8-sig", errors="replace", newline=""
    )


def delimiter_of(path: Path) -> str:
    """What separates the cells of a CSV file, by its header."""
    with _open_text(path) as file:
        header = next((line for line in file if line.strip()), "")
    header = re.sub(r'"[^"]*"', "", header)
    others = {mark: header.count(mark) for mark in ";\t|"}
    most = max(others, key=lambda mark: others[mark])
    return most if others[most] and "," not in header else ","


def _read_csv(
    path: Path, delimiter: str, null_values: Sequence[str], types: dict[str, pa.DataType]
) -> pa.Table:
    def read(threads: bool, point: str = ".") -> pa.Table:
        return pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(use_threads=threads),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                null_values=list(null_values),
                strings_can_be_null=True,
                column_types=types,
                decimal_point=point,
            ),
        )

    try:
        table = read(threads=True)
        if delimiter != "," and has_decimal_commas(table):
            table = read(threads=True, point=",")
        return table
    except pa.ArrowInvalid:
        return read(threads=False)  # the same failure, but it names the row


def has_decimal_commas(table: pa.Table) -> bool:
    """Whether some column of text is numbers such as 1,5 for the most part."""
    for column in table.columns:
        if pa.types.is_string(column.type) and len(column) > column.null_count:
            commas = pc.match_substring_regex(column, r"^\s*[-+]?\d+,\d+\s*$")
            if pc.mean(commas.cast(pa.uint8())).as_py() > 0.5:
                return True
    return False


def column_types(schema: Schema) -> dict[str, pa.DataType]:
    """For each column a type that holds every value of training."""
    known = {column.name: column.categories for column in schema.columns}
    return {
        name: _type_of(values or ())
        for name, values in {**known, schema.target: schema.classes}.items()
    }


def _type_of(values: Sequence[Value]) -> pa.DataType:
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, str):
        return pa.string()
    if isinstance(sample, bool):
        return pa.bool_()
    whole = [value for value in values if isinstance(value, int)]
    if max(map(abs, whole), default=0) > 2**53:  # not exact as float64
        return pa.int64() if max(whole) < 2**63 else pa.uint64()
    return pa.float64()
