"""The summary of one pass over a stream: moments, classes, and a sample of rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from .._arguments import labels_of
from .._repr import short_repr
from ..data.streams import Batch, StreamError, counting
from ..scaling import Standardization
from .inputs import check_label_count

# A tenth (1 / FLOOR) of the sample's size is divided equally among the classes. The sample has at
# least as many rows of each class.
FLOOR = 10


class Moments(NamedTuple):
    """Weighted moments of some rows."""

    rows: int  # number of rows
    weight: float  # sum of w
    mean: Float[np.ndarray, " d"]
    squares: Float[np.ndarray, " d"]  # sum of w (x - mean)^2

    __repr__ = short_repr

    def __add__(self, other: "Moments") -> "Moments":  # type: ignore[override]
        """Return the moments of both sets of rows together (Chan, Golub and LeVeque 1983)."""
        weight = self.weight + other.weight
        if weight == 0:
            return self
        gap, share = other.mean - self.mean, other.weight / weight
        squares = self.squares + other.squares + gap**2 * self.weight * share
        return Moments(self.rows + other.rows, weight, self.mean + gap * share, squares)

    def scaled(self, factor: float) -> "Moments":
        """Return the moments after all weights are multiplied by `factor`."""
        return self._replace(weight=factor * self.weight, squares=factor * self.squares)


class Sample(NamedTuple):
    """Rows drawn from a stream, in the order of the stream."""

    X: Float[np.ndarray, "r d"]
    y: Shaped[np.ndarray, " r"]
    # Row weights divided by the fraction of the rows of the row's class that are in the sample.
    weights: Float[np.ndarray, " r"]
    rows: Int[np.ndarray, " r"]  # row numbers in the stream
    places: Int[np.ndarray, " r"]  # row numbers among the rows of positive weight

    __repr__ = short_repr


class Summary(NamedTuple):
    """The summary of the first pass, over the rows of positive weight."""

    n: int  # number of rows
    most: int  # the most rows of a batch
    by_class: dict[Any, Moments]  # by label, in sorted order; for regression, one entry for None
    low: Float[np.ndarray, " d"]  # least value of each column
    high: Float[np.ndarray, " d"]  # largest value of each column
    sample: Sample

    __repr__ = short_repr

    def standardization(
        self, factors: Float[np.ndarray, " k"] | None, dtype: jnp.dtype
    ) -> Standardization:
        """Return the standardisation of the inputs to mean 0 and variance 1.

        Args:
            factors: factor of the row weights of each class; None for 1.
            dtype: of the standardisation.
        """
        total = _no_rows(len(self.low))
        for i, moments in enumerate(self.by_class.values()):
            total = total + (moments if factors is None else moments.scaled(factors[i]))
        deviation = np.sqrt(total.squares / total.weight)
        # As in `standardize`: a column is constant if its range is within two units of rounding.
        magnitude = np.maximum(np.abs(self.low), np.abs(self.high))
        constant = self.high - self.low <= 2 * float(jnp.finfo(dtype).eps) * magnitude
        scale = np.where(constant | (deviation == 0), 1.0, deviation)
        return Standardization(*jax.device_put((total.mean.astype(dtype), scale.astype(dtype))))


def summarize(
    stream: Iterable[Batch], rng: np.random.Generator, sample_rows: int, *, classification: bool
) -> Summary:
    """Return the moments of each class, and a sample, of the rows of positive weight.

    Every row draws a random number. The sample has the `sample_rows` rows with the lowest numbers,
    and of each of the `k` classes the `sample_rows / (10 k)` rows with the lowest numbers.

    Args:
        stream: batches of rows.
        rng: generator of the numbers.
        sample_rows: size of the sample, without the additional rows of rare classes.
        classification: whether targets are labels.

    Raises:
        StreamError: if all weights are 0, or targets are not numbers, or not labels.
    """
    n = most = 0
    low, high = np.full(1, np.inf), np.full(1, -np.inf)
    by_class: dict[Any, Moments] = {}
    drawn: list[tuple[np.ndarray, ...]] = []
    for (X, y, weights), rows in counting(stream):
        k, where = len(X), f"rows {rows[0]} to {rows[-1]}"
        w = np.ones(k) if weights is None else np.asarray(weights, float)
        low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
        if classification:
            labels, number = _labels(y, where)
        elif y.dtype.kind in "biuf":
            labels, number = [None], np.zeros(k, int)
        else:
            raise StreamError(f"{where}: y: expected numbers for regression, got {y.dtype}")
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=len(labels)))
        for label, members in zip(labels, np.split(order, ends[:-1]), strict=True):
            before = by_class.get(label, _no_rows(X.shape[1]))
            by_class[label] = before + _moments(X[members], w[members])
        n, most = n + k, max(most, k)
        if classification:
            check_label_count(len(by_class), n)
        places = {label: place for place, label in enumerate(by_class)}
        kind = np.array([places[label] for label in labels])[number]
        batch = rng.random(k), kind, X, y, w, rows, np.arange(n - k, n)
        drawn.append(tuple(column.copy() for column in batch))  # the caller may reuse its arrays
        if sum(len(part[0]) for part in drawn) > 2 * sample_rows:
            drawn = [_lowest_numbers(drawn, sample_rows)]
    if n == 0:
        raise StreamError("weights: expected some above 0, got weights of zero only")
    counts = np.array([moments.rows for moments in by_class.values()])
    if classification:
        _labels([*by_class], "the batches together")
        by_class = {label: by_class[label] for label in sorted(by_class)}
    _, kind, X, y, w, rows, places = _lowest_numbers(drawn, sample_rows)
    w = w * (counts / np.bincount(kind))[kind]  # every class is in the sample
    return Summary(n, most, by_class, low, high, Sample(X, y, w, rows, places))


def _lowest_numbers(parts: list[tuple[np.ndarray, ...]], most: int) -> tuple[np.ndarray, ...]:
    """Return the rows with the lowest random numbers, of all rows and of each class.

    Args:
        parts: groups of rows, each as columns. The first column is the random number, the second
            the class number.
        most: number of rows to draw from all rows.

    Returns:
        The columns of the selected rows, in the order of the rows.
    """
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    number, kind = columns[:2]
    if len(number) <= most:
        return tuple(columns)
    selected = number <= np.partition(number, most - 1)[most - 1]
    k = kind.max() + 1
    floor = max(1, most // (FLOOR * k))
    for i in range(k):
        class_numbers = np.sort(number[kind == i])
        selected |= (kind == i) & (number <= class_numbers[:floor][-1])
    return tuple(column[selected] for column in columns)


def _labels(y: np.ndarray | list[Any], where: str) -> tuple[list[Any], np.ndarray]:
    """Return the sorted distinct labels, and for each row the number of its label.

    `where` names the rows in error messages.
    """
    try:
        labels, number = np.unique(labels_of("y", y), return_inverse=True)
    except ValueError as error:
        raise StreamError(f"{where}: {error}") from error
    return labels.tolist(), number


def _no_rows(d: int) -> Moments:
    """Return the moments of an empty set of rows."""
    return Moments(0, 0.0, np.zeros(d), np.zeros(d))


def _moments(X: np.ndarray, w: np.ndarray) -> Moments:
    """Return the moments of some rows."""
    X = np.asarray(X, float)
    # Subtract the first row, so that a large mean costs no digits and a constant column is exact.
    Z = X - X[0]
    middle = w @ Z / w.sum()
    return Moments(len(X), float(w.sum()), X[0] + middle, w @ np.square(Z - middle))
