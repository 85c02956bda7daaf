"""Summary of one pass over a stream: moments, classes, and a sample of rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from .._arguments import labels_of
from .._repr import short_repr
from ..data.streams import Batch, StreamError, without_zero_weights
from ..scaling import Standardization
from .inputs import check_label_count

# The sample has at least `sample_rows / (CLASS_SHARE k)` rows of each of `k` classes, or all rows
# of a smaller class, so that it includes rare classes. In all these are a tenth of `sample_rows`.
CLASS_SHARE = 10


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
        difference, fraction = other.mean - self.mean, other.weight / weight
        mean = self.mean + fraction * difference
        squares = self.squares + other.squares + difference**2 * self.weight * fraction
        return Moments(self.rows + other.rows, weight, mean, squares)

    def scaled(self, factor: float) -> "Moments":
        """Return the moments after all weights are multiplied by `factor`."""
        return self._replace(weight=factor * self.weight, squares=factor * self.squares)


class Sample(NamedTuple):
    """Rows drawn from a stream, in the order of the stream."""

    X: Float[np.ndarray, "r d"]
    y: Shaped[np.ndarray, " r"]
    # Row weights, divided by the fraction of the rows of the same class that the sample has.
    weights: Float[np.ndarray, " r"]
    rows: Int[np.ndarray, " r"]  # row numbers in the stream
    places: Int[np.ndarray, " r"]  # row numbers among the rows of positive weight

    __repr__ = short_repr


class Summary(NamedTuple):
    """The summary of the first pass, over the rows of positive weight."""

    n: int  # number of rows
    largest_batch: int  # number of rows of the largest batch
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
            dtype: dtype of the standardisation.
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

    Every row draws a random number. The sample has the `sample_rows` rows with the lowest numbers.
    To include rare classes, it also has the `sample_rows / (10 k)` rows with the lowest numbers, or
    at least one row, of each of the `k` classes.

    Args:
        stream: batches of rows.
        rng: generator of the numbers.
        sample_rows: size of the sample, without the additional rows of rare classes.
        classification: whether targets are labels.

    Raises:
        StreamError: if all weights are 0, targets of a regression are not numbers, or labels have
            several types.
        ValueError: if there are nearly as many classes as rows.
    """
    n = largest_batch = 0
    low, high = np.full(1, np.inf), np.full(1, -np.inf)
    by_class: dict[Any, Moments] = {}
    parts: list[tuple[np.ndarray, ...]] = []
    for (X, y, weights), rows in without_zero_weights(stream):
        batch_rows, where = len(X), f"rows {rows[0]} to {rows[-1]}"
        w = np.ones(batch_rows) if weights is None else np.asarray(weights, float)
        low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
        if classification:
            labels, label_numbers = _labels(y, where)
        elif y.dtype.kind in "biuf":
            labels, label_numbers = [None], np.zeros(batch_rows, int)
        else:
            raise StreamError(f"{where}: y: expected numbers for regression, got {y.dtype}")
        order = np.argsort(label_numbers, kind="stable")
        ends = np.cumsum(np.bincount(label_numbers, minlength=len(labels)))
        for label, members in zip(labels, np.split(order, ends[:-1]), strict=True):
            earlier = by_class.get(label, _no_rows(X.shape[1]))
            by_class[label] = earlier + _moments(X[members], w[members])
        n, largest_batch = n + batch_rows, max(largest_batch, batch_rows)
        if classification:
            check_label_count(len(by_class), n)
        class_number = {label: i for i, label in enumerate(by_class)}
        class_numbers = np.array([class_number[label] for label in labels])[label_numbers]
        random_numbers, places = rng.random(batch_rows), np.arange(n - batch_rows, n)
        batch = random_numbers, class_numbers, X, y, w, rows, places
        parts.append(tuple(column.copy() for column in batch))  # the caller may reuse its arrays
        if sum(len(part[0]) for part in parts) > 2 * sample_rows:
            parts = [_lowest_numbers(parts, sample_rows)]
    if n == 0:
        raise StreamError("weights: expected some above 0, got weights of zero only")
    counts = np.array([moments.rows for moments in by_class.values()])
    if classification:
        _labels([*by_class], "the batches together")
        by_class = {label: by_class[label] for label in sorted(by_class)}
    _, class_numbers, X, y, w, rows, places = _lowest_numbers(parts, sample_rows)
    w = w * (counts / np.bincount(class_numbers))[class_numbers]  # every class is in the sample
    return Summary(n, largest_batch, by_class, low, high, Sample(X, y, w, rows, places))


def _lowest_numbers(parts: list[tuple[np.ndarray, ...]], n_rows: int) -> tuple[np.ndarray, ...]:
    """Return the rows with the lowest random numbers, of all rows and of each class.

    Args:
        parts: groups of rows, each as a tuple of columns. The first column has the random numbers,
            the second the class numbers.
        n_rows: number of rows to select from the rows of all classes.

    Returns:
        The columns of the selected rows, in the order of the rows.
    """
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    random_numbers, class_numbers = columns[:2]
    if len(random_numbers) <= n_rows:
        return tuple(columns)
    selected = random_numbers <= np.partition(random_numbers, n_rows - 1)[n_rows - 1]
    k = class_numbers.max() + 1
    rows_of_class = max(1, n_rows // (CLASS_SHARE * k))
    for i in range(k):
        of_class = class_numbers == i
        lowest = np.sort(random_numbers[of_class])[:rows_of_class]
        selected |= of_class & (random_numbers <= lowest[-1])
    return tuple(column[selected] for column in columns)


def _labels(y: np.ndarray | list[Any], where: str) -> tuple[list[Any], np.ndarray]:
    """Return the sorted distinct labels, and the number of each row's label among them.

    `where` names the rows in error messages.
    """
    try:
        labels, label_numbers = np.unique(labels_of("y", y), return_inverse=True)
    except ValueError as error:
        raise StreamError(f"{where}: {error}") from error
    return labels.tolist(), label_numbers


def _no_rows(d: int) -> Moments:
    """Return the moments of an empty set of rows."""
    return Moments(0, 0.0, np.zeros(d), np.zeros(d))


def _moments(X: np.ndarray, w: np.ndarray) -> Moments:
    """Return the moments of some rows."""
    X = np.asarray(X, float)
    # Subtract the first row, so that a large mean costs no digits and a constant column is exact.
    Z = X - X[0]
    mean = w @ Z / w.sum()
    return Moments(len(X), float(w.sum()), X[0] + mean, w @ np.square(Z - mean))
