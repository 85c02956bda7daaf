"""Read CSV files, Parquet files and folders of Parquet files, whole or in batches."""

import functools
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._arguments import column_names
from ..predictor.schema import CsvFormat, Schema, Value
from .arrow import pa, pa_csv, pa_dataset, pa_parquet
from .streams import BATCH_ROWS
from .tables import TableError, check_names, file_row, listing

_BLOCK = 1 << 24  # bytes of a CSV file read at a time; the first block decides a stream's types
_NOT_TABLES = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; export it as CSV",
    b"ARROW1": "an Arrow (Feather) file; save it as Parquet",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
    b"\x89HDF": "an HDF5 file; save it as Parquet",
}
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")


def read_table(
    path: str | os.PathLike[str], *, schema: Schema | None = None, csv: CsvFormat | None = None
) -> pa.Table:
    """Read all rows of a CSV or Parquet file or folder, at least one; see `TableFile`."""
    return TableFile(path, schema=schema, csv=csv).read()


class TableFile:
    """A CSV file, a Parquet file or a folder of Parquet files.

    A Parquet file is recognised by its first bytes. pyarrow reads any other file as CSV in UTF-8
    with a header line, compressed (`.gz`, `.bz2`) or not. Quoted cells may hold line ends, and
    blank lines are skipped. A column holds numbers, booleans or dates (ISO 8601) if all its cells
    do. If the file is read in batches, the first rows decide the type of a column. Whole numbers
    then become floating-point numbers, and a column whose first rows are empty is a column of
    numbers.

    Args:
        path: the file or folder.
        schema: the training table's schema. Only the columns and the target of the schema are read,
            with their types in training, so that a code such as "01" stays a text.
        csv: how the cells of a CSV file are read; by default as for the training table.
        keep: columns of codes or labels; whole numbers in these columns stay whole numbers.
        drop: columns to leave out.
        batch_rows: largest number of rows of a batch.
        row_groups: the row groups of a Parquet file to read in batches; None for all.

    Raises:
        TableError: if there is no such file, or the first bytes are not the start of a table.
        ValueError: for one text in place of the names `keep` or `drop`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        csv: CsvFormat | None = None,
        keep: Sequence[str] = (),
        drop: Sequence[str] = (),
        batch_rows: int = BATCH_ROWS,
        row_groups: Sequence[int] | None = None,
    ) -> None:
        self.path, self.name = Path(path), repr(os.fspath(path))
        self.schema, self.batch_rows = schema, batch_rows
        self.keep, self.drop = column_names("keep", keep), column_names("drop", drop)
        if csv is None:
            csv = CsvFormat() if schema is None else schema.csv
        self.csv, self.row_groups = csv, row_groups
        if not self.path.exists():
            raise TableError(
                f"{self.name}: expected a CSV or Parquet file or a folder of Parquet files; there "
                "is no such file"
            )
        self.parquet = self.path.is_dir() or self._is_parquet()

    def read(self) -> pa.Table:
        """Read all rows.

        Raises:
            TableError: if the file is unreadable, has a row with too many or too few cells, has no
                rows, repeats a column name, or lacks a column of the schema.
        """
        kind = "Parquet" if self.parquet else "CSV"
        try:
            if self.path.is_dir():
                table = self._folder.to_table()
            elif self.parquet:
                # Do not use read_table, which takes a part "a=1/" of the path for a column.
                table = pa_parquet.ParquetFile(self.path).read()
                table.validate(full=True)  # texts may have another encoding than UTF-8
            else:
                table = self._read_csv()
            names = table.column_names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise TableError(f"{self.name}: expected a readable {kind} file; {reason}") from error
        table = table.select(self._selected(names))
        if table.num_rows == 0:
            raise TableError(f"{self.name}: expected at least one row of data; it has none")
        return table

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield the rows in batches, from the first.

        Raises:
            TableError: as `read`, and if a cell does not have the type of its column.
        """
        n_rows = 0
        try:
            for batch in self._parquet_batches() if self.parquet else self._csv_batches():
                for start in range(0, batch.num_rows, self.batch_rows):
                    part = pa.Table.from_batches([batch.slice(start, self.batch_rows)])
                    yield part
                    n_rows += part.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TableError(
                f"{self.name}: unreadable after {n_rows} data rows: {error}"
            ) from error
        if n_rows == 0:
            raise TableError(f"{self.name}: expected at least one row of data; it has none")

    def _is_parquet(self) -> bool:
        """Return whether the file is Parquet; raise TableError if it is neither Parquet nor CSV."""
        try:
            with self.path.open("rb") as file:
                start = file.read(8)
        except OSError as error:
            raise TableError(f"{self.name}: unreadable: {error.strerror}") from error
        expected = f"{self.name}: expected a CSV or Parquet file; it is"
        if not start:
            raise TableError(f"{expected} empty")
        for magic, what in _NOT_TABLES.items():
            if start.startswith(magic):
                raise TableError(f"{expected} {what}")
        parquet = start.startswith(b"PAR1") or self.path.suffix in (".parquet", ".pq")
        if b"\0" in start and not (parquet or start.startswith(_COMPRESSED)):
            raise TableError(
                f"{expected} text in UTF-16 or UTF-32, to be saved as UTF-8, or no text"
            )
        return parquet

    def _selected(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns to read, and check that all wanted columns exist."""
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise TableError(
                f"{self.name}: expected distinct column names; repeated: {listing(repeated)}"
            )
        # pandas writes its row labels as a column with such a name.
        names = [name for name in names if not name.startswith("__index_level_")]
        wanted = names if self.schema is None else self.schema.names
        try:
            check_names(names, self.drop, "the columns to drop")
            if self.schema is not None:  # the target, which comes last, may be absent
                check_names(names, wanted[:-1], "the columns")
        except TableError as error:
            raise TableError(f"{self.name}: {error}") from None
        selected = [name for name in names if name in wanted and name not in self.drop]
        if not selected:
            raise TableError(f"{self.name}: expected at least one column to read; none is left")
        return selected

    # Parquet

    @functools.cached_property
    def _folder(self) -> pa_dataset.Dataset:
        """The Parquet files as one dataset with the columns to read, which every file must have."""
        fragments = list(pa_dataset.dataset(self.path, format="parquet").get_fragments())
        names: dict[str, None] = {}
        for fragment in fragments:
            names |= dict.fromkeys(fragment.physical_schema.names)
        selected = self._selected(list(names))
        for fragment in fragments:
            if "=" in os.path.relpath(fragment.path, self.path):
                raise TableError(
                    f"{self.name}: expected all columns within the files, got one in the name of "
                    f"{fragment.path!r}"
                )
            absent = sorted(set(selected) - set(fragment.physical_schema.names))
            if absent:
                raise TableError(
                    f"{self.name}: expected the same columns in every file; {listing(absent)} are "
                    f"not in all, see {fragment.path!r}"
                )
        schemas = [pa.schema(map(part.physical_schema.field, selected)) for part in fragments]
        unified = pa.unify_schemas(schemas, promote_options="permissive")
        return pa_dataset.dataset(self.path, format="parquet", schema=unified)

    def _parquet_batches(self) -> Iterator[pa.RecordBatch]:
        # Read file by file, because a scan of the whole folder reads up to a gigabyte ahead.
        for fragment in self._folder.get_fragments():
            with pa_parquet.ParquetFile(fragment.path) as file:
                names = self._folder.schema.names
                groups = None if self.row_groups is None else list(self.row_groups)
                for batch in file.iter_batches(self.batch_rows, row_groups=groups, columns=names):
                    table = pa.Table.from_batches([batch]).select(names)
                    yield from table.cast(self._folder.schema).to_batches()

    # CSV

    def _read_csv(self) -> pa.Table:
        """Read the whole CSV file; an error's message names its column and row."""

        def read(threads: bool) -> pa.Table:
            return pa_csv.read_csv(
                self.path,
                read_options=pa_csv.ReadOptions(use_threads=threads),
                **self._csv_options(_column_types(self.schema)),
            )

        try:
            return read(threads=True)
        except pa.ArrowInvalid:
            try:
                return read(threads=False)  # fails again, and its message names the row
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(self._in_words(error)) from error

    def _csv_batches(self) -> Iterator[pa.RecordBatch]:
        inferred = self._open_csv({}).schema  # of the first block
        types = {name: self._type(name, inferred) for name in self._selected(inferred.names)}
        try:
            yield from self._open_csv(types, include_columns=list(types))
        except pa.ArrowInvalid as error:
            advice = "in a stream, a column has the type of its first rows"
            raise pa.ArrowInvalid(f"{self._in_words(error)}; {advice}") from error

    def _type(self, name: str, first_rows: pa.Schema) -> pa.DataType:
        """Return the type of a column in every batch, from the schema or from the first rows."""
        known, inferred = _column_types(self.schema).get(name), first_rows.field(name).type
        if known is not None:
            return known
        if pa.types.is_integer(inferred) and name not in self.keep:
            return pa.float64()  # later rows may hold other numbers
        if not pa.types.is_null(inferred):
            return inferred
        if self.schema is not None and name != self.schema.target:
            return pa.timestamp("us")  # the schema knows the types of all other columns
        return pa.string() if name in self.keep else pa.float64()

    def _open_csv(
        self, types: dict[str, pa.DataType], include_columns: Sequence[str] = ()
    ) -> pa_csv.CSVStreamingReader:
        return pa_csv.open_csv(
            self.path,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK),
            **self._csv_options(types, include_columns=include_columns),
        )

    def _in_words(self, error: pa.ArrowInvalid) -> str:
        """Return Arrow's message with the names of the column and of the row."""
        match = re.search(r"In CSV column #(\d+): (?:Row #(\d+): )?", str(error))
        if not match:
            return str(error)
        words = f"column {self._open_csv({}).schema.names[int(match[1])]!r}: "
        if match[2]:
            words += f"{file_row(int(match[2]) - 2)}: "  # Arrow counts the header as row 1
        return str(error).replace(match[0], words)

    def _csv_options(self, types: dict[str, pa.DataType], **convert: Any) -> dict[str, Any]:
        """Return pyarrow's options for cells; `types` by column, `convert` for ConvertOptions."""
        return {
            "parse_options": pa_csv.ParseOptions(
                delimiter=self.csv.delimiter or _delimiter_of(self.path), newlines_in_values=True
            ),
            "convert_options": pa_csv.ConvertOptions(
                null_values=list(self.csv.null_values),
                strings_can_be_null=True,
                column_types=types,
                decimal_point=self.csv.decimal,
                **convert,
            ),
        }


