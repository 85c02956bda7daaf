"""Code for all readers of tables: the error, the check of names, and words for messages."""

from collections.abc import Sequence

from ..predictor.checks import NameRow as NameRow
from ..predictor.checks import TableError as TableError
from ..predictor.checks import row_index as row_index
from ..predictor.tables import check_names as check_names
from ..predictor.tables import listing as listing


def rows_of_file(numbers: Sequence[int]) -> NameRow:
    """Return the function that names rows of a file, given their numbers counted from 0."""
    return lambda index: file_row(int(numbers[index]))


def file_row(number: int) -> str:
    """Return the name of a row of a file in a message; `number` is counted from 0."""
    return f"data row {number + 1} (the first is 1)"
