"""The rows of a stream as the sums want them: numbers, weights and parts."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from .._repr import short_repr
from ..data.streams import Checked, StreamError, counting
from ..multiclass import Code
from ..scaling import Standardization
from .target_units import TargetUnits


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
        """The part of each row."""
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
    """A stream as the sums want it: numbers, weights and groups, in batches of one size."""

    stream: Checked
    n_rows: int  # with a weight above 0
    scaling: Standardization
    classes: Shaped[np.ndarray, " k"] | None
    factors: Float[np.ndarray, " k"] | None  # weight of the rows of each class
    code: Code | None
    split: Split
    batch_rows: int
    units: TargetUnits  # of real targets, from the sample

    __repr__ = short_repr

    @property
    def groups(self) -> int:
        """Groups of rows that are summed apart."""
        classes = 1 if self.code is None or not self.by_class else len(self.code.matrix)
        return self.split.parts * classes

    @property
    def targets(self) -> tuple[int, ...]:
        """Shape of a row's targets in the sums."""
        if self.code is None:
            return ()
        return (0,) if self.by_class else (self.code.matrix.shape[1],)

    @property
    def by_class(self) -> bool:
        """Whether the classes are summed apart, as the problems see different rows."""
        return self.code is not None and not self.code.shares_all_rows

    def encode(
        self, y: np.ndarray, weights: np.ndarray | None, where: str
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Targets of a machine (class numbers if there is a code), and class numbers.

        Raises:
            StreamError: for a label that the first pass has not seen.
        """
        dtype = np.dtype(self.scaling.shift.dtype)
        if self.classes is None:
            return _cast(self.units.apply(y, weights), dtype, where, "y"), None
        number = np.searchsorted(self.classes, y)
        number = np.minimum(number, len(self.classes) - 1).astype(np.int32)
        if not np.all(self.classes[number] == y):
            label = y[np.argmax(self.classes[number] != y)]
            raise StreamError(f"{where}: expected the labels of the first pass, got {label!r}")
        if self.code is None:
            return (2 * number - 1).astype(dtype), number
        return number, number

    def weigh(self, w: np.ndarray | None, number: np.ndarray | None, n: int) -> np.ndarray:
        """Row weights times those of the classes."""
        w = np.ones(n) if w is None else np.asarray(w, float)
        return w if self.factors is None or number is None else w * self.factors[number]

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Batches `(X, targets, weights, groups)`, filled up with the last row, without weight.

        Raises:
            StreamError: for rows that cannot be what the first pass has seen.
        """
        dtype, start = np.dtype(self.scaling.shift.dtype), 0
        for (X, y, weights), rows in counting(self.stream):
            n = len(X)
            where = f"rows {rows[0]} to {rows[-1]}"
            target, number = self.encode(y, weights, where)
            w = _cast(self.weigh(weights, number, n), dtype, where, "weights")
            group = self.split(start + np.arange(n))
            if self.code is not None:
                assert number is not None
                if self.by_class:
                    group = group * len(self.code.matrix) + number
                    target = np.zeros((n, 0), dtype)
                else:
                    target = np.asarray(self.code.matrix, dtype)[number]
            X = _cast(X, dtype, where, "X")
            for first in range(0, n, self.batch_rows):
                place = first + np.arange(self.batch_rows)
                there = np.minimum(place, n - 1)
                weight = np.where(place < n, w[there], 0).astype(dtype)
                yield X[there], target[there], weight, group[there]
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
