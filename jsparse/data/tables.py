"""Code for all readers of tables: the error, the check of names, and words for messages."""

from collections.abc import Iterable, Sequence

from ..predictor import tables
from ..predictor.checks import NameRow as NameRow
from ..predictor.checks import TableError as TableError
from ..predictor.checks import row_index as row_index
from ..predictor.tables import listing as listing
from .arrow import pa


def rows_of_file(numbers: Sequence[int]) -> NameRow:
    """Return the function that names rows of a file, given their numbers counted from 0."""
    return lambda index: file_row(int(numbers[index]))


def file_row(number: int) -> str:
    """Return the name of a row of a file in a message; `number` is counted from 0."""
    return f"data row {number + 1} (the first is 1)"


def check_names(table: pa.Table, wanted: Iterable[str], what: str) -> None:
    """Check that a table has the columns `wanted`; raise `TableError` otherwise."""
    tables.check_names(table.column_names, wanted, what)
