"""What one pass over a stream tells: moments, classes, and a sample of rows."""

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

# A class has at least its share of a tenth of the sample, however rare it is.
FLOOR = 10


class Moments(NamedTuple):
    """Weighted sums over rows from which means and variances follow."""

    rows: int
    weight: float
    mean: Float[np.ndarray, " d"]
    squares: Float[np.ndarray, " d"]  # sum of w (x - mean)^2

    __repr__ = short_repr

    def __add__(self, other: "Moments") -> "Moments":  # type: ignore[override]
        """Return those of both sets of rows (Chan, Golub and LeVeque 1983)."""
        weight = self.weight + other.weight
        if weight == 0:
            return self
        gap, share = other.mean - self.mean, other.weight / weight
        squares = self.squares + other.squares + gap**2 * self.weight * share
        return Moments(self.rows + other.rows, weight, self.mean + gap * share, squares)

    def scaled(self, factor: float) -> "Moments":
        """Return those of rows whose weights are all times `factor`."""
        return self._replace(weight=factor * self.weight, squares=factor * self.squares)


class Sample(NamedTuple):
    """Rows drawn from a stream, in their order."""

    X: Float[np.ndarray, "r d"]
    y: Shaped[np.ndarray, " r"]
    weights: Float[np.ndarray, " r"]  # times the rows of the class, by those of it in the sample
    rows: Int[np.ndarray, " r"]  # their numbers in the stream
    places: Int[np.ndarray, " r"]  # their numbers among the rows with a weight above 0

    __repr__ = short_repr


class Summary(NamedTuple):
    """The outcome of the first pass."""

    n: int  # rows with a weight above 0
    most: int  # of these in a batch
    by_class: dict[Any, Moments]  # in the order of the labels; real targets are one class, None
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    sample: Sample

    __repr__ = short_repr

    def standardization(
        self, factors: Float[np.ndarray, " k"] | None, dtype: jnp.dtype
    ) -> Standardization:
        """Return mean 0 and variance 1 once the rows of each class are weighted by a factor."""
        total = _no_rows(len(self.low))
        for i, moments in enumerate(self.by_class.values()):
            total = total + (moments if factors is None else moments.scaled(factors[i]))
        deviation = np.sqrt(total.squares / total.weight)
        # As `standardize` has it: constant to two units of rounding.
        magnitude = np.maximum(np.abs(self.low), np.abs(self.high))
        constant = self.high - self.low <= 2 * float(jnp.finfo(dtype).eps) * magnitude
        scale = np.where(constant | (deviation == 0), 1.0, deviation)
        return Standardization(*jax.device_put((total.mean.astype(dtype), scale.astype(dtype))))


def summarize(
    stream: Iterable[Batch], rng: np.random.Generator, sample_rows: int, *, classification: bool
) -> Summary:
    """Return moments of each class and a sample, of the rows with a weight above 0.

    Every row draws a lottery number. In the sample are the `sample_rows` lowest numbers of all, and
    the lowest of each of the `k` classes, `sample_rows / (10 k)` of them.

    Raises:
        StreamError: if no row has a weight above 0, or targets are no numbers or no labels.
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
    """Return the rows with the lowest numbers, of all and of each class, in their order.

    The columns of rows begin with lottery numbers and classes.
    """
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    number, kind = columns[:2]
    if len(number) <= most:
        return tuple(columns)
    won = number <= np.partition(number, most - 1)[most - 1]
    k = kind.max() + 1
    floor = max(1, most // (FLOOR * k))
    for i in range(k):
        of_class = np.sort(number[kind == i])
        won |= (kind == i) & (number <= of_class[:floor][-1])
    return tuple(column[won] for column in columns)


def _labels(y: np.ndarray | list[Any], where: str) -> tuple[list[Any], np.ndarray]:
    """Return the labels among these, and the number of each."""
    try:
        labels, number = np.unique(labels_of("y", y), return_inverse=True)
    except ValueError as error:
        raise StreamError(f"{where}: {error}") from error
    return labels.tolist(), number


def _no_rows(d: int) -> Moments:
    return Moments(0, 0.0, np.zeros(d), np.zeros(d))


def _moments(X: np.ndarray, w: np.ndarray) -> Moments:
    X = np.asarray(X, float)
    # About a row of their own first: a large mean costs no digits, a constant column is exact.
    Z = X - X[0]
    middle = w @ Z / w.sum()
    return Moments(len(X), float(w.sum()), X[0] + middle, w @ np.square(Z - middle))
