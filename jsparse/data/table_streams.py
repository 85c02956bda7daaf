"""Files larger than memory, read in batches of rows."""

import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .arrow import pa, pa_csv, pa_dataset, pa_parquet, pc
from .columns import (
    beyond_float64,
    check_told_apart,
    exact_column,
    is_exact,
    is_number,
    plain_column,
    stored_type,
)
from .encoding import encode, encode_target, fit_schema, infer_task
from .numerals import EXACT
from .schema import REGRESSION, Schema
from .streams import BATCH_ROWS, Batch
from .tables import (
    NULL_VALUES,
    TableError,
    check_names,
    check_start,
    column_types,
    csv_options,
    delimiter_of,
    doubtful_columns,
    exactly,
    has_decimal_commas,
    has_large_floats,
    listing,
    locate,
    note_rows,
    read_again,
)

SAMPLE_ROWS = 65536  # for the medians that fill missing values in
_BLOCK = 1 << 24  # bytes of a CSV file that are read at a time, and by which its types are found


class TableFile:
    """A CSV file, a Parquet file or a folder of Parquet files as tables of consecutive rows.

    The types of a CSV file's columns are those of its first rows, whole numbers being read as any.
    Where these tell nothing they are the schema's; without one numbers, or texts for columns to
    keep. Of a column of floating-point numbers by its first rows, later whole numbers beyond 2^53
    are rounded.

    Args:
        path: the file or folder.
        schema: the training table's schema; only its columns and target are read.
        null_values: what a CSV cell may hold to mean that the value is missing; by default the
            schema's, or `NULL_VALUES`.
        keep: columns that hold codes or labels, whose whole numbers stay whole.
        drop: columns to leave out.
        batch_rows: most rows of a table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        null_values: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        drop: Sequence[str] = (),
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self.path, self.name = Path(path), repr(os.fspath(path))
        if not self.path.exists():
            raise TableError(f"{self.name}: expected a CSV or Parquet file or a folder of Parquet")
        if null_values is None:
            null_values = NULL_VALUES if schema is None else schema.null_values
        self.schema, self.null_values, self.batch_rows = schema, null_values, batch_rows
        self.point: str | None  # of the numbers of a CSV file, once it is known
        self.keep, self.drop, self.point = keep, drop, None
        self.parquet = self.path.is_dir() or self._is_parquet()

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield the tables, from the first row.

        Raises:
            TableError: if the file cannot be read, lacks a column of the schema or one to drop, a
                row has too many or too few cells, or a cell is not of the type of its column; the
                rows concerned are named.
        """
        first = 0
        try:
            for batch in self._batches():
                for start in range(0, batch.num_rows, self.batch_rows):
                    part = pa.Table.from_batches([batch.slice(start, self.batch_rows)])
                    yield note_rows(
                        part, null_values=self.null_values, point=self.point, first=first
                    )
                    first += part.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TableError(f"{self.name}: unreadable after row {first}: {error}") from error
        if first == 0:
            raise TableError(f"{self.name}: expected at least one row of data; it has none")

    def _is_parquet(self) -> bool:
        try:
            with self.path.open("rb") as file:
                start = file.read(8)
        except OSError as error:
            raise TableError(f"{self.name}: unreadable: {error.strerror}") from error
        check_start(start, self.name)
        return start.startswith(b"PAR1")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self.parquet:
            data = self._folder()
            names = data.schema.names
            # File by file, as a scan of the whole reads ahead as fast as it can, up to a gigabyte.
            for fragment in data.get_fragments():
                with pa_parquet.ParquetFile(fragment.path) as file:
                    for batch in file.iter_batches(self.batch_rows, columns=names):
                        table = pa.Table.from_batches([batch]).select(names)
                        yield from table.cast(data.schema).to_batches()
        else:
            header, delimiter, point, types, small = self._layout
            self.point = point
            origins = () if self.schema is None else self.schema.with_origin
            try:
                for batch in self._open(delimiter, point, types):
                    table = exactly(pa.Table.from_batches([batch]), origins, point)
                    larger = [name for name in small if has_large_floats(table[name])]
                    if larger:
                        raise TableError(
                            f"{self.name}: column {larger[0]!r}: expected whole numbers of at most "
                            f"{EXACT}, as in the first rows, got larger ones, which float64 does "
                            "not hold; drop the column, or save the file as Parquet"
                        )
                    yield from table.combine_chunks().to_batches()
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(self._named(str(error), header)) from error

    def _distinct(self, names: list[str]) -> list[str]:
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise TableError(
                f"{self.name}: expected distinct column names; repeated: {listing(repeated)}"
            )
        return names

    def _chosen(self, found: Sequence[str]) -> list[str]:
        """Of all columns those to be read, once it is seen that what is asked for is there."""
        # What pandas writes to restore its row labels is no data.
        names = [name for name in found if not name.startswith("__index_level_")]
        header = pa.table({name: [] for name in names})
        wanted = None
        try:
            check_names(header, self.drop, "the columns to drop")
            if self.schema is not None:
                wanted = self.schema.names
                check_names(header, wanted[:-1], "the columns")
        except TableError as error:
            raise TableError(f"{self.name}: {error}") from None
        chosen = [n for n in names if n not in self.drop and (wanted is None or n in wanted)]
        if not chosen:
            raise TableError(f"{self.name}: expected at least one column to read; none is left")
        return chosen

    def _named(self, error: str, header: list[str]) -> str:
        """Return Arrow's error with the column's name and the reason for the column's type."""
        place = re.search(r"In CSV column #(\d+): (Row #\d+: )?", error)
        if not place:
            return error
        name = header[int(place[1])]
        error = error.replace(place[0], f"column {name!r}: ")
        if self.schema is not None:
            return error
        if name in self.keep:
            return (
                f"{error}; a column of labels or codes is of the type that its first rows have (if "
                "it is a target of numbers, give the task regression, --task)"
            )
        return (
            f"{error}; a column is of the type that its first rows have: mend the value, or drop "
            "the column"
        )

    def _folder(self) -> pa_dataset.Dataset:
        """Return the files as one table of the chosen columns, which every file has."""
        fragments = list(pa_dataset.dataset(self.path, format="parquet").get_fragments())
        every: dict[str, None] = {}
        for fragment in fragments:
            every |= dict.fromkeys(self._distinct(fragment.physical_schema.names))
        chosen, kinds = self._chosen(list(every)), []
        for fragment in fragments:
            if "=" in os.path.relpath(fragment.path, self.path):
                raise TableError(
                    f"{self.name}: expected all columns within the files, got one in the name of "
                    f"{fragment.path!r}"
                )
            here = fragment.physical_schema
            absent = sorted(set(chosen) - set(here.names))
            if absent:
                raise TableError(
                    f"{self.name}: expected the same columns in every file; {listing(absent)} are "
                    f"not in all, see {fragment.path!r}"
                )
            kinds.append(pa.schema([here.field(name) for name in chosen]))
        unified = pa.unify_schemas(kinds, promote_options="permissive")
        return pa_dataset.dataset(self.path, format="parquet", schema=unified)

    @functools.cached_property
    def _layout(self) -> tuple[list[str], str, str, dict[str, pa.DataType], list[str]]:
        """Of a CSV file all columns, delimiter, decimal point, types of the columns to be read.

        And, without a schema, those of whole numbers by the first rows that are read as any.
        """
        delimiter, point = delimiter_of(self.path), "."
        reader = self._open(delimiter, point, {})
        header = self._distinct(reader.schema.names)
        names, shown = self._chosen(header), _first(reader)
        if delimiter != "," and has_decimal_commas(shown.select(names).columns):
            point = ","
            shown = _first(self._open(delimiter, point, {}))
        known_types = {name: pa.string() if name in self.keep else pa.float64() for name in names}
        if self.schema is not None:
            known_types = column_types(self.schema)
        kinds, large = self._kinds(shown.select(names), delimiter, point)
        types = {}
        for name, kind in kinds.items():
            known = known_types[name]
            text = self.schema is not None and known == pa.string()
            numbers = is_number(kind) and is_number(known) and name not in large
            # What is plainly of another kind is refused, with better words, where it is used.
            types[name] = known if pa.types.is_null(kind) or text or numbers else kind
        read_as_any = [
            n for n in names if types[n] == pa.float64() and pa.types.is_integer(kinds[n])
        ]
        return header, delimiter, point, types, [] if self.schema else read_as_any

    def _kinds(
        self, shown: pa.Table, delimiter: str, point: str
    ) -> tuple[dict[str, pa.DataType], set[str]]:
        """Infer column types from the first rows, and check those that Arrow may have misread.

        And, without a schema, the columns whose whole numbers float64 does not hold.
        """
        kinds = {name: shown[name].type for name in shown.column_names}
        large = {name for name in kinds if self.schema is None and beyond_float64(shown[name])}
        doubtful = doubtful_columns(self.path, shown, kinds, _BLOCK)
        if not doubtful:
            return kinds, large
        again = _first(self._open(delimiter, point, dict.fromkeys(doubtful, pa.string())))
        for name in doubtful:
            exact = read_again(again[name], point)
            if exact is None:
                continue
            kinds[name] = exact.type
            if self.schema is None and beyond_float64(exact):
                large.add(name)
            if not (pa.types.is_integer(exact.type) or pa.types.is_string(exact.type)):
                if self.schema is None and name not in self.keep:
                    raise TableError(
                        f"{self.name}: column {name!r}: expected numbers that float64 holds, or "
                        "whole ones of at most 64 bits, where a file is read in batches; drop the "
                        "column, or name it as one of codes (categorical, --categorical)"
                    )
                kinds[name] = pa.string()
        return kinds, large

    def _open(
        self, delimiter: str, point: str, types: dict[str, pa.DataType]
    ) -> pa_csv.CSVStreamingReader:
        return pa_csv.open_csv(
            self.path,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv_options(
                self.null_values, types, point, include_columns=list(types)
            ),
        )


