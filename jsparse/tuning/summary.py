"""What one pass over a stream tells: moments, classes, and a sample of rows."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from ..data.streams import Batch, RowStream, StreamError
from ..scaling import Standardization


class Moments(NamedTuple):
    """Weighted sums over rows from which means and variances follow."""

    weight: float
    mean: Float[np.ndarray, " d"]
    squares: Float[np.ndarray, " d"]  # sum of w (x - mean)^2

    def __add__(self, other: "Moments") -> "Moments":  # type: ignore[override]
        """Of both sets of rows, by the update of Chan, Golub and LeVeque (1983)."""
        weight = self.weight + other.weight
        if weight == 0:
            return self
        gap, share = other.mean - self.mean, other.weight / weight
        squares = self.squares + other.squares + gap**2 * self.weight * share
        return Moments(weight, self.mean + gap * share, squares)

    def scaled(self, factor: float) -> "Moments":
        """With all weights times `factor`."""
        return Moments(factor * self.weight, self.mean, factor * self.squares)


class Sample(NamedTuple):
    """Rows drawn from a stream, uniformly without replacement, in their order."""

    X: Float[np.ndarray, "r d"]
    y: Shaped[np.ndarray, " r"]
    weights: Float[np.ndarray, " r"]
    rows: Int[np.ndarray, " r"]  # their numbers


class Summary(NamedTuple):
    """The outcome of the first pass."""

    n: int
    most: int  # rows in a batch
    by_class: dict[Any, Moments]  # in the order of the labels; real targets are one class, None
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    sample: Sample
    weighted: bool  # whether the stream has weights

    def standardization(
        self, factors: Float[np.ndarray, " k"] | None, dtype: jnp.dtype
    ) -> Standardization:
        """Mean 0 and variance 1 once the rows of each class are weighted by a factor."""
        total = Moments(0.0, np.zeros_like(self.low), np.zeros_like(self.low))
        for i, moments in enumerate(self.by_class.values()):
            total = total + (moments if factors is None else moments.scaled(factors[i]))
        deviation = np.sqrt(total.squares / total.weight)
        # As `standardize` has it: constant to two units of rounding.
        magnitude = np.maximum(np.abs(self.low), np.abs(self.high))
        constant = self.high - self.low <= 2 * float(jnp.finfo(dtype).eps) * magnitude
        scale = np.where(constant | (deviation == 0), 1.0, deviation)
        return Standardization(jnp.asarray(total.mean, dtype), jnp.asarray(scale, dtype))


def summarize(
    stream: RowStream, rng: np.random.Generator, sample_rows: int, *, classification: bool
) -> Summary:
    """One pass: moments for each class, and `sample_rows` rows of positive weight by reservoir.

    Raises:
        StreamError: if no row has a weight above 0.
    """
    n = most = 0
    low = high = np.zeros(0)
    by_class: dict[Any, Moments] = {}
    kept: list[tuple[np.ndarray, ...]] = []  # lottery numbers, and the rows they stand for
    weighted = False
    for X, y, weights in stream:
        here = len(X)
        weighted |= weights is not None
        w = np.ones(here) if weights is None else np.asarray(weights, float)
        if n == 0:
            low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
        if np.any(w > 0):
            low = np.minimum(low, X[w > 0].min(axis=0))
            high = np.maximum(high, X[w > 0].max(axis=0))
        parts = {None: slice(None)} if not classification else _rows_of_classes(y)
        for label, part in parts.items():
            old = by_class.get(label, Moments(0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])))
            by_class[label] = old + _moments(X[part], w[part])
        number = np.where(w > 0, rng.random(here), np.inf)
        kept.append((number, X, y, w, n + np.arange(here)))
        if sum(len(part[0]) for part in kept) > 4 * sample_rows:
            kept = [_first(kept, sample_rows)]
        n, most = n + here, max(most, here)
    try:
        by_class = {label: by_class[label] for label in sorted(by_class)}
    except TypeError as error:
        raise StreamError(f"y: expected labels of one type, got a mixture ({error})") from error
    number, *columns = _first(kept, sample_rows)
    if not np.isfinite(number).any():
        raise StreamError("weights: expected some above 0, got weights of zero only")
    sample = Sample(*(column[np.isfinite(number)] for column in columns))
    return Summary(n, most, by_class, low, high, sample, weighted)


def _rows_of_classes(y: np.ndarray) -> dict[Any, Any]:
    labels, which = np.unique(y, return_inverse=True)
    return {label: which == i for i, label in enumerate(labels.tolist())}


def _moments(X: np.ndarray, w: np.ndarray) -> Moments:
    present = w > 0
    X, w = np.asarray(X[present], float), w[present]
    if len(X) == 0:
        return Moments(0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1]))
    # About a row of their own first: a large mean costs no digits, a constant column is exact.
    Z = X - X[0]
    middle = w @ Z / w.sum()
    return Moments(float(w.sum()), X[0] + middle, w @ np.square(Z - middle))


def _first(kept: list[tuple[np.ndarray, ...]], most: int) -> tuple[np.ndarray, ...]:
    """The rows with the smallest lottery numbers, in the order of the stream."""
    joined = tuple(np.concatenate(parts) for parts in zip(*kept, strict=True))
    if len(joined[0]) <= most:
        return joined
    chosen = np.sort(np.argpartition(joined[0], most)[:most])
    return tuple(part[chosen] for part in joined)


def padded(batch: Batch, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and weights filled up with weightless rows, so that all compile as one."""
    X, y, weights = batch
    w = np.ones(len(X), X.dtype) if weights is None else weights.astype(X.dtype)
    more = rows - len(X)
    return np.pad(X, ((0, more), (0, 0))), np.pad(y, (0, more)), np.pad(w, (0, more))
