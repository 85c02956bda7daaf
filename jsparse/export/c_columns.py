"""The encoding of a row of a table, as a function of C."""

from ..predictor.schema import Column, Schema
from .c_numbers import Numbers, c_function, int_literal


def columns_in_words(schema: Schema, prefix: str, real: str) -> list[str]:
    """Return lines of the first comment that say what the encoder takes for each column."""
    lines = [
        f"void {prefix}_encode(const double *columns, {real} *x)",
        "    The inputs x of a row of the table. A category is given by its number, an unseen one",
        "    by -1. A time is given in microseconds since 1970. A missing number is NAN.",
    ]
    for i, column in enumerate(schema.columns):
        what = "number" if column.origin is None else "time"
        if column.categories is not None:
            values = ("(missing)" if c is None else repr(c) for c in column.categories)
            what = ", ".join(f"{number} for {value}" for number, value in enumerate(values))
        lines.append(f"    columns[{i}] {column.name}: {what}")
    return lines


def encoder(schema: Schema, prefix: str, numbers: Numbers) -> str:
    """Return the C source of the function that encodes the columns of a table as inputs."""
    lines, offset = [], 0
    for i, column in enumerate(schema.columns):
        lines += _encoded(column, i, offset, numbers, impute=schema.impute)
        offset += len(column.features)
    head = f"void {prefix}_encode(const double *columns, {numbers.type} *x)"
    return c_function(head, lines, numbers)


def _encoded(column: Column, i: int, offset: int, numbers: Numbers, *, impute: bool) -> list[str]:
    """Return C statements that encode column `i` of a table as the inputs from `offset` on."""
    value, width = f"columns[{i}]", len(column.features)
    if column.categories is None:
        if column.origin is not None:
            value = f"({value} - ({int_literal(column.origin)}))"
        if impute and column.fill is not None:
            value = f"(isnan(columns[{i}]) ? {column.fill!r} : {value})"
        return [f"x[{offset}] = ({numbers.type}){value};"]
    if column.coded:
        return [f"x[{offset}] = ({numbers.type}){value};"]
    return [f"for (j = 0; j < {width}; j++) {{ x[{offset} + j] = {value} == j; }}"]
