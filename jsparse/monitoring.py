"""Monitoring of a deployed model: coverage of its intervals, drift of inputs, and its errors."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._arguments import as_key, check_finite, finite_targets, numbers_of_labels, real, whole_number
from ._blocks import rows_in_block, sum_row_blocks
from ._numerics import as_float, dot, epsilon
from ._programs import compiled
from ._repr import short_repr
from ._types import Key, KeyLike
from .kernels import Kernel
from .model import Model
from .model_answers import targets_of
from .novelty import Novelty as Novelty


class Coverage(NamedTuple):
    """How many targets are inside their intervals or prediction sets.

    Attributes:
        expected: the nominal coverage of the intervals or sets.
        observed: share of rows whose target is inside, shape `()`, or `c` for several targets.
        low: lower end of the confidence interval of the true coverage, shaped as `observed`.
        high: upper end, shaped as `observed`.
        n_rows: number of rows.
    """

    expected: float
    observed: Float[np.ndarray, "*c"]
    low: Float[np.ndarray, "*c"]
    high: Float[np.ndarray, "*c"]
    n_rows: int

    __repr__ = short_repr


class DriftTest(NamedTuple):
    """The result of a test whether two samples have one distribution.

    Attributes:
        statistic: unbiased estimate of the squared maximum mean discrepancy. It may be negative.
        p_value: share of permutations with a statistic at least as large, the observed one
            included. If there is no drift, it is at most `a` with probability at most `a`.
    """

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]

    __repr__ = short_repr


def coverage(
    model: Model, X: Any, y: Any, coverage: float = 0.9, *, confidence: float = 0.95
) -> Coverage:
    """Return the observed coverage of `Model.interval` or `Model.predict_set` on later rows.

    If the interval from `low` to `high` is below `coverage`, the rows have drifted, or the model
    never had the coverage.

    Args:
        model: a model with errors on held-out rows.
        X: raw inputs or a table, as for `Model.predict`.
        y: targets or labels of the rows, shape `n` or `n c`; of a table also the name of a column.
        coverage: coverage of the intervals or sets.
        confidence: probability that the exact binomial interval (Clopper and Pearson 1934) holds
            the true coverage, for independent rows.

    Raises:
        ValueError: for targets that do not fit the rows or the model; as `Model.interval`.
    """
    _check_model(model)
    probability = real("confidence", confidence, 0.0, above=True)
    if probability >= 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
    y = targets_of(model, X, y)
    if model.labels is None:
        ends = model.interval(X, coverage)
        truth = finite_targets(y, ends.shape[:-1])
        inside = (ends[..., 0] <= truth) & (truth <= ends[..., 1])
    else:
        sets = model.predict_set(X, coverage)
        class_numbers = numbers_of_labels(y, model.labels, len(sets))
        inside = np.take_along_axis(sets, class_numbers[:, None], axis=1)[:, 0]
    count, n = np.asarray(inside.sum(axis=0)), len(inside)
    low, high = _binomial_interval(count, n, probability)
    return Coverage(coverage, np.asarray(count / n), low, high, n)


def _check_model(model: Any) -> None:
    if not isinstance(model, Model):
        raise ValueError(
            "model: expected a Model, such as `train(..).model` or `estimator.model_`, got "
            f"{type(model).__name__}"
        )


def _binomial_interval(
    count: Int[np.ndarray, "*c"], n: int, confidence: float
) -> tuple[Float[np.ndarray, "*c"], Float[np.ndarray, "*c"]]:
    """Return the ends of the exact confidence interval of a probability, for `count` out of `n`."""
    from scipy.special import betaincinv  # slow to import, and often not needed

    tail = (1 - confidence) / 2
    # `betaincinv` needs positive arguments, also where the end is 0 or 1 without it.
    inside, outside = np.maximum(count, 1), np.maximum(n - count, 1)
    low = np.where(count > 0, betaincinv(inside, n - count + 1, tail), 0.0)
    high = np.where(count < n, betaincinv(count + 1, outside, 1 - tail), 1.0)
    return low, high


def row_errors(model: Model, X: Any, y: Any) -> Float[np.ndarray, " n"]:
    """Return the error of each row: for a classifier, 1 for a wrong label, else 0.

    For a regression it is the absolute error, averaged over the targets. For a model of quantiles
    it is twice the pinball loss, averaged over the quantiles; for the median, the absolute error.

    Args:
        model: the model.
        X: raw inputs or a table, as for `Model.predict`.
        y: labels, shape `n`, or targets, shape `n` or `n c`; of a table also the name of a column.

    Raises:
        ValueError: for labels or targets that do not fit the rows or the model.
    """
    _check_model(model)
    y, predicted = targets_of(model, X, y), model.predict(X)
    if model.labels is not None:
        numbers_of_labels(y, model.labels, len(predicted))
        return (predicted != y).astype(float)
    several = len(model.quantiles) > 1
    truth = finite_targets(y, predicted.shape[:1] if several else predicted.shape)
    residuals = (truth[:, None] if several else truth) - predicted
    levels = np.array(model.quantiles or 0.5)
    errors = 2 * residuals * (levels - (residuals < 0))
    return errors.reshape(len(errors), -1).mean(axis=1).astype(float)


def error_stream(model: Model, batches: Iterable[Any]) -> Iterator[float]:
    """Yield the `row_errors` of batches one by one, for detectors of drift.

    The detectors of river, such as `ADWIN` and `PageHinkley`, have a method `update` that takes one
    number; `DDM` and `EDDM` take 0 or 1.

    Args:
        model: the model.
        batches: pairs `(X, y)` as for `row_errors`; more entries, such as weights, are ignored.
    """
    for X, y, *_ in batches:
        yield from row_errors(model, X, y).tolist()


def drift_test(
    model: Model, X: Any, reference: Any, *, key: KeyLike, n_permutations: int = 199
) -> DriftTest:
    """Test whether new rows have the distribution of reference rows, as the model's kernel sees it.

    Columns that the kernel ignores do not count. See `mmd_test` for the test and its cost: take
    samples of at most some thousands of rows.

    Args:
        model: the model.
        X: new rows, raw inputs or a table, as for `Model.predict`.
        reference: a random sample of rows from before, as inputs like `X`. The prototypes are such
            a sample only if they were drawn at random.
        key: random key of the permutations.
        n_permutations: see `mmd_test`.

    Raises:
        ValueError: as `Model.predict` for the inputs, and as `mmd_test`.
    """
    _check_model(model)
    samples = model.standardised(X), model.standardised(reference)
    with jax.enable_x64(model.dtype == np.float64):
        return mmd_test(key, model.expansion.kernel, *samples, n_permutations=n_permutations)


def mmd_test(
    key: KeyLike,
    kernel: Kernel,
    X: Float[Array, "n d"] | Float[np.ndarray, "n d"],
    Y: Float[Array, "r c"] | Float[np.ndarray, "r c"],
    *,
    n_permutations: int = 199,
    block_rows: int | None = None,
) -> DriftTest:
    """Test whether two samples have one distribution, by the maximum mean discrepancy.

    Gretton et al. 2012, Lemma 6, with the p-value of random permutations of the rows, which is
    valid for samples of any size. Pure and jittable in `key`, `kernel`, `X` and `Y`. Time grows
    with `(n + r)^2`, for the kernel values and for each permutation. Memory holds `block_rows` rows
    of the kernel matrix, and `n + r` numbers for each permutation.

    Args:
        key: random key of the permutations.
        kernel: kernel of two points. It sees every difference of distributions if it is
            characteristic, as `RBF`, `Laplacian` and `Matern32` are.
        X: rows of one sample, at least 2, shape `n d`.
        Y: rows of the other sample, at least 2, shape `r d`.
        n_permutations: number of permutations (static). The smallest p-value is `1 / (1 +
            n_permutations)`.
        block_rows: number of rows of the kernel matrix in memory at a time (static); by default
            it suits the device.

    Raises:
        ValueError: for samples of fewer than two rows or of different columns, for a `Mixture` of
            kernels, or (outside `jit`) for values that are not finite.
    """
    X, Y = as_float(X), as_float(Y)
    if X.ndim != 2 or Y.ndim != 2 or X.shape[1:] != Y.shape[1:] or min(len(X), len(Y)) < 2:
        raise ValueError(
            f"X, Y: expected two tables of at least 2 rows with equal columns, got shapes "
            f"{X.shape} and {Y.shape}"
        )
    check_finite("X", X)
    check_finite("Y", Y)
    n_permutations = whole_number("n_permutations", n_permutations, 1)
    block_rows = rows_in_block(block_rows)
    return _mmd_test(as_key(key), kernel, X, Y.astype(X.dtype), n_permutations, block_rows)


@functools.partial(compiled, static_argnums=(4, 5))
def _mmd_test(
    key: Key,
    kernel: Kernel,
    X: Float[Array, "n d"],
    Y: Float[Array, "r d"],
    n_permutations: int,
    block_rows: int,
) -> DriftTest:
    """See `mmd_test`; the statistics of all permutations come from one pass over the kernel."""
    n, r = len(X), len(Y)
    rows, numbers = jnp.concatenate([X, Y]), jnp.arange(n + r, dtype=jnp.int32)
    keys = jax.random.split(key, n_permutations)
    permuted = jax.vmap(lambda key: jax.random.permutation(key, numbers))(keys)
    orders = jnp.concatenate([numbers[None], permuted])  # the first is the observed order
    in_first = (orders < n).T.astype(X.dtype)

    def block(
        points: Array, number: Array, members: Array, weight: Array
    ) -> tuple[Array, Array, Array]:
        """Return three sums of kernel values of different points, the first point in the block.

        They are over pairs within the first sample, pairs whose first point is in the first sample,
        and all pairs. The first two have an entry for each order of the rows. `members` is 1 for
        rows of the block that are in the first sample.
        """
        values = kernel.cross_gram(points, rows) * weight[:, None]
        values = jnp.where(number[:, None] == numbers[None], 0, values)
        total = jnp.sum(values, axis=1)
        within = jnp.sum(members * dot(values, in_first), axis=0)
        return within, dot(total, members), jnp.sum(total)

    zero = jnp.zeros(n_permutations + 1, X.dtype)
    arrays = rows, numbers, in_first, jnp.ones(n + r, X.dtype)
    within, from_first, total = sum_row_blocks(block, arrays, (zero, zero, zero[0]), block_rows)
    between = from_first - within
    within_second = total - within - 2 * between
    statistics = within / (n * (n - 1)) + within_second / (r * (r - 1)) - 2 * between / (n * r)
    # A permutation that moves no row to the other sample has the observed statistic, to rounding.
    rounding = 16 * epsilon(X.dtype) * jnp.max(jnp.abs(kernel.diagonal(rows)))
    as_large: Bool[Array, " p"] = statistics >= statistics[0] - rounding
    return DriftTest(statistics[0], jnp.mean(as_large, dtype=X.dtype))
