"""Code for all readers of tables: the error, the check of names, and words for messages."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from .arrow import pa


class TableError(ValueError):
    """A table is not what was expected; the message names the file, column or row."""


def row_number(rows: Sequence[int] | None, index: int) -> int:
    """Return the number of a row in its file, counted from 1, for a message.

    Args:
        rows: the numbers of the table's rows in their file, counted from 0; by default the table
            is the whole file.
        index: the row's index in the table.
    """
    return 1 + (index if rows is None else int(rows[index]))


def check_names(table: pa.Table, wanted: Iterable[str], what: str) -> None:
    """Check that a table has the columns `wanted`.

    Raises:
        TableError: if columns are missing. The message has their names, and the most similar names
            in the table.
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
    raise TableError(f"expected {what} {listing(missing)}, not found; {hint}")


def listing(values: Iterable[Any], most: int = 10) -> str:
    """Return the first few values, for a message."""
    values = list(values)
    words = ", ".join(repr(value) for value in values[:most])
    return words if len(values) <= most else f"{words} and {len(values) - most} more"
