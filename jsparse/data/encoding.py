"""Tables to arrays: fix the encoding on the training table, and apply it to other tables.

- Numbers stay numbers: integers, decimals and floating-point numbers become float64. A whole
  number beyond 2^53 that float64 does not represent exactly is refused.
- Texts, booleans and dictionary types are categories. Each category becomes one indicator column;
  a category that training did not see becomes zeros in all indicator columns. For a kernel that
  compares categories, the categories are numbered in one column instead. An unseen category then
  has the number -1, which equals no other number.
- A column of texts is refused if most of the texts look like numbers or dates, so that neither a
  stray "?" nor an unexpected decimal mark turns numbers into categories.
- Dates and times are numbers: microseconds since the column's first value in training. Times with
  a time zone are converted to UTC.
- Binary and nested types are refused with the name of the type, and so is a target of dates.
- A missing value (null, or NaN) is refused with its column and row. On request, a missing number is
  replaced by its column's median in the training table and a missing category becomes a category
  for missing values. An infinite value is always refused, and so is a missing target.
- Constant columns are kept; standardisation gives them scale 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..predictor.schema import CLASSIFICATION, REGRESSION, CsvFormat
from ..predictor.schema import Column as Column
from ..predictor.schema import Schema as Schema
from ..predictor.tables import Columns, encode_columns
from ..predictor.tables import Encoded as Encoded
from .arrow import pa, pc
from .columns import (
    comparable_column,
    float_column,
    is_number,
    microseconds,
    plain_column,
    type_words,
)
from .tables import NameRow, TableError, check_names, listing, row_index

# Digits with decimal and thousands marks; around them a sign, brackets, a currency or a percent.
_LIKE_NUMBER = r"^\s*[-+(]?[$€£]?\s?[0-9][0-9.,' _]*([eE][-+]?[0-9]+)?\s?[%$€£)]?\s*$"
_LIKE_DATE = r"^\s*\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{2}.*)?\s*$"


def infer_task(table: pa.Table, target: str, name_row: NameRow = row_index) -> tuple[str, str]:
    """Return the task that suits a target column, and the reason in words.

    Texts and booleans are classes. A column of numbers with exactly two distinct values, both whole
    (0/1, 1/2, -1/+1), holds classes too. Any other column of numbers is a regression target.

    Raises:
        TableError: if there is no such column, or if it suits neither task.
    """
    check_names(table.column_names, [target], "the target column")
    values = plain_column(table, target)
    _refuse_times(target, values.type)
    if not is_number(values.type):
        advice = "ask for the task classification"
        _refuse_texts_like_numbers(target, values, name_row, advice)
        return CLASSIFICATION, f"{target!r} holds {type_words(values.type)}"
    distinct = values.unique().drop_null().to_pylist()
    if len(distinct) == 2 and all(float(value).is_integer() for value in distinct):
        return CLASSIFICATION, f"{target!r} holds two whole numbers"
    return REGRESSION, f"{target!r} holds {len(distinct)} distinct numbers"


def fit_schema(
    table: pa.Table,
    target: str,
    *,
    task: str | None = None,
    impute: bool = False,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    max_categories: int = 100,
    coded: bool = False,
    csv: CsvFormat | None = None,
    name_row: NameRow = row_index,
) -> Schema:
    """Decide how the columns of a training table become arrays.

    Args:
        table: from `read_table`, or any pyarrow table.
        target: name of the column to predict; all other columns are inputs.
        task: "classification" or "regression"; by default see `infer_task`.
        impute: fill in missing inputs instead of refusing them.
        categorical: columns of numbers that are codes, and columns of categories whose texts look
            like numbers or dates.
        drop: columns to leave out.
        max_categories: upper limit of a column's categories, and of the target's classes.
        coded: number the categories of a column, for a kernel that compares categories, instead of
            giving each category an indicator column.
        csv: the format of the CSV file that was read, and of files read later.
        name_row: names a row in messages.

    Raises:
        TableError: for a missing column (the message has the nearest names), a column of a type
            that cannot be used, a column without values, a column with too many categories, or a
            column of texts most of which look like numbers or dates. Also for a target that lacks a
            value in some row, has only one class or does not suit the task. `encode` finds missing
            and infinite inputs.
    """
    if table.num_rows == 0:
        raise TableError("expected a table with at least one row; it has none")
    reason = ""
    if task is None:
        task, reason = infer_task(table, target, name_row)
    check_names(table.column_names, [target], "the target column")
    check_names(table.column_names, drop, "the columns to drop")
    check_names(table.column_names, categorical, "the categorical columns")
    if task not in (CLASSIFICATION, REGRESSION):
        raise TableError(f"task: expected {CLASSIFICATION!r} or {REGRESSION!r}, got {task!r}")
    names = [name for name in table.column_names if name != target and name not in drop]
    if not names:
        raise TableError(f"expected at least one column beside the target {target!r}; none is left")
    schema = Schema(
        columns=tuple(
            _fit_column(table, name, impute, name in categorical, max_categories, coded, name_row)
            for name in names
        ),
        target=target,
        task=task,
        classes=None,
        impute=impute,
        csv=csv or CsvFormat(),
    )
    y = encode_target(schema, table, name_row)
    if task == CLASSIFICATION:
        classes = np.unique(y).tolist()
        if len(classes) < 2:
            raise TableError(
                f"target column {target!r}: expected at least two classes; all {len(y)} rows are "
                f"{classes[0]!r}"
            )
        if len(classes) > max_categories:
            raise TableError(
                f"target column {target!r}: expected at most {max_categories} classes, got "
                f"{len(classes)} ({listing(classes, 3)})"
                + (f"; the task was inferred because {reason}" if reason else "")
            )
        schema = schema._replace(classes=tuple(classes))
    return schema


def encode(
    schema: Schema, table: pa.Table, dtype: str = "float64", name_row: NameRow = row_index
) -> Encoded:
    """Return the inputs of an Arrow table, encoded by the schema.

    Args:
        schema: the encoding.
        table: the table.
        dtype: dtype of the result.
        name_row: names a row in messages.

    Raises:
        TableError: see `encode_columns`, which also states which columns a table needs.
    """
    return encode_columns(schema, ArrowTable(table, name_row), dtype)


class ArrowTable(Columns):
    """The columns of an Arrow table, as `encode_columns` reads them."""

    def __init__(self, table: pa.Table, name_row: NameRow = row_index) -> None:
        self.table, self.name_row = table, name_row
        self.names, self.n_rows = table.column_names, table.num_rows

    def numbers(self, column: Column) -> Float[np.ndarray, " n"]:
        """Return a column of numbers or times as float64, with NaN for missing values."""
        return float_column(self.table, column.name, self.name_row, column.origin)

    def codes(self, column: Column) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Return the number of each row's category, -1 if unseen, and where values are missing."""
        values, categories = comparable_column(self.table, column.name, column.categories or ())
        code = pc.index_in(values, value_set=categories).fill_null(-1).to_numpy()
        return code, values.is_null().to_numpy()

    def values(self, column: Column, rows: Int[np.ndarray, " k"]) -> list[Any]:
        """Return a column's values in some rows, given by their indices, for messages."""
        return plain_column(self.table, column.name).take(rows).to_pylist()


