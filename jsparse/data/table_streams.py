"""Files larger than memory as streams of arrays, and the schema of such a file in one pass."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .._arguments import boolean, column_names
from ..predictor.schema import REGRESSION, Schema
from .arrow import pa, pc
from .columns import is_number, plain_column
from .encoding import encode, encode_target, fit_schema, infer_task
from .streams import Batch
from .table_files import TableFile, row_groups
from .tables import TableError, check_names, file_row, rows_of_file

SAMPLE_ROWS = 65536  # rows from which the medians are computed that replace missing values


class TableStream:
    """The rows of a file as arrays, encoded by a schema: a `RowStream`.

    Args:
        file: the file.
        schema: how the file's columns become numbers; see `stream_schema`.
        dtype: dtype of the inputs.
    """

    def __init__(self, file: TableFile, schema: Schema, dtype: str = "float64") -> None:
        self.file, self.schema, self.dtype = file, schema, dtype
        self.imputed: dict[str, int] = {}  # by column, values filled in in the last pass

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, from the first row.

        Raises:
            TableError: as `encode`; rows are counted from the start of the file.
        """
        imputed, n_rows = Counter[str](), 0
        for table in self.file:
            name_row = rows_of_file(range(n_rows, n_rows + table.num_rows))
            encoded = encode(self.schema, table, self.dtype, name_row)
            imputed.update(encoded.imputed)
            yield Batch(encoded.X, encode_target(self.schema, table, name_row))
            n_rows += table.num_rows
        self.imputed = dict(imputed)


def table_shards(
    paths: Iterable[str | os.PathLike[str]], schema: Schema, dtype: str = "float64"
) -> list[TableStream]:
    """Return the shards of a table in several files, for `Shards.of_process`.

    A Parquet file has a shard for each of its row groups; a CSV file is one shard. The function
    reads no rows.

    Args:
        paths: the files, in the same order in every process, such as `sorted(folder.glob("*"))`.
        schema: how the columns become numbers, see `stream_schema`.
        dtype: dtype of the inputs.

    Raises:
        TableError: if there is no such file, or the first bytes are not the start of a table.
    """
    shards = []
    for path in paths:
        file = TableFile(path, schema=schema)
        files = [file]
        if file.parquet:
            files = [TableFile(path, schema=schema, row_groups=[i]) for i in row_groups(path)]
        shards += [TableStream(file, schema, dtype) for file in files]
    return shards


def stream_schema(
    file: TableFile,
    target: str,
    *,
    task: str | None = None,
    impute: bool = False,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
) -> tuple[Schema, str, int]:
    """Fit a schema to a file in one pass; return schema, reason for the task and number of rows.

    See `fit_schema` for the arguments.

    The schema is fitted to the rows that hold a new category, a new class or the first missing
    value of a column. The medians that replace missing values come from a random sample of
    `SAMPLE_ROWS` rows.

    Raises:
        TableError: see `fit_schema`.
        ValueError: for one text in place of `categorical` names, or an `impute` that is no bool.
    """
    categorical, impute = column_names("categorical", categorical), boolean("impute", impute)
    rng = np.random.default_rng(0)
    seen_values: dict[str, set] = {}  # by column
    new_parts: list[tuple[pa.Table, np.ndarray]] = []  # rows with a new value, and their numbers
    # Rows of the random sample, their numbers, and the random keys by which they were drawn.
    sample: list[tuple[pa.Table, np.ndarray, np.ndarray]] = []
    n_rows = 0
    for table in file:
        if not new_parts:
            check_names(table.column_names, [target], "the target column")
            check_names(table.column_names, categorical, "the categorical columns")
        if table[target].null_count:
            row = file_row(n_rows + pc.index(table[target].is_null(), True).as_py())
            raise TableError(
                f"target column {target!r}: missing in {row}; leave out rows without a target"
            )
        new = {0} if not new_parts else set()  # the first row shows all columns
        for name in table.column_names:
            values = plain_column(table, name)
            numeric = is_number(values.type) or pa.types.is_temporal(values.type)
            discrete = name in (target, *categorical) or not numeric
            seen = seen_values.setdefault(name, set())
            new |= _new_rows(values, seen, max_categories + 1 if discrete else 0)
        numbers = np.arange(n_rows, n_rows + table.num_rows)
        if new:
            new_parts.append((table.take(sorted(new)), numbers[sorted(new)]))
        if impute:
            sample.append((table, numbers, rng.random(table.num_rows)))
            if sum(part.num_rows for part, *_ in sample) > 2 * SAMPLE_ROWS:
                sample = [_smallest_keys(sample)]
        n_rows += table.num_rows
    parts = [*new_parts, *([_smallest_keys(sample)[:2]] if sample else [])]
    rows, first = np.unique(np.concatenate([numbers for _, numbers in parts]), return_index=True)
    table = pa.concat_tables([part for part, _ in parts], promote_options="default").take(first)
    name_row = rows_of_file(rows.tolist())
    inferred, reason = infer_task(table, target, name_row)
    schema = fit_schema(
        table,
        target,
        task=task or inferred,
        impute=impute,
        categorical=categorical,
        max_categories=max_categories,
        csv=file.csv,
        name_row=name_row,
    )
    if task is not None:
        reason = "as asked"
    elif inferred == REGRESSION:  # the count of distinct numbers is of a part of the rows only
        reason = f"{target!r} holds numbers"
    return schema, reason, n_rows


def _new_rows(values: pa.ChunkedArray, seen: set, limit: int) -> set[int]:
    """Return the indices of rows with values that are not in `seen`, and add the values to it.

    Values are added until `seen` has more than `limit`. If `limit` is 0, only the first value and
    the first missing value of the column count as new.
    """
    rows = set()
    if values.null_count and None not in seen:
        seen.add(None)
        rows.add(pc.index(values.is_null(), True).as_py())
    if limit and len(seen) <= limit:
        for value in values.unique().drop_null().to_pylist():
            if value not in seen and len(seen) <= limit:
                seen.add(value)
                rows.add(pc.index(values, value).as_py())
    elif not limit and values.null_count < len(values) and not seen - {None}:
        row = pc.index(values.is_valid(), True).as_py()
        seen.add(values[row].as_py())
        rows.add(row)
    return rows


def _smallest_keys(
    sample: list[tuple[pa.Table, np.ndarray, np.ndarray]],
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return the sampled rows with the `SAMPLE_ROWS` smallest keys, their numbers and keys."""
    tables, rows, keys = zip(*sample, strict=True)
    keys = np.concatenate(keys)
    drawn = np.argsort(keys)[:SAMPLE_ROWS]
    table = pa.concat_tables(tables, promote_options="default").take(drawn)
    return table, np.concatenate(rows)[drawn], keys[drawn]
