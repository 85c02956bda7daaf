"""Code for all readers of tables: the error, the check of names, and words for messages."""

from collections.abc import Iterable

from ..predictor import tables
from ..predictor.checks import TableError as TableError
from ..predictor.tables import listing as listing
from ..predictor.tables import row_number as row_number
from .arrow import pa


def check_names(table: pa.Table, wanted: Iterable[str], what: str) -> None:
    """Check that a table has the columns `wanted`; raise `TableError` otherwise."""
    tables.check_names(table.column_names, wanted, what)