def encode_target(
    schema: Schema, table: pa.Table, name_row: NameRow = row_index
) -> Shaped[np.ndarray, " n"]:
    """Return a table's targets: float64 for regression, labels as they were read for classes.

    A label that training did not see is returned unchanged; no prediction equals it.

    Raises:
        TableError: if the column is missing, has a missing or infinite value, or holds values of
            another kind than in training.
    """
    name = schema.target
    check_names(table.column_names, [name], "the target column")
    values = plain_column(table, name)
    _refuse_times(name, values.type)
    if schema.task == REGRESSION:
        y = float_column(table, name, name_row)
        _refuse_missing_target(name, np.isnan(y), name_row)
        return y
    if schema.classes is not None:
        values, _ = comparable_column(table, name, schema.classes)
    _refuse_missing_target(name, values.is_null().to_numpy(), name_row)
    # NumPy may make floats of a list of whole numbers, so convert whole numbers without a list.
    return values.to_numpy() if is_number(values.type) else np.asarray(values.to_pylist())


def _fit_column(
    table: pa.Table,
    name: str,
    impute: bool,
    is_code: bool,
    max_categories: int,
    coded: bool,
    name_row: NameRow,
) -> Column:
    """Decide how one column becomes inputs; `is_code` makes categories of any values."""
    values = plain_column(table, name)
    if values.null_count == len(values):
        raise TableError(f"column {name!r}: expected values, but all are missing; drop the column")
    time = pa.types.is_temporal(values.type)
    if time or (is_number(values.type) and not is_code):
        origin = microseconds(values).drop_null()[0].as_py() if time else None
        fill = _median(float_column(table, name, name_row, origin)) if impute else None
        return Column(name, None, fill, origin)
    if not is_code:
        _refuse_texts_like_numbers(name, values, name_row, "name the column as one of codes")
        _refuse_texts_like_dates(name, values)
    distinct = values.unique().drop_null()
    if len(distinct) > max_categories:
        raise TableError(
            f"column {name!r}: expected at most {max_categories} categories, got {len(distinct)} "
            f"({listing(distinct.slice(0, 3).to_pylist())}, ...); each would become a column: "
            "drop it, turn it into numbers, or raise the limit (max_categories, --max-categories)"
        )
    missing = (None,) if impute and values.null_count else ()
    return Column(name, (*sorted(distinct.to_pylist()), *missing), coded=coded)


