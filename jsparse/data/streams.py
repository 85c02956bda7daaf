"""Rows that come in batches, and can be read again: arrays on disk and files larger than memory."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Shaped

BATCH_ROWS = 65536


class Batch(NamedTuple):
    """Consecutive rows."""

    X: Float[np.ndarray, "n d"]
    y: Shaped[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"] | None = None


@runtime_checkable
class RowStream(Protocol):
    """Something that yields the same batches of rows every time it is iterated over."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches, from the first row."""
        ...


class StreamError(ValueError):
    """A stream is not what it was, or holds what it should not; the message names the rows."""


class ArrayStream:
    """Arrays, of which one batch at a time is read: memory maps stay on disk.

    Args:
        X: inputs, shape `n d`.
        y: targets or labels, shape `n`.
        weights: row weights, shape `n`.
        batch_rows: rows of a batch.
    """

    def __init__(
        self,
        X: Shaped[np.ndarray, "n d"],
        y: Shaped[np.ndarray, "n"],
        weights: Shaped[np.ndarray, "n"] | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        if not len(X) == len(y) == (len(y) if weights is None else len(weights)):
            raise ValueError(f"expected as many rows of X, y and weights; got {len(X)}, {len(y)}")
        if batch_rows < 1:
            raise ValueError(f"batch_rows: expected at least 1, got {batch_rows}")
        self.X, self.y, self.weights, self.batch_rows = X, y, weights, batch_rows

    def __iter__(self) -> Iterator[Batch]:
        """Slices of `batch_rows` rows."""
        for start in range(0, len(self.X), self.batch_rows):
            rows = slice(start, start + self.batch_rows)
            X, y = np.asarray(self.X[rows]), np.asarray(self.y[rows])
            if X.dtype.kind != "f":
                X = X.astype(np.float64)
            yield Batch(X, y, None if self.weights is None else np.asarray(self.weights[rows]))


class Checked:
    """A stream that is seen to be the same every time: columns, number of rows, finite values.

    Args:
        stream: any stream.
    """

    def __init__(self, stream: RowStream) -> None:
        self.stream = stream
        self.rows: int | None = None  # known after the first pass
        self.passes = 0

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the stream.

        Raises:
            StreamError: naming the rows, if the columns change, a value is not finite, lengths
                differ, or there are not as many rows as the first time.
        """
        start, columns = 0, None
        for part in self.stream:
            batch = Batch(*part)
            X, n = batch.X, len(batch.X)
            where = f"rows {start} to {start + n - 1}"
            if X.ndim != 2 or X.shape[1] != (columns or X.shape[1]):
                raise StreamError(
                    f"{where}: expected {columns} columns as before, got shape {X.shape}"
                )
            columns = X.shape[1]
            if len(batch.y) != n or (batch.weights is not None and len(batch.weights) != n):
                raise StreamError(f"{where}: {n} rows of X, {len(batch.y)} of y")
            for name, a in (("X", X), ("y", batch.y), ("weights", batch.weights)):
                if a is not None and a.dtype.kind == "f" and not np.isfinite(a).all():
                    row = start + int(np.argwhere(~np.isfinite(a))[0][0])
                    raise StreamError(f"{where}: {name} is not finite at row {row}")
            start += n
            if self.rows is not None and start > self.rows:
                raise StreamError(f"{where}: expected {self.rows} rows as in the first pass")
            yield batch
        if start == 0:
            raise StreamError("expected a stream with at least one row; it has none")
        if self.rows is not None and start != self.rows:
            raise StreamError(
                f"the stream ended after {start} rows; expected {self.rows} as in the first pass"
            )
        self.rows = start
        self.passes += 1
