"""Gradient descent on the cross-validated error, over the leaves of a kernel and `C`."""

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
from ..validation.error_gradient import Parts, held_out_error
from ..validation.folds import Folds
from .strategies import Evaluator
from .template import Template

FOLDS = 5  # of the cross-validated error
FEWEST_ROWS = 12  # two rows and more in every fold
STEPS = 45  # default number of evaluations of the gradient
# With fewer evaluations the steps are longer, by this power of the ratio, so that a descent still
# reaches the lengthscale of an irrelevant column, some hundred times the common one.
REACH = 0.8
DECAY = 0.4  # share of the evaluations, at the end, over which the learning rate falls to zero


class DescentObjective(eqx.Module):
    """The arguments of the cross-validated error that a descent holds fixed."""

    template: Template
    points: Float[Array, "m d"]  # prototypes of the machine
    parts: Parts  # rows that the machine is fitted to and scored on
    free: Bool[Array, " p"] | Bool[np.ndarray, " p"]  # elements of theta that are not held fixed
    origin: Float[Array, " p"] | Float[np.ndarray, " p"]  # theta of the template


class Slope(NamedTuple):
    """The objective of the descent at one point: its value and gradient, and the error."""

    value: float  # log of the cross-validated error, plus the penalty of the prior
    gradient: Float[np.ndarray, " q"]  # of `value`, in theta and log C; q = p + 1
    error: float  # cross-validated error

    __repr__ = short_repr


def folds_and_prototypes(
    key: Key,
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    weights: Float[Array, " n"],
    points: Float[Array, "k d"] | None,
    *,
    rows: int,
    prototypes: int,
) -> tuple[Parts, Float[Array, "m d"]]:
    """Return random rows in five folds, on which a descent measures the error, and prototypes.

    At most `rows` rows with a positive weight are drawn, and at most `prototypes` prototypes out of
    the candidates `points`. If `points` is None, half of the drawn rows are the candidates.

    Raises:
        ValueError: if fewer than 12 rows have a positive weight, or `rows` is below 12.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist())
    numbers = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))[:rows]
    if len(numbers) < FEWEST_ROWS:
        raise ValueError(
            f"search: expected at least {FEWEST_ROWS} rows with weight, got {len(numbers)}"
        )
    folds = Folds.of(np.array_split(numbers, FOLDS), -(-capacity(len(numbers)) // FOLDS))
    half = max(1, rounded_down(len(numbers) // 2))
    candidates = numbers[:half] if points is None else np.arange(len(points))
    if len(candidates) > prototypes:
        candidates = np.sort(rng.permutation(candidates)[:prototypes])
    Z = _rows_at(X if points is None else points, candidates.astype(np.int32))
    return _parts(X, y, weights, *folds), Z


_rows_at = compiled(lambda X, numbers: X[numbers])


@compiled
def _parts(
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, " n"],
    index: Int[Array, "v r"],
    valid: Array,
) -> Parts:
    """Return the rows numbered `index`, by fold; an entry that is not `valid` gets weight 0."""
    return Parts(X[index], y[index], jnp.where(valid, w[index], 0))


@compiled
def error_and_gradient(
    objective: DescentObjective, theta: Float[Array, " q"], prior_strength: ScalarLike
) -> tuple[Float[Array, ""], Float[Array, " q"], Float[Array, ""]]:
    """Return the objective of the descent, its gradient, and the cross-validated squared error.

    The objective is the log of the error plus the prior's penalty times `prior_strength`. The last
    element of `theta` is the log of `C`; `Template` describes the other elements.
    """

    def error(theta: Float[Array, " q"]) -> Float[Array, ""]:
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

    held_out, gradient = jax.value_and_grad(error)(theta)
    penalty, penalty_gradient = jax.value_and_grad(prior_penalty)(theta)
    value = jnp.log(held_out) + penalty
    return value, gradient / held_out + penalty_gradient, held_out


def descend(
    run: Evaluator,
    parts: Parts,
    points: Float[Array, "m d"],
    begin: Float[np.ndarray, " q"],
    low: Float[np.ndarray, " q"],
    high: Float[np.ndarray, " q"],
    search: Any,
    budget: int,
    trail: list[tuple[np.ndarray, float]],
) -> None:
    """Minimise the objective of `error_and_gradient` by Adam (Kingma and Ba 2015) within a box.

    The vectors are short, so Adam runs on the host, in float64. The Adam of optax would add 0.2 s
    of import and compilation to a first search of 4 s, and 50 us to each step. Adam's two averages
    have the decay 0.9. With the usual 0.999 for the squares, one steep gradient, such as outliers
    cause, would shorten all later steps.

    The last element of `begin`, `low` and `high` is for log C. An element whose bounds are equal is
    held fixed. `search` is the `Gradient` with the learning rate, the patience and the prior, and
    `budget` the number of evaluations. For each, theta without log C and the objective are appended
    to `trail`.
    """
    theta, dtype, template = np.clip(begin, low, high), run.dtype, run.template
    objective = DescentObjective(template, points, parts, (low < high)[:-1], template.theta)
    strength = np.asarray(search.prior_strength, dtype)

    def slope(theta: np.ndarray) -> Slope:
        # Round to the dtype of the device, so that a resumed run finds the step in its history.
        leaves, C = theta[:-1].astype(dtype).astype(float), float(np.exp(theta[-1]))

        def evaluate() -> Slope:
            point = np.append(leaves, np.log(C)).astype(dtype)
            value, gradient, error = error_and_gradient(objective, point, strength)
            value, gradient = float(value), np.asarray(gradient, float)
            if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
                return Slope(np.inf, np.zeros(len(point)), np.inf)
            return Slope(value, gradient, float(error))

        result = run.slope(leaves, C, evaluate)
        trail.append((leaves, result.value))
        return result

    # The profile chose `C` for the metric. The best `C` for the squared error may be far smaller.
    # So divide `C` by 10 as long as the squared error falls.
    current, log_ten = slope(theta), np.append(np.zeros(len(theta) - 1), np.log(10.0))
    while len(trail) < budget and theta[-1] - log_ten[-1] > low[-1]:
        at_smaller_C = slope(theta - log_ten)
        if not at_smaller_C.value < current.value:
            break
        current, theta = at_smaller_C, theta - log_ten
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    least, steps_without_improvement, steps = current.value, 0, budget - len(trail)
    initial_rate = search.learning_rate * max(1.0, STEPS / budget) ** REACH
    for i in range(steps):
        if steps_without_improvement >= search.patience or not np.isfinite(current.value):
            return
        mean = 0.9 * mean + 0.1 * current.gradient
        square = 0.9 * square + 0.1 * np.square(current.gradient)
        rms_gradient = np.sqrt(square / (1 - 0.9 ** (i + 1))) + 1e-8
        rate = initial_rate * decay(i / steps)
        theta = np.clip(theta - rate * mean / (1 - 0.9 ** (i + 1)) / rms_gradient, low, high)
        current, steps_without_improvement = slope(theta), steps_without_improvement + 1
        if current.value < least:
            least, steps_without_improvement = current.value, 0


def decay(progress: float) -> float:
    """Return the factor of the learning rate: 1, falling to 0 over the last `DECAY` of the steps.

    `progress` is the share of the steps made so far. Steps that shrink from the start would not
    reach the long lengthscales of irrelevant columns.
    """
    return min(1.0, (1 - progress) / DECAY)
