"""Checks of files before commands read or write them, and counts by column."""

import os
from collections.abc import Mapping

from ..serialization import check_writable
from ..training.plan import free_bytes
from . import report


def check_output(path: str, *inputs: str) -> None:
    """Check that a file can be written, and is neither an input file nor in an input folder."""
    check_writable(path)
    for name in inputs:
        within = os.path.realpath(path).startswith(os.path.join(os.path.realpath(name), ""))
        same = os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name)
        if same or within:
            raise ValueError(f"--out: expected another file than one that is read, got {path!r}")


def check_fits_memory(path: str, advice: str = "give --stream to read it in batches") -> None:
    """Refuse a file that is too large for memory.

    Raises:
        ValueError: if the table and its encoding need more memory than is free. The message ends
            with `advice`.
    """
    from ..data.table_files import table_bytes

    free, needed = free_bytes(), 2 * table_bytes(path)
    if free is not None and needed > free:
        raise ValueError(
            f"{path!r}: reading the file needs about {needed / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free; {advice}"
        )


def print_counts(counts: Mapping[str, int], what: str) -> None:
    """Print the number of affected rows of each column; `what` says what happened in these rows."""
    for column, count in counts.items():
        report.note(f"column {column!r}: {count} {what}")
