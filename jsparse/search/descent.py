"""Gradient descent on the cross-validated error, over the leaves of a kernel and `C`."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._blocks import capacity, rounded_down
from .._numerics import like
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, ScalarLike
from ..validation.error_gradient import FoldErrors, Parts, held_out_error
from ..validation.folds import Folds
from .strategies import Evaluator
from .template import Template

FOLDS = 5  # cross-validation folds, which share five sixths of the rows; the rest is validation


class DescentObjective(eqx.Module):
    """The arguments of the cross-validated error that a descent holds fixed."""

    template: Template
    points: Float[Array, "m d"]  # prototypes of the machine
    parts: Parts  # rows that the machine is fitted to and scored on
    free: Bool[Array, " p"] | Bool[np.ndarray, " p"]  # elements of theta that are not held fixed
    origin: Float[Array, " p"] | Float[np.ndarray, " p"]  # theta of the template


class Slope(NamedTuple):
    """The objective of the descent at one point: its value and gradient, and two errors."""

    value: float  # log of the cross-validated error, plus the penalty of the prior
    gradient: Float[np.ndarray, " q"]  # of `value`, in theta and log C
    error: float  # cross-validated error
    validation_error: float  # error on the validation split

    __repr__ = short_repr


class Batches:
    """The rows of each step of a descent: all rows, or a new sample for each step.

    The rows of a step are divided into six parts of about equal size: five folds, and the
    validation split. All steps have the same validation split.

    Attributes:
        points: prototypes of the machine, shape `m d`.
        resampled: whether each step has a new sample.

    Args:
        key: PRNG key of the samples.
        X: inputs, shape `n d`.
        y: targets, shape `n c`.
        weights: row weights, shape `n`; rows of weight 0 are never drawn.
        points: candidates for the prototypes, shape `k d`; None to draw prototypes from the rows.
        rows: upper limit of the number of rows in a step.
        prototypes: upper limit of the number of prototypes.

    Raises:
        ValueError: if fewer than 12 rows have a positive weight, or `rows` is below 12.
    """

    def __init__(
        self,
        key: Key,
        X: Float[Array, "n d"],
        y: Float[Array, "n c"],
        weights: Float[Array, " n"],
        points: Float[Array, "k d"] | None,
        *,
        rows: int,
        prototypes: int,
    ) -> None:
        self._data = X, y, weights
        self._seed = np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist()
        rng = np.random.default_rng(self._seed)
        self._shuffled_rows = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))
        n_rows, n_parts = min(rows, len(self._shuffled_rows)), FOLDS + 1
        if n_rows < 2 * n_parts:
            raise ValueError(
                f"search: expected at least {2 * n_parts} rows with weight, got {n_rows}"
            )
        self._n_rows, self._rows_in_part = n_rows, -(-capacity(n_rows) // n_parts)  # padded
        self.resampled = n_rows < len(self._shuffled_rows)
        if points is None:  # at most half as many prototypes as rows in a step
            candidates, numbers = X, self._shuffled_rows[: max(1, rounded_down(n_rows // 2))]
        else:
            candidates, numbers = points, np.arange(len(points))
        if len(numbers) > prototypes:
            numbers = np.sort(rng.permutation(numbers)[:prototypes])
        self.points = _rows_at(candidates, numbers.astype(np.int32))

    def at(self, step: int) -> Parts:
        """Return the rows of a step in five folds and the validation split."""
        validation, others = np.split(self._shuffled_rows, [self._n_rows // (FOLDS + 1)])
        if self.resampled:
            rng = np.random.default_rng([*self._seed, step])
            others = rng.choice(others, self._n_rows - len(validation), replace=False)
        parts = Folds.of([*np.array_split(others, FOLDS), validation], self._rows_in_part)
        return _parts(*self._data, *parts)


_rows_at = compiled(lambda X, numbers: X[numbers])


@compiled
def _parts(
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, " n"],
    index: Int[Array, "v r"],
    valid: Array,
) -> Parts:
    return Parts(X[index], y[index], jnp.where(valid, w[index], 0))


@compiled
def error_and_gradient(
    objective: DescentObjective, theta: Float[Array, " q"], prior_strength: ScalarLike
) -> tuple[Float[Array, ""], Float[Array, " q"], FoldErrors]:
    """Return the objective of the descent, its gradient, and the errors.

    The objective is the log of the cross-validated error plus the penalty of the prior.

    The last element of `theta` is the log of `C`; `Template` describes the other elements.
    """

    def error(theta: Float[Array, " q"]) -> tuple[Float[Array, ""], FoldErrors]:
        kernel = objective.template.at(theta[:-1])
        return held_out_error(kernel, objective.points, jnp.exp(theta[-1]), objective.parts)

    def prior_penalty(theta: Float[Array, " q"]) -> Float[Array, ""]:
        total, template = jnp.zeros((), theta.dtype), objective.template
        ends = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(template.tuned))])
        for begin, end in itertools.pairwise(ends):
            part, free = theta[begin:end], objective.free[begin:end]
            count = jnp.maximum(jnp.sum(free), 1).astype(part.dtype)
            centre = jnp.sum(jnp.where(free, part, 0)) / count
            if template.signed[begin]:  # centre the prior of a matrix at its initial value
                centre = objective.origin[begin:end]
            distance = jnp.square(part - centre)
            total = total + jnp.sum(jnp.where(free, jnp.log1p(distance), 0))
        # The penalty is minus twice the logs of the prior densities, divided by the number of rows.
        n_rows = jnp.sum(objective.parts.w > 0).astype(total.dtype)
        return 2 * like(prior_strength, total) * total / n_rows

    gradient, errors = jax.grad(error, has_aux=True)(theta)
    penalty, penalty_gradient = jax.value_and_grad(prior_penalty)(theta)
    value = jnp.log(errors.error) + penalty
    return value, gradient / errors.error + penalty_gradient, errors


def descend(
    run: Evaluator,
    batches: Batches,
    begin: Float[np.ndarray, " q"],
    low: Float[np.ndarray, " q"],
    high: Float[np.ndarray, " q"],
    search: Any,
    budget: int,
    trail: list[tuple[np.ndarray, float]],
) -> None:
    """Run Adam (Kingma and Ba 2015) within a box until the budget or the patience is spent.

    The vectors are short, so Adam runs on the host, in float64. The Adam of optax would add 0.2 s
    of import and compilation to a first search of 4 s, and 50 us to each step. The learning rate
    falls to zero along half a cosine wave.

    Args:
        run: evaluates and records the slopes.
        batches: the rows of each step.
        begin: initial theta and log C.
        low: lower bounds of theta and log C.
        high: upper bounds; an element whose bounds are equal is held fixed.
        search: the `Gradient` with the learning rate, the patience and the prior.
        budget: upper limit of the number of evaluations.
        trail: list to which the theta of every evaluation and its validation error are appended.
    """
    theta, dtype, template = np.clip(begin, low, high), run.dtype, run.template
    free = (low < high)[:-1]
    objective = DescentObjective(template, batches.points, batches.at(0), free, template.theta)
    strength = np.asarray(search.prior_strength, dtype)

    def slope(theta: np.ndarray) -> Slope:
        # Round to the dtype of the device, so that a resumed run finds the step in its history.
        leaves, C = theta[:-1].astype(dtype).astype(float), float(np.exp(theta[-1]))

        def evaluate() -> Slope:
            point = np.append(leaves, np.log(C)).astype(dtype)
            value, gradient, errors = error_and_gradient(objective, point, strength)
            value, gradient = float(value), np.asarray(gradient, float)
            if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
                return Slope(np.inf, np.zeros(len(point)), np.inf, np.inf)
            return Slope(value, gradient, float(errors.error), float(errors.validation))

        result = run.slope(leaves, C, evaluate)
        trail.append((leaves, result.validation_error))
        return result

    # The profile chose `C` for the metric. The best `C` for the squared error may be far smaller.
    # So divide `C` by 10 as long as the squared error falls.
    current, tenth = slope(theta), np.append(np.zeros(len(theta) - 1), np.log(10.0))
    while len(trail) < budget and theta[-1] - tenth[-1] > low[-1]:
        lower = slope(theta - tenth)
        if not lower.value < current.value:
            break
        current, theta = lower, theta - tenth
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    least, steps_without_improvement = np.inf, 0
    for i in range(budget - len(trail)):
        steps_without_improvement += 1
        if current.validation_error < least:
            least, steps_without_improvement = current.validation_error, 0
        if steps_without_improvement >= search.patience or not np.isfinite(current.value):
            return
        mean = 0.9 * mean + 0.1 * current.gradient
        square = 0.999 * square + 0.001 * np.square(current.gradient)
        size = np.sqrt(square / (1 - 0.999 ** (i + 1))) + 1e-8
        rate = search.learning_rate * (1 + np.cos(np.pi * i / budget)) / 2
        theta = np.clip(theta - rate * mean / (1 - 0.9 ** (i + 1)) / size, low, high)
        if batches.resampled:
            objective = dataclasses.replace(objective, parts=batches.at(i + 1))
        current = slope(theta)


def worth_scoring(trail: list[tuple[np.ndarray, float]]) -> list[np.ndarray]:
    """Return the kernels of a descent to score: the best in validation error, and the last.

    A kernel is left out if its validation error is above the validation error of the first kernel.
    The first kernel itself is left out because it has a score already.

    Args:
        trail: theta and validation error of every evaluation.
    """
    if len(trail) < 2:
        return []
    first = trail[0][0].tobytes()  # perhaps evaluated several times, with different `C`
    bound = min(error for theta, error in trail if theta.tobytes() == first)
    candidates = [min(trail, key=lambda step: step[1]), trail[-1]]
    kernels = {theta.tobytes(): theta for theta, error in candidates if error <= bound}
    kernels.pop(first, None)
    return list(kernels.values())
