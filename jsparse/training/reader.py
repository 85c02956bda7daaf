"""The rows of a stream as sums take them: encoded, weighted and divided into parts."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._repr import short_repr
from ..data.streams import Checked, StreamError, counting
from .encoding import Encoding


class Split(NamedTuple):
    """Which part of the rows each row belongs to, by a hash of its place.

    So the parts are random whatever the order of the rows, and the same in every pass. The place of
    a row is its number among the rows that count: rows of weight 0 change no part.
    """

    seed: int
    parts: int  # folds; or 2, of which the first is held out
    validated: int  # parts that are predicted without themselves: all folds, or 1
    share: float  # of the first part if it is held out, else 0

    __repr__ = short_repr

    def __call__(self, places: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the part of each row."""
        # The finaliser of splitmix64 (Steele, Lea and Flood 2014).
        x = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = x + np.uint64(self.seed)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        if self.share:
            return (x / 2.0**64 >= self.share).astype(np.int32)
        return (x % np.uint64(self.parts)).astype(np.int32)


class Reader(NamedTuple):
    """A stream in batches of one size, as sums take them."""

    stream: Checked
    n_rows: int  # with a weight above 0
    encoding: Encoding
    factors: Float[np.ndarray, " k"] | None  # of the weights of the rows of each class
    split: Split
    batch_rows: int

    __repr__ = short_repr

    @property
    def classes_apart(self) -> int:
        """The number of classes that are summed apart; 1 if all problems see the same rows."""
        code = self.encoding.code
        return 1 if code is None or code.shares_all_rows else len(code.matrix)

    @property
    def groups(self) -> int:
        """The number of groups of rows that are summed apart: each class of each part."""
        return self.split.parts * self.classes_apart

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a row's targets in the sums; classes that are summed apart need none."""
        code = self.encoding.code
        if code is None:
            return ()
        return (code.matrix.shape[1],) if self.classes_apart == 1 else (0,)

    def encode(
        self, y: np.ndarray, weights: np.ndarray | None, where: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return targets (see `Encoding.targets`), weights times those of classes, class numbers.

        Raises:
            StreamError: for a label that the first pass has not seen, or numbers that the dtype of
                the machine does not hold.
        """
        encoding, w = self.encoding, np.ones(len(y)) if weights is None else weights.astype(float)
        if encoding.classes is None:
            targets = _cast(encoding.targets(y, weights), encoding.dtype, where, "y")
            return targets, _cast(w, encoding.dtype, where, "weights"), None
        last = len(encoding.classes) - 1
        numbers = np.minimum(np.searchsorted(encoding.classes, y), last).astype(np.int32)
        unknown = encoding.classes[numbers] != y
        if np.any(unknown):
            label = y[np.argmax(unknown)]
            raise StreamError(f"{where}: expected the labels of the first pass, got {label!r}")
        w = w if self.factors is None else w * self.factors[numbers]
        w = _cast(w, encoding.dtype, where, "weights")
        return encoding.targets(numbers, None), w, numbers

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield batches `(X, targets, weights, groups)`, filled up with copies of weight 0.

        Raises:
            StreamError: for rows that cannot be what the first pass has seen.
        """
        (_, _, code, *_), dtype, start = self.encoding, self.encoding.dtype, 0
        for (X, y, weights), rows in counting(self.stream):
            n, where = len(X), f"rows {rows[0]} to {rows[-1]}"
            targets, w, numbers = self.encode(y, weights, where)
            group = self.split(start + np.arange(n))
            if self.classes_apart > 1:
                group, targets = group * self.classes_apart + numbers, np.zeros((n, 0), dtype)
            elif code is not None:
                targets = np.asarray(code.matrix, dtype)[numbers]
            X = _cast(X, dtype, where, "X")
            for first in range(0, n, self.batch_rows):
                place = first + np.arange(self.batch_rows)
                row = np.minimum(place, n - 1)
                yield X[row], targets[row], np.where(place < n, w[row], 0).astype(dtype), group[row]
            start += n
        if start != self.n_rows:
            raise StreamError(
                f"weights: expected {self.n_rows} rows with a weight above 0 as in the first pass, "
                f"got {start}"
            )


def _cast(a: np.ndarray, dtype: np.dtype, where: str, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = a.astype(dtype)
    if not np.isfinite(cast).all():
        value = a[~np.isfinite(cast)][0]
        raise StreamError(f"{where}: {name}: expected values that fit {dtype}, got {value}")
    return cast
