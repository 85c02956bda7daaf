"""Streams of rows in batches that can be reread: arrays on disk, and files larger than memory."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Shaped

from .._arguments import check_held, on_host, whole_number
from .._repr import short_repr

BATCH_ROWS = 65536


class Batch(NamedTuple):
    """Consecutive rows."""

    X: Float[np.ndarray, "n d"]
    y: Shaped[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"] | None = None

    __repr__ = short_repr


@runtime_checkable
class RowStream(Protocol):
    """An iterable that yields the same batches of rows in every iteration."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, from the first row."""
        ...


class StreamError(ValueError):
    """A stream changed between passes, or holds invalid values; the message names the rows."""


class ArrayStream:
    """A stream of arrays that reads one batch at a time, so memory maps stay on disk.

    Args:
        X: inputs, shape `n d`.
        y: targets or labels, shape `n`.
        weights: row weights, shape `n`.
        batch_rows: number of rows in a batch.
    """

    def __init__(
        self,
        X: Shaped[np.ndarray, "n d"],
        y: Shaped[np.ndarray, " n"],
        weights: Shaped[np.ndarray, " n"] | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        arrays = {"X": X, "y": y} | ({} if weights is None else {"weights": weights})
        if len({len(array) for array in arrays.values()}) > 1:
            counts = ", ".join(f"{len(array)} rows of {name}" for name, array in arrays.items())
            raise ValueError(f"{', '.join(arrays)}: expected as many rows of each, got {counts}")
        for name, array in arrays.items():
            check_held(name, array)
        self.X, self.y, self.weights = X, y, weights
        self.batch_rows = whole_number("batch_rows", batch_rows, 1)

    def __iter__(self) -> Iterator[Batch]:
        """Yield slices of `batch_rows` rows."""
        for start in range(0, len(self.X), self.batch_rows):
            rows = slice(start, start + self.batch_rows)
            X, y = np.asarray(self.X[rows]), np.asarray(self.y[rows])
            if X.dtype.kind != "f":
                X = X.astype(np.float64)
            yield Batch(X, y, None if self.weights is None else np.asarray(self.weights[rows]))


class ReplayableStream:
    """A stream whose columns, number of rows and finite values are checked in every pass.

    Args:
        stream: any stream.
    """

    def __init__(self, stream: RowStream) -> None:
        if not isinstance(stream, Iterable) or isinstance(stream, str):
            raise ValueError(
                f"stream: expected batches of rows, such as a list, got {type(stream)}"
            )
        if isinstance(stream, Iterator):
            raise ValueError(
                "stream: expected something that can be read several times, such as a list or a "
                f"class with __iter__, got {type(stream).__name__}, which can be read once"
            )
        self.stream = stream
        self.rows: int | None = None  # known after the first pass
        self.columns: int | None = None
        self.passes = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the stream as arrays.

        Raises:
            StreamError: if the columns change, a value is missing or not finite, a weight is
                negative, lengths differ, or the number of rows differs from the first pass. The
                message names the rows.
        """
        start = 0
        for part in self.stream:
            try:
                batch = Batch(*part)
            except TypeError as error:
                raise StreamError(
                    f"rows from {start}: expected batches (X, y) or (X, y, weights); {error}"
                ) from error
            X, y = on_host("X", batch.X), on_host("y", batch.y)
            weights = None if batch.weights is None else on_host("weights", batch.weights)
            n = len(X)
            where = f"rows {start} to {start + n - 1}"
            self._check_form(X, y, weights, where)
            self.columns = X.shape[1]
            for name, a in (("X", X), ("y", y), ("weights", weights)):
                missing = None if a is None else _missing(a)
                if missing is not None and missing.any():
                    row = start + int(np.argwhere(missing)[0][0])
                    raise StreamError(f"{where}: {name} is not finite at row {row}")
            if weights is not None and (weights < 0).any():
                row = start + int(np.argmax(weights < 0))
                raise StreamError(f"{where}: expected weights of at least 0, not so at row {row}")
            start += n
            if self.rows is not None and start > self.rows:
                raise StreamError(f"{where}: expected {self.rows} rows as in the first pass")
            if n:
                yield Batch(X, y, weights)
        if self.rows is not None and start != self.rows:
            raise StreamError(
                f"the stream ended after {start} rows; expected {self.rows} as in the first pass"
            )
        if start == 0:
            raise StreamError("expected a stream with at least one row; it has none")
        self.rows = start
        self.passes += 1

    def _check_form(
        self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, where: str
    ) -> None:
        if X.ndim != 2 or X.shape[1] == 0 or X.dtype.kind not in "biuf":
            raise StreamError(
                f"{where}: X: expected numbers of shape (n, d), got {X.dtype} of shape {X.shape}"
            )
        if X.shape[1] != (self.columns or X.shape[1]):
            raise StreamError(f"{where}: expected {self.columns} columns as before, got {X.shape}")
        if y.ndim != 1 or y.dtype.kind in "mMcV":
            raise StreamError(
                f"{where}: y: expected numbers or labels of shape (n,), got {y.dtype} of shape "
                f"{y.shape}"
            )
        w = y if weights is None else weights
        if not len(X) == len(y) == len(w):
            raise StreamError(f"{where}: {len(X)} rows of X, {len(y)} of y, {len(w)} weights")
        if weights is not None and (weights.ndim != 1 or weights.dtype.kind not in "biuf"):
            raise StreamError(f"{where}: weights: expected numbers of shape (n,)")


def without_zero_weights(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Int[np.ndarray, " n"]]]:
    """Yield each batch without its rows of weight 0, with the numbers of its rows in the stream."""
    start = 0
    for X, y, weights in batches:
        rows = np.arange(start, start + len(X))
        start += len(X)
        if weights is not None and not (positive := weights > 0).all():
            X, y, weights, rows = X[positive], y[positive], weights[positive], rows[positive]
        if len(rows):
            yield Batch(X, y, weights), rows


def _missing(a: np.ndarray) -> np.ndarray | None:
    if a.dtype.kind == "f":
        return ~np.isfinite(a)
    if a.dtype.kind == "O":  # None, or NaN, which differs from itself
        return np.array([value is None or value != value for value in a.tolist()], bool)
    return None