def row_groups(path: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the row groups of a Parquet file that have rows."""
    metadata = pa_parquet.ParquetFile(path).metadata
    numbers = range(metadata.num_row_groups)
    return [number for number in numbers if metadata.row_group(number).num_rows]


def table_bytes(path: str | os.PathLike[str]) -> int:
    """Estimate the bytes of memory that a file takes as a table; 0 if it cannot be read."""
    if not os.path.isfile(path):
        return 0
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PAR1":
                return os.path.getsize(path)
        metadata = pa_parquet.ParquetFile(path).metadata
    except (pa.ArrowException, OSError):
        return 0
    return 8 * metadata.num_rows * metadata.num_columns


def _delimiter_of(path: Path) -> str:
    """Infer the delimiter: the comma, or the mark most frequent in a header without commas."""
    with pa.input_stream(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        header = next((line for line in lines if line.strip()), "")
    header = re.sub(r'"[^"]*"', "", header)
    return "," if "," in header else max(",;\t|", key=header.count)


def _column_types(schema: Schema | None) -> dict[str, pa.DataType]:
    """Return the types of the training table's columns, except times and a target of numbers.

    A regression target may hold texts: predictions are then computed, but not scored.
    """
    if schema is None:
        return {}
    values = {column.name: column.categories for column in schema.columns if column.origin is None}
    if schema.classes is not None:
        values[schema.target] = schema.classes
    return {name: _type_of(categories or ()) for name, categories in values.items()}


def _type_of(categories: Sequence[Value]) -> pa.DataType:
    """Return the type that holds all categories; without categories, the type of numbers."""
    sample = next((value for value in categories if value is not None), 0.0)
    if isinstance(sample, int) and not isinstance(sample, bool):
        # pandas writes whole numbers as 1.0 if one of them is missing.
        largest = max(abs(value) for value in categories if isinstance(value, int))
        return pa.float64() if largest <= 2**53 else pa.int64()
    return {str: pa.string(), bool: pa.bool_()}.get(type(sample), pa.float64())
