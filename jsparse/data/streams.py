"""Streams of rows in batches that can be reread: arrays on disk, and files larger than memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from .._arguments import check_held, on_host, whole_number
from .._repr import short_repr
from ..predictor.checks import row_index

BATCH_ROWS = 65536
SHARD_ROWS = 2**40  # upper limit of the rows of a shard, so that numbers of rows are unique
MOST_SHARDS = 2**23  # so that the numbers of rows fit 64 bits


class Batch(NamedTuple):
    """Consecutive rows of a stream."""

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


class Located(NamedTuple):
    """Rows of positive weight of a batch, with their numbers.

    Both kinds of numbers begin, in each shard, at the shard's number times `SHARD_ROWS`.
    """

    batch: Batch
    rows: Int[np.ndarray, " n"]  # numbers among the rows of the shard
    places: Int[np.ndarray, " n"]  # numbers among the rows of positive weight of the shard

    __repr__ = short_repr


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


class Shards:
    """The shards of a stream that one process reads, for rows that no process holds whole.

    Every process of a mesh passes its own shards to `train`. The numbers of the shards decide the
    order of the rows, the random sample and the folds. So the result is the same to rounding,
    whichever process reads a shard. Several shards, such as one for each file, need no more passes
    than one shard. A shard, and a process, may have no rows.

    Args:
        shards: streams by the number of the shard; no two processes have the same number.
        schema: the columns of the table that the shards are from, equal in every process; by
            default the attribute `schema` of the first shard, if it has one.

    Example:
        >>> files = [ArrayStream(np.full((2, 1), float(i)), np.arange(2.0)) for i in range(5)]
        >>> mine = Shards.of_process(files, process=1, processes=2)
        >>> sorted(mine.shards)
        [1, 3]
    """

    def __init__(self, shards: Mapping[int, RowStream], *, schema: Any = None) -> None:
        if not isinstance(shards, Mapping):
            raise ValueError(
                "shards: expected streams by the number of the shard, such as {0: stream}, got a "
                f"{type(shards).__name__}"
            )
        for number, stream in shards.items():
            whole_number("shards", number, 0, MOST_SHARDS - 1)
            ReplayableStream(stream)  # refuse what can be read only once
        self.shards = {number: shards[number] for number in sorted(shards)}
        first = next(iter(self.shards.values()), None)
        self.schema = getattr(first, "schema", None) if schema is None else schema

    @classmethod
    def of_process(
        cls,
        streams: Sequence[RowStream],
        *,
        process: int | None = None,
        processes: int | None = None,
        schema: Any = None,
    ) -> "Shards":
        """Return each `processes`-th shard, beginning with the shard `process`.

        Args:
            streams: all shards, in the same order in every process. Only the shards of this process
                are read.
            process: index of this process; by default `jax.process_index()`.
            processes: number of processes; by default `jax.process_count()`.
            schema: by default the schema of the first of all shards.
        """
        processes = jax.process_count() if processes is None else processes
        count = whole_number("processes", processes, 1)
        process = jax.process_index() if process is None else process
        first = whole_number("process", process, 0, count - 1, "the last process")
        if schema is None and len(streams) > 0:
            schema = getattr(streams[0], "schema", None)
        numbers = range(first, len(streams), count)
        return cls({number: streams[number] for number in numbers}, schema=schema)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, shard after shard."""
        for stream in self.shards.values():
            yield from stream


class ReplayableStream:
    """A stream whose columns, number of rows and finite values are checked in every pass.

    Args:
        stream: any stream. A stream that is no `Shards` is one shard, which every process reads.

    Attributes:
        shards: the shards that this process reads, by number.
        replicated: whether every process of a mesh reads all rows, not only some shards.
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
        self.shards, self.replicated = {0: stream}, True
        if isinstance(stream, Shards):
            self.shards, self.replicated = stream.shards, False
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
        return (batch for _, batch in self._checked())

    def located(self) -> Iterator[Located]:
        """Yield the batches without rows of weight 0, and the numbers of the remaining rows."""
        shard, start, place = -1, 0, 0
        for number, (X, y, weights) in self._checked():
            if number != shard:
                shard, start, place = number, number * SHARD_ROWS, number * SHARD_ROWS
            rows = np.arange(start, start + len(X))
            start += len(X)
            if weights is not None and not (positive := weights > 0).all():
                X, y, weights, rows = X[positive], y[positive], weights[positive], rows[positive]
            if len(rows):
                yield Located(Batch(X, y, weights), rows, np.arange(place, place + len(rows)))
                place += len(rows)

    def _checked(self) -> Iterator[tuple[int, Batch]]:
        """Yield each batch with the number of its shard; see `__iter__`."""
        n_rows = 0
        for shard, stream in self.shards.items():
            start, name = 0, "" if self.replicated else f"shard {shard}: "
            for part in stream:
                batch = self._batch(part, start, name)
                start, n_rows = start + len(batch.X), n_rows + len(batch.X)
                if self.rows is not None and n_rows > self.rows:
                    raise StreamError(
                        f"{name}row indices {start - len(batch.X)} to {start - 1}: expected "
                        f"{self.rows} rows as in the first pass"
                    )
                if len(batch.X):
                    yield shard, batch
        if self.rows is not None and n_rows != self.rows:
            raise StreamError(
                f"the stream ended after {n_rows} rows; expected {self.rows} as in the first pass"
            )
        if n_rows == 0 and self.replicated:
            raise StreamError("expected a stream with at least one row; it has none")
        self.rows = n_rows
        self.passes += 1

    def _batch(self, part: Any, start: int, name: str) -> Batch:
        """Return a batch as arrays on the host, after the checks of `__iter__`.

        `start` is the index of its first row. `name` names the shard in messages.
        """
        try:
            batch = Batch(*part)
        except TypeError as error:
            raise StreamError(
                f"{name}row indices from {start}: expected batches (X, y) or (X, y, weights); "
                f"{error}"
            ) from error
        X, y = on_host("X", batch.X), on_host("y", batch.y)
        weights = None if batch.weights is None else on_host("weights", batch.weights)
        where = f"{name}row indices {start} to {start + len(X) - 1}"
        self._check_form(X, y, weights, where)
        self.columns = X.shape[1]
        for what, a in (("X", X), ("y", y), ("weights", weights)):
            missing = None if a is None else _missing(a)
            if missing is not None and missing.any():
                row = start + int(np.argwhere(missing)[0][0])
                raise StreamError(f"{where}: {what} is not finite at {row_index(row)}")
        if weights is not None and (weights < 0).any():
            row = start + int(np.argmax(weights < 0))
            raise StreamError(
                f"{where}: expected weights of at least 0, not so at {row_index(row)}"
            )
        return Batch(X, y, weights)

    def _check_form(
        self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, where: str
    ) -> None:
        """Raise StreamError, beginning with `where`, for wrong shapes, dtypes or lengths."""
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


def indices_in_words(rows: np.ndarray) -> str:
    """Return the first and last row indices of a batch, and their shard, for a message.

    Args:
        rows: the numbers of the rows, see `Located`.
    """
    shard, first = divmod(int(rows[0]), SHARD_ROWS)
    words = f"row indices {first} to {int(rows[-1]) % SHARD_ROWS}"
    return f"shard {shard}: {words}" if shard else words


def _missing(a: np.ndarray) -> np.ndarray | None:
    """Return where values are missing or not finite; None for a dtype without such values."""
    if a.dtype.kind == "f":
        return ~np.isfinite(a)
    if a.dtype.kind == "O":  # None, or NaN, which differs from itself
        return np.array([value is None or value != value for value in a.tolist()], bool)
    return None
