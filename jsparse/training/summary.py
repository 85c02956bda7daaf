"""Summary of one pass over a stream: moments, classes, and a sample of rows."""

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from .._arguments import labels_of
from .._repr import short_repr
from ..data.streams import Batch, StreamError, indices_in_words
from ..scaling import Standardization
from .draws import random_numbers
from .inputs import check_label_count

# The sample has at least `sample_rows / (CLASS_SHARE k)` rows of each of `k` classes, or all rows
# of a smaller class, so that it includes rare classes. Together they are a tenth of `sample_rows`.
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


class SampledRows(NamedTuple):
    """Rows that may be in the random sample, as an array for each of their properties."""

    numbers: Float[np.ndarray, " r"]  # the random number of each row
    class_numbers: Int[np.ndarray, " r"]  # 0 for regression
    X: Float[np.ndarray, "r d"]
    targets: Shaped[np.ndarray, " r"]  # class numbers for classification
    weights: Float[np.ndarray, " r"]
    rows: Int[np.ndarray, " r"]  # row numbers in the stream
    places: Int[np.ndarray, " r"]  # row numbers among the rows of positive weight

    __repr__ = short_repr

    def at(self, selected: np.ndarray) -> "SampledRows":
        """Return the rows at which the mask is True, or rows by their indices."""
        return SampledRows(*(column[selected] for column in self))