def _first(reader: pa_csv.CSVStreamingReader) -> pa.Table:
    """Return the rows of a file's first piece."""
    batch = next(reader, None)
    return reader.schema.empty_table() if batch is None else pa.Table.from_batches([batch])


class TableStream:
    """The rows of a file as arrays, by a schema: a `RowStream`.

    Args:
        file: the file.
        schema: how its columns become numbers; see `stream_schema`.
        dtype: of the inputs.
    """

    def __init__(self, file: TableFile, schema: Schema, dtype: str = "float64") -> None:
        self.file, self.schema, self.dtype = file, schema, dtype
        # Missing values filled in and texts read as numbers by the last pass, by column.
        self.imputed: dict[str, int] = {}
        self.parsed: dict[str, int] = {}

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, from the first row.

        Raises:
            TableError: as `encode`; rows are counted from the start of the file.
        """
        imputed, parsed = Counter[str](), Counter[str]()
        for table in self.file:
            encoded = encode(self.schema, table, dtype=self.dtype)
            imputed.update(encoded.imputed)
            parsed.update(encoded.parsed)
            yield Batch(encoded.X, encode_target(self.schema, table))
        self.imputed, self.parsed = dict(imputed), dict(parsed)


def stream_schema(
    file: TableFile,
    target: str,
    *,
    task: str | None = None,
    impute: bool = False,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
) -> tuple[Schema, str, int]:
    """`fit_schema` of a file's rows, in one pass; the reason for the task; the number of rows.

    It is fitted to the rows that show something new: a category, a class, a missing value. Medians
    to fill missing values in come from a random sample of the rows.

    Raises:
        TableError: see `fit_schema`.
    """
    rng = np.random.default_rng(0)
    seen: dict[str, set] = {}
    firsts: dict[str, int] = {}  # of the numbers that float64 may not hold
    shown: list[tuple[pa.Table, np.ndarray]] = []  # with the numbers of the rows
    sample: list[tuple[pa.Table, np.ndarray, np.ndarray]] = []  # and their lottery numbers
    first = 0
    for table in file:
        if not shown:
            check_names(table, [target], "the target column")
            check_names(table, categorical, "the categorical columns")
        gaps = table[target].is_null() if target in table.column_names else None
        if gaps is not None and table[target].null_count:
            row = locate(table, pc.index(gaps, True).as_py())
            raise TableError(
                f"target column {target!r}: missing in {row}; leave out rows without a target"
            )
        rows = {0} if not shown else set()
        for name in table.column_names:
            column = plain_column(table, name)
            counted = name in (target, *categorical) or not is_number(column.type)
            known = seen.setdefault(name, set())
            rows |= _new_rows(column, known, max_categories + 1 if counted else 0)
            if is_exact(stored_type(table, name)) and name not in categorical:
                rows |= _large_rows(table, name, known, firsts, target)
        if rows:
            shown.append((table.take(sorted(rows)), first + np.array(sorted(rows))))
        batch_rows = table.num_rows
        if impute:
            sample.append((table, first + np.arange(batch_rows), rng.random(batch_rows)))
            if sum(part.num_rows for part, _, _ in sample) > 2 * SAMPLE_ROWS:
                sample = [_drawn(sample)]
        first += batch_rows
    parts = [*shown, *([_drawn(sample)[:2]] if sample else [])]
    numbers, once = np.unique(np.concatenate([rows for _, rows in parts]), return_index=True)
    table = pa.concat_tables([part for part, _ in parts], promote_options="default").take(once)
    table = note_rows(
        table, null_values=file.null_values, point=file.point, numbers=numbers.tolist()
    )
    inferred, reason = infer_task(table, target)
    schema = fit_schema(
        table,
        target,
        task=task or inferred,
        impute=impute,
        categorical=categorical,
        max_categories=max_categories,
    )
    if task is not None:
        reason = "as asked"
    elif inferred == REGRESSION:  # not all of which have been kept
        reason = f"{target!r} holds numbers"
    return schema, reason, first


def _new_rows(column: pa.ChunkedArray, known: set, most: int) -> set[int]:
    """Rows with a value not known before, up to `most` of them, and the first missing one."""
    rows = set()
    if column.null_count and None not in known:
        known.add(None)
        rows.add(pc.index(column.is_null(), True).as_py())
    if most and len(known) <= most:
        for value in column.unique().drop_null().to_pylist():
            if value not in known and len(known) <= most:
                known.add(value)
                rows.add(pc.index(column, value).as_py())
    elif column.null_count < len(column) and "some" not in known and not most:
        known.add("some")
        rows.add(pc.index(column.is_valid(), True).as_py())
    return rows


def _large_rows(
    table: pa.Table, name: str, known: set, firsts: dict[str, int], target: str
) -> set[int]:
    """Return the first row with a number that float64 cannot hold, or None.

    Raises:
        TableError: if two numbers of these rows are not told apart, see `check_told_apart`.
    """
    exact = exact_column(table, name)
    if exact.null_count == len(exact):
        return set()
    first = firsts.setdefault(name, int(exact.drop_null()[0].as_py()))
    check_told_apart(table, name, 0 if name == target else first)
    if "large" in known or not beyond_float64(exact):
        return set()
    known.add("large")
    values = exact.to_pylist()
    return {next(i for i, v in enumerate(values) if v is not None and abs(v) > EXACT)}


def _drawn(
    sample: list[tuple[pa.Table, np.ndarray, np.ndarray]],
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return the rows with the smallest lottery numbers."""
    tables, rows, numbers = zip(*sample, strict=True)
    numbers = np.concatenate(numbers)
    drawn = np.argsort(numbers)[:SAMPLE_ROWS]
    table = pa.concat_tables(tables, promote_options="default").take(drawn)
    return table, np.concatenate(rows)[drawn], numbers[drawn]