def _refuse_times(target: str, kind: pa.DataType) -> None:
    if pa.types.is_temporal(kind):
        raise TableError(
            f"target column {target!r}: expected numbers or classes, got type {kind}; turn it into "
            "numbers, such as days since a date"
        )


def _refuse_texts_like_dates(name: str, values: pa.ChunkedArray) -> None:
    """Raise a `TableError` if most of the distinct texts of a column look like dates."""
    texts, matches = _match_texts(values, _LIKE_DATE)
    if 2 * np.sum(matches) > len(texts):
        raise TableError(
            f"column {name!r}: expected dates, as most of its texts look like dates, got texts "
            f"such as {texts[int(np.argmax(matches))].as_py()!r:.80}; turn them into dates with "
            f"pandas.to_datetime or read_csv(..., parse_dates=[{name!r}]). If the texts are "
            "categories, name the column as one of codes (categorical, --categorical)"
        )


def _refuse_texts_like_numbers(
    name: str, values: pa.ChunkedArray, name_row: NameRow, advice: str
) -> None:
    """Raise a `TableError` if most of the distinct texts of a column look like numbers."""
    texts, matches = _match_texts(values, _LIKE_NUMBER)
    if 2 * np.sum(matches) > len(texts):
        text = texts[int(np.argmin(matches))]  # if any, a text that does not look like a number
        raise TableError(
            f"column {name!r}: expected numbers, as most of its texts look like numbers, got "
            f"{text.as_py()!r:.80} in {name_row(pc.index(values, text).as_py())}; turn "
            "the column into numbers. In a CSV file, name the texts that mean a missing value "
            "(null_values, --missing) and the decimal mark (decimal, --decimal). If the texts are "
            f"categories, {advice} (categorical, --categorical; task, --task)"
        )


def _match_texts(values: pa.ChunkedArray, pattern: str) -> tuple[pa.Array, np.ndarray]:
    """Return a column's distinct texts, none if it holds no texts, and which match a pattern."""
    is_text = pa.types.is_string(values.type)
    texts = values.unique().drop_null() if is_text else pa.array([], pa.string())
    return texts, pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)


def _median(values: Float[np.ndarray, " n"]) -> float:
    """Return the median of the values that are not NaN; large values do not overflow."""
    half = 0.5 if np.nanmax(np.abs(values)) > 2.0**1000 else 1.0
    return float(np.nanmedian(half * values) / half)


def _refuse_missing_target(name: str, missing: Bool[np.ndarray, " n"], name_row: NameRow) -> None:
    if np.any(missing):
        raise TableError(
            f"target column {name!r}: missing in {int(missing.sum())} of {len(missing)} rows, the "
            f"first is {name_row(int(np.argmax(missing)))}; leave out rows without a target"
        )