def lowest_numbers(
    numbers: Float[np.ndarray, " r"], class_numbers: Int[np.ndarray, " r"], n_rows: int
) -> Bool[np.ndarray, " r"]:
    """Return a mask of the rows in the sample: the `n_rows` with the lowest random numbers.

    Rows of rare classes are added, until each of the `k` classes has `n_rows / (CLASS_SHARE k)`
    rows, at least one, or all its rows.
    """
    if len(numbers) <= n_rows:
        return np.ones(len(numbers), bool)
    selected = numbers <= np.partition(numbers, n_rows - 1)[n_rows - 1]
    k = class_numbers.max() + 1
    rows_of_class = max(1, n_rows // (CLASS_SHARE * k))
    for i in range(k):
        of_class = class_numbers == i
        if of_class.any():
            lowest = np.sort(numbers[of_class])[:rows_of_class]
            selected |= of_class & (numbers <= lowest[-1])
    return selected


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
        """Return the standardisation of the inputs to mean 0 and variance 1, in `dtype`.

        The row weights of each class are multiplied by `factors`; None for 1. Constant columns are
        only shifted.
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


class Summarizer:
    """The moments of each class, and a sample, of the rows of positive weight that were added.

    The seed and the place of a row decide a random number for the row. The sample has the
    `sample_rows` rows with the lowest numbers. To include rare classes, it also has the
    `sample_rows / (10 k)` rows with the lowest numbers, or at least one row, of each of the `k`
    classes. So the sample depends neither on the batches nor on the order in which rows are added.

    Args:
        seed: seed of the random numbers.
        sample_rows: size of the sample, without the additional rows of rare classes.
        classification: whether targets are labels.
    """

    def __init__(self, seed: int, sample_rows: int, *, classification: bool) -> None:
        self.seed, self.sample_rows, self.classification = seed, sample_rows, classification
        self.n = self.largest_batch = 0
        self.low, self.high = np.full(1, np.inf), np.full(1, -np.inf)
        self.by_class: dict[Any, Moments] = {}  # in the order in which the classes were seen
        self.parts: list[SampledRows] = []  # rows that may be in the sample

    def add(self, batch: Batch, rows: np.ndarray, places: np.ndarray) -> None:
        """Add rows of positive weight, see `data.streams.Located`.

        If targets of a regression are not numbers, or labels have several types, raise a
        `StreamError`; for nearly as many classes as rows, a `ValueError`.
        """
        (X, y, weights), where = batch, indices_in_words(rows)
        batch_rows = len(X)
        w = np.ones(batch_rows) if weights is None else np.asarray(weights, float)
        self.low = np.minimum(self.low, X.min(axis=0))
        self.high = np.maximum(self.high, X.max(axis=0))
        if self.classification:
            labels, label_numbers = _labels(y, where)
        elif y.dtype.kind in "biuf":
            labels, label_numbers = [None], np.zeros(batch_rows, int)
        else:
            raise StreamError(f"{where}: y: expected numbers for regression, got {y.dtype}")
        order = np.argsort(label_numbers, kind="stable")
        ends = np.cumsum(np.bincount(label_numbers, minlength=len(labels)))
        for label, members in zip(labels, np.split(order, ends[:-1]), strict=True):
            self.join(label, _moments(X[members], w[members]))
        self.n, self.largest_batch = self.n + batch_rows, max(self.largest_batch, batch_rows)
        if self.classification:
            check_label_count(len(self.by_class), self.n)
        number_of = {label: i for i, label in enumerate(self.by_class)}
        numbers = np.array([number_of[label] for label in labels])[label_numbers]
        targets = numbers if self.classification else y
        columns = random_numbers(places, self.seed), numbers, X, targets, w, rows, places
        # Copy the columns, as the caller may reuse its arrays.
        self.parts.append(SampledRows(*(column.copy() for column in columns)))
        if sum(len(part.places) for part in self.parts) > 2 * self.sample_rows:
            self.parts = [self.lowest]

    def join(self, label: Any, moments: Moments) -> None:
        """Add the moments of further rows of the class `label` to the moments of this class."""
        earlier = self.by_class.get(label, _no_rows(len(moments.mean)))
        self.by_class[label] = earlier + moments

    @property
    def lowest(self) -> SampledRows:
        """The rows that may be in the sample, in the order of their places."""
        columns = SampledRows(*map(np.concatenate, zip(*self.parts, strict=True)))
        selected = lowest_numbers(columns.numbers, columns.class_numbers, self.sample_rows)
        return columns.at(selected)

    @property
    def summary(self) -> Summary:
        """The summary; a `StreamError` without rows, or if batches have labels of several types."""
        if self.n == 0:
            raise StreamError("weights: expected some above 0, got weights of zero only")
        by_class, columns = self.by_class, self.lowest
        y, numbers, w = columns.targets, columns.class_numbers, columns.weights
        if self.classification:
            _labels([*by_class], "the batches together")
            y = labels_of("y", [*by_class])[numbers]
            by_class = {label: by_class[label] for label in sorted(by_class)}
        # Every class is in the sample.
        counts = np.array([moments.rows for moments in self.by_class.values()])
        w = w * (counts / np.bincount(numbers))[numbers]
        sample = Sample(columns.X, y, w, columns.rows, columns.places)
        return Summary(self.n, self.largest_batch, by_class, self.low, self.high, sample)

    @property
    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the document from which `restore` continues."""
        moments = [*self.by_class.values()]
        arrays = {"low": self.low, "high": self.high}
        if moments:
            arrays |= self.lowest._asdict() | {
                "mean": np.stack([m.mean for m in moments]),
                "squares": np.stack([m.squares for m in moments]),
            }
        document = {
            "n": self.n,
            "largest_batch": self.largest_batch,
            # Labels are written as Python writes them, as JSON has no bytes.
            "classes": [[repr(label), m.rows, m.weight] for label, m in self.by_class.items()],
        }
        return arrays, document

    def restore(self, arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]) -> None:
        """Set this empty summarizer to the `state` of another one."""
        self.n, self.largest_batch = document["n"], document["largest_batch"]
        self.low, self.high = arrays["low"], arrays["high"]
        for i, (label, rows, weight) in enumerate(document["classes"]):
            moments = Moments(rows, weight, arrays["mean"][i], arrays["squares"][i])
            self.by_class[ast.literal_eval(label)] = moments
        if self.by_class:
            self.parts = [SampledRows(*(arrays[name] for name in SampledRows._fields))]


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
    """Return the moments of rows with positive weights `w`."""
    X = np.asarray(X, float)
    # Subtract the first row, so that a large mean costs no digits and a constant column is exact.
    Z = X - X[0]
    mean = w @ Z / w.sum()
    return Moments(len(X), float(w.sum()), X[0] + mean, w @ np.square(Z - mean))
