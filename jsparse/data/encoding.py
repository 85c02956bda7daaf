"""Tables to arrays: fix the encoding on the training table, apply it to any other.

- Integers, floats and decimals are numbers; so is a column of texts all of which are numbers
  (those that mean missing left aside), as it would be in a CSV file. Other texts, booleans and
  dictionary types are categories and become one indicator column per category; one not seen in
  training becomes zeros in all of them. For a kernel that compares categories they are numbered in
  one column instead, -1 for one not seen, which agrees with none. Texts that only look like
  numbers or dates are refused.
- Whole numbers and decimals that float64 does not hold, such as times in nanoseconds, are counted
  from the column's first value. Two that even so become the same are refused. In CSV files these
  are the numbers of 2^53 or more that are written out; smaller ones, and those with an exponent,
  are the nearest float64, in which some of more than 15 digits are alike.
- Dates and times are numbers, microseconds counted from the column's first value; so are texts all
  of which are dates of ISO 8601 (2024-01-31, 2024-01-31 12:00). Times with a zone are those of UTC.
- Binary and nested types are refused by name, and so is a target of dates.
- A missing value (null, or NaN) is refused with its column and row; or, on request, a number is
  replaced by its column's median in the training table and a missing category becomes a category
  of its own. An infinite value is refused always, and so is a missing target.
- Constant columns stay; standardisation gives them scale 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from .._repr import short_repr
from .arrow import pa, pc
from .columns import (
    check_labels,
    check_told_apart,
    comparable_column,
    exact_column,
    float_column,
    holds_times,
    is_number,
    is_text,
    origin_of,
    plain_column,
    stored_type,
    type_words,
    without,
)
from .numerals import are_numbers, look_like_numbers
from .schema import CLASSIFICATION, REGRESSION
from .schema import Column as Column
from .schema import Schema as Schema
from .tables import (
    NULL_VALUES,
    TableError,
    check_names,
    is_csv,
    listing,
    locate,
    point_of,
    source_of,
)

_IMPUTE = (
    "fill them in, leave those rows out, or train with imputation (impute=True, jsparse fit "
    "--impute, jsparse compare --impute)"
)


class Encoded(NamedTuple):
    """Inputs as numbers, and what was done to get there.

    Attributes:
        X: shape `n d`, in the order of `Schema.features`.
        unseen: column to number of rows whose category was not seen in training.
        imputed: column to number of rows whose missing value was filled in.
        parsed: column to number of rows whose text was read as a number, in files but CSV.
    """

    X: Float[np.ndarray, "n d"]
    unseen: dict[str, int]
    imputed: dict[str, int]
    parsed: dict[str, int]

    __repr__ = short_repr


def infer_task(table: pa.Table, target: str) -> tuple[str, str]:
    """Return the task that a target column calls for, and the reason in words.

    Texts and booleans are classes; so are numbers of exactly two values, both whole (0/1, 1/2,
    -1/+1). All other numbers are a regression target. Texts all of which are numbers count as
    numbers.

    Raises:
        TableError: if there is no such column or it can be neither.
    """
    check_names(table, [target], "the target column")
    _refuse_times(table, target)
    values, how = plain_column(table, target), ""
    null_values = _null_values(table)
    if is_text(values.type):
        advice = "should the values be classes, ask for the task classification"
        if not _is_numbers_as_text(table, target, values, null_values, advice):
            return CLASSIFICATION, f"{target!r} holds texts"
        values, how = exact_column(table, target, null_values), ", kept as text"
    elif not is_number(values.type):
        return CLASSIFICATION, f"{target!r} holds {type_words(values.type)}"
    distinct = values.unique().drop_null().to_pylist()
    if len(distinct) == 2 and all(float(value).is_integer() for value in distinct):
        return CLASSIFICATION, f"{target!r} holds two whole numbers{how}"
    return REGRESSION, f"{target!r} holds {len(distinct)} distinct numbers{how}"


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
) -> Schema:
    """Encode a training table.

    Args:
        table: from `read_table`, or any pyarrow table.
        target: name of the column to predict; every other column is an input.
        task: "classification" or "regression"; by default see `infer_task`.
        impute: fill missing inputs in rather than refuse them.
        categorical: columns of numbers that are codes, and columns of text of which most happen
            to be numbers.
        drop: columns to leave out.
        max_categories: most categories a column (or classes the target) may have.
        coded: number the categories of a column, for a kernel that compares them, instead of giving
            each an indicator column.

    Raises:
        TableError: for a column that is missing (the nearest names are given), of a type that
            cannot be used, without values, with too many categories, of texts most of which are
            numbers or look so, or of numbers that differ and do not as float64; a target that is
            missing somewhere, has one class only or does not suit the task. Missing and infinite
            inputs are found by `encode`.
    """
    if table.num_rows == 0:
        raise TableError("expected a table with at least one row; it has none")
    reason = ""
    if task is None:
        task, reason = infer_task(table, target)
    check_names(table, [target], "the target column")
    _refuse_times(table, target)
    check_names(table, drop, "the columns to drop")
    check_names(table, categorical, "the categorical columns")
    if task not in (CLASSIFICATION, REGRESSION):
        raise TableError(f"task: expected {CLASSIFICATION!r} or {REGRESSION!r}, got {task!r}")
    names = [name for name in table.column_names if name != target and name not in drop]
    if not names:
        raise TableError(f"expected at least one column beside the target {target!r}; none is left")
    schema = Schema(
        columns=tuple(
            _fit_column(table, name, impute, name in categorical, max_categories, coded)
            for name in names
        ),
        target=target,
        task=task,
        classes=None,
        impute=impute,
        null_values=_null_values(table),
    )
    y = encode_target(schema, table)
    if task == REGRESSION:
        check_told_apart(table, target, 0, schema.null_values)
    if task == CLASSIFICATION:
        check_labels(table, target)
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


def encode(schema: Schema, table: pa.Table, dtype: str = "float64") -> Encoded:
    """Return the inputs of a table, encoded by the schema.

    Columns may come in any order; columns the schema does not know are ignored, and the target
    need not be there.

    Raises:
        TableError: for missing columns, values of another kind than in training, values that are
            infinite (or too large for `dtype`), and missing values unless the schema imputes. All
            columns are looked at before missing values are reported.
    """
    check_names(table, [column.name for column in schema.columns], "the columns")
    X = np.zeros((table.num_rows, len(schema.features)), dtype)
    unseen, imputed, parsed, first = {}, {}, {}, {}
    at = 0
    for column in schema.columns:
        name, width = column.name, len(column.features)
        if column.categories is None:
            if column.time is not holds_times(table, name, schema.null_values):
                _check_times(table, name, column)
            time = column.time
            values = float_column(table, name, column.origin, schema.null_values, time=time)
            missing = np.isnan(values)
            if is_text(stored_type(table, name)) and not is_csv(table):
                parsed[name] = int(np.sum(~missing))
            if schema.impute and column.fill is not None:
                values = np.where(missing, column.fill, values)
            with np.errstate(over="ignore"):
                X[:, at] = values
            if np.any(np.isinf(X[:, at])):
                row = int(np.argmax(np.isinf(X[:, at])))
                raise TableError(
                    f"column {name!r}: expected numbers that fit {dtype}, got {values[row]} in "
                    f"{locate(table, row)}"
                )
        else:
            values, known = comparable_column(table, name, column.categories)
            missing = values.is_null().to_numpy()
            code = pc.index_in(values, value_set=known).fill_null(-1).to_numpy()
            rows = np.flatnonzero(code >= 0)
            if column.coded:
                X[:, at] = code
            else:
                X[rows, at + code[rows]] = 1
            new = int(np.sum((code < 0) & ~missing))
            if new:
                unseen[name] = new
        at += width
        if np.any(missing):
            imputed[name] = int(missing.sum())
            first[name] = int(np.argmax(missing))
    if imputed and not schema.impute:
        places = [
            f"column {name!r} has {imputed[name]} in {table.num_rows} rows, the first in "
            f"{locate(table, row)}"
            for name, row in list(first.items())[:5]
        ]
        more = f"; and {len(first) - 5} more columns" if len(first) > 5 else ""
        raise TableError(f"missing values: {'; '.join(places)}{more}: {_IMPUTE}")
    return Encoded(X, unseen, imputed, parsed)


def encode_target(schema: Schema, table: pa.Table) -> Shaped[np.ndarray, "n"]:
    """Return a table's targets: float64 for regression, labels in their own type for classes.

    A label not seen in training is returned as it is: no prediction will equal it.

    Raises:
        TableError: if the column is missing, has a missing or infinite value, or holds values of
            another kind than in training.
    """
    name = schema.target
    check_names(table, [name], "the target column")
    if schema.task == REGRESSION:
        y = float_column(table, name, 0, schema.null_values)
        _refuse_missing_target(table, name, np.isnan(y))
        return y
    values = plain_column(table, name)
    if schema.classes is not None:
        comparable, _ = comparable_column(table, name, schema.classes)
        # Decimals are for comparing only.
        values = values if pa.types.is_decimal(comparable.type) else comparable
    if is_text(values.type):
        present = without(values, schema.null_values)
        numbers = are_numbers(present.drop_null(), point_of(table))
        # A label may be "NA", but not one of numbers.
        values = present if pc.all(numbers).as_py() else values
    _refuse_missing_target(table, name, values.is_null().to_numpy())
    # Of a list of whole numbers NumPy may make floats.
    return values.to_numpy() if is_number(values.type) else np.asarray(values.to_pylist())


def _fit_column(
    table: pa.Table, name: str, impute: bool, is_code: bool, max_categories: int, coded: bool
) -> Column:
    values = plain_column(table, name)
    null_values = _null_values(table)
    if values.null_count == len(values):
        raise TableError(f"column {name!r}: expected values, but all are missing; drop the column")
    advice = "should the values be codes, name the column as categorical (--categorical)"
    if not is_code and holds_times(table, name, null_values):
        times = exact_column(table, name, null_values, time=True)
        origin = int(times.drop_null()[0].as_py())
        fill = None
        if impute:
            fill = _median(float_column(table, name, origin, null_values, time=True))
        return Column(name, None, fill, origin, time=True)
    numeric = is_number(values.type)
    if is_text(values.type) and not is_code:
        numeric = _is_numbers_as_text(table, name, values, null_values, advice)
    if numeric and not is_code:
        origin = origin_of(exact_column(table, name, null_values))
        check_told_apart(table, name, origin, null_values)
        fill = None
        if impute:
            fill = _median(float_column(table, name, origin, null_values))
        return Column(name, None, fill, origin)
    check_labels(table, name)
    distinct = values.unique().drop_null()
    if len(distinct) > max_categories:
        raise TableError(
            f"column {name!r}: expected at most {max_categories} categories, got {len(distinct)} "
            f"({listing(distinct.slice(0, 3).to_pylist())}, ...); each would become a column: "
            "drop it, turn it into numbers, or raise the limit (max_categories, --max-categories)"
        )
    missing = (None,) if impute and values.null_count else ()
    return Column(name, (*sorted(distinct.to_pylist()), *missing), None, coded=coded)


def _check_times(table: pa.Table, name: str, column: Column) -> None:
    """Raise unless a column holds times, or none, as in training; or nothing at all."""
    if is_text(stored_type(table, name)) or table[name].null_count == table.num_rows:
        return  # of texts, the first that does not fit is named
    words = ("dates or times", "numbers") if column.time else ("numbers", "dates or times")
    raise TableError(f"column {name!r}: expected {words[0]} as in training, got {words[1]}")


def _refuse_times(table: pa.Table, target: str) -> None:
    kind = stored_type(table, target)
    if pa.types.is_temporal(kind):
        raise TableError(
            f"target column {target!r}: expected numbers or classes, got type {kind}; turn it into "
            "numbers, such as days since a date"
        )


def _null_values(table: pa.Table) -> tuple[str, ...]:
    return tuple(source_of(table).get("null_values", NULL_VALUES))


def _median(values: Float[np.ndarray, "n"]) -> float:
    """Return the median of the values that are not NaN; the middle two cannot overflow."""
    half = 0.5 if np.nanmax(np.abs(values)) > 2.0**1000 else 1.0
    return float(np.nanmedian(half * values) / half)


def _is_numbers_as_text(
    table: pa.Table,
    name: str,
    values: pa.ChunkedArray,
    null_values: Sequence[str],
    advice: str,
) -> bool:
    """Whether all texts are numbers, but for those that mean missing.

    Neither a stray "?" nor decimal commas may turn numbers into categories in silence.
    """
    present = without(values, null_values)
    distinct = present.unique().drop_null()
    if not len(distinct):
        return False
    numbers = are_numbers(distinct, point_of(table)).to_numpy(zero_copy_only=False)
    if numbers.all():
        return True
    others = distinct.filter(pa.array(~numbers))
    alike = pc.sum(look_like_numbers(others)).as_py() + int(numbers.sum())
    if 2 * alike > len(distinct):
        row = min(values.index(value).as_py() for value in others[:10])
        raise TableError(
            f"column {name!r}: expected numbers (such as -12.5 or 1e3), as most of its values are "
            f"or look like, or texts; got {values[row].as_py()!r} in {locate(table, row)}; should "
            f"that mean a missing value, add it to null_values (--missing); {advice}"
        )
    return False


def _refuse_missing_target(table: pa.Table, name: str, missing: Bool[np.ndarray, "n"]) -> None:
    if np.any(missing):
        raise TableError(
            f"target column {name!r}: missing in {int(missing.sum())} of {table.num_rows} rows, "
            f"the first is {locate(table, int(np.argmax(missing)))}; leave out rows without a "
            "target"
        )
