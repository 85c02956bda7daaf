"""Regression with the quantile and Huber's loss, by a primal-dual interior-point method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import rows_in_block, sum_row_blocks
from .._numerics import dot, dot_over_rows, epsilon, exponents, times_power
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .definite import Factor, factorise

# For the quantile loss, a row whose residual is below this fraction of the median has weight 1.
SMOOTHING = 1e-3
# Standard deviation of a normal distribution, in units of its median absolute deviation.
MEDIAN_TO_DEVIATION = 1.4826
TUNING = 1.345  # Huber's threshold in standard deviations: 95 % efficient for normal noise
PER_MEDIAN = TUNING * MEDIAN_TO_DEVIATION  # Huber's threshold in medians of |e|, for normal noise
_FRACTION = 0.99  # of the step to the nearest bound
_JOINT_STEPS = 30  # first steps, in which Newton's method moves threshold and solution together


class Problem(NamedTuple):
    """The problem of one output, in units in which targets and row weights are of order one.

    Minimise `ridge/2 |w|^2 + sum_i weight_i l(e_i)` with `e = y - Phi w - b`. The loss `l(e)` is
    twice the pinball loss of a quantile q, `max(2 q e, 2 (q - 1) e)`, and `|e|` for the median; or
    half of Huber's loss: `e^2 / 2` up to a threshold d, and `d |e| - d^2 / 2` beyond.
    """

    Phi: Float[Array, "n p"]
    y: Float[Array, " n"]
    w: Float[Array, " n"]
    ridge: Float[Array, ""]
    quantile: Float[Array, ""] | None  # q; None for Huber's loss
    threshold: Float[Array, ""] | None  # Huber's d; None if the residuals determine it

    __repr__ = short_repr

    def slopes(self, d: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the largest `l'`, and the largest `-l'`, of all residuals, given Huber's d."""
        return (d, d) if self.quantile is None else slopes(self.quantile)


class State(NamedTuple):
    """A primal-dual interior-point iteration on a `Problem`.

    The dual variables are `a_i = l'(e_i)`, between `-s` and `t`. For the quantile loss `s = 2 - 2
    q`, `t = 2 q` and `u_i - v_i = e_i`; for Huber's loss `s = t = d` and `u_i - v_i = e_i - a_i`.
    At the optimum `ridge w = Phi' (weight a)`, `sum weight a = 0`, `u (t - a) = 0` and `v (s + a) =
    0`.
    """

    weights: Float[Array, " p"]  # w
    intercept: Float[Array, ""]  # b
    residual: Float[Array, " n"]  # e
    above: Float[Array, " n"]  # u
    below: Float[Array, " n"]  # v
    dual: Float[Array, " n"]  # a
    to_top: Float[Array, " n"]  # t - a
    to_bottom: Float[Array, " n"]  # s + a
    threshold: Float[Array, ""]  # d, or 1 for the quantile loss: half of s + t
    median_row: Int[Array, ""]  # the row whose |e| is the median
    gradient: Float[Array, " p"]  # ridge w - Phi' (weight a)
    imbalance: Float[Array, ""]  # sum weight a
    gap: Float[Array, ""]  # distance from the optimum, relative to its size
    gradient_gap: Float[Array, ""]  # share of the gradient and the imbalance in the gap
    threshold_gap: Float[Array, ""]  # share of the threshold in the gap
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class Solution(NamedTuple):
    """A machine of one output in the caller's units."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    residual: Float[Array, " n"]
    threshold: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def default_tolerance(dtype: jnp.dtype) -> float:
    """Return the relative duality gap at which to stop: 1e-6, or the root of epsilon if larger."""
    return max(1e-6, epsilon(dtype) ** 0.5)


def slopes(quantile: Float[Array, "*c"]) -> tuple[Float[Array, "*c"], Float[Array, "*c"]]:
    """Return the absolute slopes of twice the pinball loss, above and below its minimum."""
    return 2 * quantile, 2 * (1 - quantile)


def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    tolerance: Float[Array, ""],
    *,
    quantile: Float[Array, ""] | None,
    threshold: Float[Array, ""] | None = None,
    max_iterations: int | Int[Array, ""] = 200,
    block_rows: int | None = None,
) -> Solution:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi_i'w - b)` for one output.

    Args:
        Phi: features, shape `n p`. Rows of weight 0 may hold anything.
        y: targets.
        w: row weights, at least 0.
        C: weight of the data-fit term.
        tolerance: largest duality gap, relative to the objective.
        quantile: q, for the loss `L(e) = max(2 q e, 2 (q - 1) e)`. None for Huber's loss: `e^2` up
            to the threshold d and `2 d |e| - d^2` beyond.
        threshold: Huber's d. None stands for `TUNING` standard deviations of the final residuals.
        max_iterations: limit of steps.
        block_rows: number of rows that the sums process at a time (static).

    Returns:
        `Solution`. For the quantile loss its threshold is `SMOOTHING` times the median `|e|`. The
        status is `CONVERGED`, `EXHAUSTED` at the limit of steps, `PRECISION_LOST` if rounding keeps
        the gap above the tolerance, or `NOT_FINITE`.

    Pure; not differentiable in reverse mode.
    """
    problem, centre, fraction, exponent = scaled_problem(Phi, y, w, C, quantile, threshold)
    state = init(problem, tolerance)
    state = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(problem, state, tolerance, max_iterations, block_rows),
        state,
    )
    weights = times_power(fraction * state.weights[None], exponent)[0]
    intercept = times_power(fraction * state.intercept[None], exponent)[0] + centre
    delta = state.threshold
    if quantile is not None:
        median = weighted_quantile(jnp.abs(state.residual), w)
        delta = jnp.maximum(SMOOTHING * median, epsilon(y.dtype))
    delta = times_power(fraction * delta[None], exponent)[0] if threshold is None else threshold
    residual = y - dot(Phi, weights) - intercept
    return Solution(weights, intercept, residual, delta, state.steps, state.status)


def scaled_problem(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    quantile: Float[Array, ""] | None,
    threshold: Float[Array, ""] | None = None,
) -> tuple[Problem, Float[Array, ""], Float[Array, ""], Int[Array, " 1"]]:
    """Return the scaled problem, and its `centre`, `fraction` and `exponent`.

    The targets are `y = centre + fraction 2^exponent problem.y`. The centre is the quantile of the
    targets, for Huber's loss the median. `fraction 2^exponent` is the exact median of the nonzero
    `|y - centre|`, so steps and stopping rule do not depend on the unit of the targets.
    """
    present = w > 0
    largest_weight = jnp.max(w)
    w = w / largest_weight
    targets = jnp.where(present, y, jnp.max(y, where=present, initial=-jnp.inf))
    centre = weighted_quantile(targets, w, 0.5 if quantile is None else quantile)
    y = jnp.where(present, y - centre, 0)
    size = jnp.abs(y)
    # Rows at the centre carry no information about the scale, however many there are.
    median = weighted_quantile(size, jnp.where(size > 0, w, 0))[None]
    exponent = exponents(median)
    fraction = times_power(median, -exponent)[0]
    fraction = jnp.where(fraction > 0, fraction, 1)
    y = times_power(y[None], -exponent)[0] / fraction
    # The squares of residuals must be finite. The loss is linear far below this bound.
    info = jnp.finfo(y.dtype)
    bound = 2.0 ** (info.maxexp // 2 - 8)
    y = jnp.clip(y, -bound, bound)
    ridge = 1 / C / largest_weight
    if quantile is not None:
        ridge = times_power(2 * fraction * ridge[None], exponent)[0]
    ridge = jnp.clip(ridge, info.tiny, 1 / info.tiny / 16)
    if threshold is not None:
        # At the optimum no row's `weight_i l(e_i)` exceeds the total loss of the constant model,
        # which bounds every |e_i|. A threshold above this bound gives the least-squares solution,
        # as the bound does.
        smallest_weight = jnp.min(w, where=w > 0, initial=1)
        largest_residual = jnp.linalg.norm(jnp.sqrt(w) * y) / jnp.sqrt(smallest_weight)
        threshold = times_power(threshold[None], -exponent)[0] / fraction
        threshold = jnp.minimum(threshold, jnp.clip(largest_residual, 1, bound))
    Phi = jnp.where(present[:, None], Phi, 0)  # the targets of other rows may be of any size
    return Problem(Phi, y, w, ridge, quantile, threshold), centre, fraction, exponent


def init(problem: Problem, tolerance: Float[Array, ""]) -> State:
    """Return a start on the central path: the constant model."""
    y, dtype = problem.y, problem.y.dtype
    top = jnp.ones((), dtype)
    if problem.quantile is None:
        top = top * PER_MEDIAN if problem.threshold is None else problem.threshold
    # On the central path u (t - a) = v (s + a) = (s + t) / 2, with u - v = y.
    size = jnp.abs(y)
    large = (size + 1 + jnp.hypot(jnp.ones((), dtype), size)) / 2
    near = top / large
    small = top / (2 * top - near)
    up = y >= 0
    upper, lower = problem.slopes(top)
    start = State(
        weights=jnp.zeros(problem.Phi.shape[1], dtype),
        intercept=jnp.zeros((), dtype),
        residual=y,
        above=jnp.where(up, large, small),
        below=jnp.where(up, small, large),
        dual=jnp.where(up, upper - near, near - lower),
        to_top=jnp.where(up, near, 2 * top - near),
        to_bottom=jnp.where(up, 2 * top - near, near),
        threshold=top,
        median_row=jnp.zeros((), jnp.int32),
        gradient=jnp.zeros(problem.Phi.shape[1], dtype),
        imbalance=jnp.zeros((), dtype),
        gap=jnp.zeros((), dtype),
        gradient_gap=jnp.zeros((), dtype),
        threshold_gap=jnp.zeros((), dtype),
        steps=jnp.zeros((), jnp.int32),
        status=jnp.zeros((), jnp.int32),
    )
    state = _with_gap(problem, start)
    # Constant targets have a constant model.
    solved = (state.gap <= tolerance) | jnp.all(y == 0)
    status = jnp.where(solved, CONVERGED, RUNNING)
    status = jnp.where(jnp.isfinite(state.gap), status, NOT_FINITE).astype(jnp.int32)
    return state._replace(status=status)


class System(NamedTuple):
    """Newton's equations of a step, whose matrix is factorised once."""

    D: Float[Array, " n"]  # da = D (de - rho), with rho from the requested products
    weighted_D: Float[Array, " n"]  # D times the row weights
    curvature: int  # l'' between the bounds: 1 for Huber's loss, 0 for the quantile loss
    feature_sum: Float[Array, " p"]
    weight_sum: Float[Array, ""]
    factor: Factor
    derivative: tuple[Array, Array, Array] | None  # of `_newton`'s result in the threshold
    slope: Float[Array, ""]  # derivative of the estimated threshold in the median residual
    frozen: Bool[Array, ""]  # whether this step holds the threshold fixed

    __repr__ = short_repr


def step(
    problem: Problem,
    state: State,
    tolerance: Float[Array, ""],
    max_iterations: int | Int[Array, ""],
    block_rows: int | None,
) -> State:
    """Step towards the optimum, then correct towards the central path, with one factorisation."""
    w, zeros = problem.w, jnp.zeros_like(problem.w)
    u, v, top, bottom = state.above, state.below, state.to_top, state.to_bottom
    system = _system(problem, state, block_rows)
    predictor = _direction(problem, state, system, zeros, zeros)
    t = 1 / jnp.maximum(_inverse_step(problem, state, predictor), 1)
    du, dv, dtop, dbottom = predictor[4:]
    current = jnp.sum(w * (u * top + v * bottom))
    predicted = jnp.sum(
        w * ((u + t * du) * (top + t * dtop) + (v + t * dv) * (bottom + t * dbottom))
    )
    # Mehrotra's product of the pairs on the central path; the corrections are of second order.
    central = (predicted / current) ** 3 * current / (2 * jnp.sum(w))
    corrector = _direction(problem, state, system, central - du * dtop, central - dv * dbottom)
    t = _FRACTION / jnp.maximum(_inverse_step(problem, state, corrector), _FRACTION)
    after = _with_gap(problem, _take_step(problem, state, corrector, t))
    status = jnp.where(after.steps >= max_iterations, EXHAUSTED, RUNNING)
    # Without rounding, a step of length t multiplies the residuals of the equations by 1 - t.
    slow = after.gradient_gap > state.gradient_gap / 2
    stalled = (after.gap - after.gradient_gap <= tolerance) & slow
    status = jnp.where(stalled, PRECISION_LOST, status)
    status = jnp.where(after.gap <= tolerance, CONVERGED, status).astype(jnp.int32)
    # If the step is not finite, the result is the iterate before it.
    finite = jnp.isfinite(after.gap)
    lost = state._replace(status=jnp.full((), PRECISION_LOST, jnp.int32), steps=after.steps)
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), after._replace(status=status), lost)


def _system(problem: Problem, state: State, block_rows: int | None) -> System:
    """Return Newton's equations at an iterate, with their matrix factorised."""
    Phi, w = problem.Phi, problem.w
    u, v, top, bottom = state.above, state.below, state.to_top, state.to_bottom
    p = Phi.shape[1]
    curvature = 1 if problem.quantile is None else 0
    D = 1 / (u / top + v / bottom + curvature)
    weighted_D = jnp.where(w > 0, w * D, 0)

    def products(Phi: Float[Array, "r p"], row_weights: Float[Array, " r"]) -> Float[Array, "q q"]:
        extended = jnp.concatenate([Phi, jnp.ones_like(row_weights)[:, None]], axis=1)
        return dot_over_rows(extended, extended * row_weights[:, None])

    zero = jnp.zeros((p + 1, p + 1), Phi.dtype)
    sums = sum_row_blocks(products, (Phi, weighted_D), zero, rows_in_block(block_rows))
    f, N = sums[:p, p], sums[p, p]
    factor = factorise(sums[:p, :p] - f[:, None] * f[None, :] / N, problem.ridge)
    false = jnp.zeros((), bool)
    system = System(D, weighted_D, curvature, f, N, factor, None, jnp.zeros((), Phi.dtype), false)
    if problem.quantile is not None or problem.threshold is not None:
        return system
    row_derivatives = weighted_D * (u / top - v / bottom)
    derivative = _newton(Phi, system, dot(Phi.T, row_derivatives), jnp.sum(row_derivatives))
    # At first Newton's method treats the median as the residual of one row. This may alternate
    # between rows for ever. So after `_JOINT_STEPS` steps the threshold is held fixed, and set to
    # the median whenever the solution for the present threshold is near.
    separate = state.steps >= _JOINT_STEPS
    median = state.residual[state.median_row]
    smooth = ~separate & (PER_MEDIAN * jnp.abs(median) >= least_threshold(Phi.dtype))
    slope = jnp.where(smooth, PER_MEDIAN * jnp.sign(median), 0)
    frozen = separate & (state.gap - state.threshold_gap > 0.1)
    return system._replace(derivative=derivative, slope=slope, frozen=frozen)


def _newton(
    Phi: Float[Array, "n p"],
    system: System,
    weights_rhs: Float[Array, " p"],
    intercept_rhs: Float[Array, ""],
) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " n"]]:
    """Solve Newton's equations; return the changes of weights, intercept and residuals."""
    f, N = system.feature_sum, system.weight_sum
    weights = system.factor.solve((weights_rhs - f * (intercept_rhs / N))[:, None])[:, 0]
    intercept = (intercept_rhs - dot(f, weights)) / N
    return weights, intercept, -dot(Phi, weights) - intercept


def _direction(
    problem: Problem,
    state: State,
    system: System,
    upper: Float[Array, " n"],
    lower: Float[Array, " n"],
) -> tuple[Array, ...]:
    """Return the Newton step to `u (t - a) = upper` and `v (s + a) = lower`.

    The tuple holds the steps of `weights`, `intercept`, `threshold`, `dual`, `above`, `below`,
    `to_top` and `to_bottom`, the fields of `State`. The last four must stay non-negative.
    """
    Phi, D, curvature = problem.Phi, system.D, system.curvature
    u, v, top, bottom = state.above, state.below, state.to_top, state.to_bottom
    rho = upper / top - u - lower / bottom + v
    weighted_rho = system.weighted_D * rho
    direction = _newton(
        Phi,
        system,
        -state.gradient - dot(Phi.T, weighted_rho),
        state.imbalance - jnp.sum(weighted_rho),
    )
    d = jnp.zeros((), Phi.dtype)
    if system.derivative is not None:
        derivative, slope = system.derivative, system.slope
        row = state.median_row
        change = _estimated_threshold(state) - state.threshold + slope * direction[2][row]
        # Short steps approach a fixed point even if it is repelling.
        d = change / jnp.maximum(1 - slope * derivative[2][row], 0.1)
        d = jnp.clip(d, -0.7 * state.threshold, 3 * state.threshold)
        d = jnp.where(system.frozen, 0, d)
        direction = tuple(x + d * by for x, by in zip(direction, derivative, strict=True))
    weights, intercept, e = direction
    x = e - rho
    dual = D * ((u / top - v / bottom) * d + x)
    # `t - a` and `s + a` are updated separately: for an outlier one is smaller than the rounding of
    # the other.
    to_top = D * ((2 * v / bottom + curvature) * d - x)
    to_bottom = D * ((2 * u / top + curvature) * d + x)
    above = upper / top - u - u / top * to_top
    below = lower / bottom - v - v / bottom * to_bottom
    return weights, intercept, d, dual, above, below, to_top, to_bottom


def _inverse_step(problem: Problem, state: State, moves: tuple[Array, ...]) -> Float[Array, ""]:
    """Return the reciprocal of the largest step that keeps every component non-negative."""
    bounded = state.above, state.below, state.to_top, state.to_bottom
    ratios = [-dx / x for dx, x in zip(moves[4:], bounded, strict=True)]
    return jnp.max(jnp.where(problem.w > 0, jnp.max(jnp.stack(ratios), axis=0), 0))


def _take_step(
    problem: Problem, state: State, moves: tuple[Array, ...], t: Float[Array, ""]
) -> State:
    """Return the state after the fraction `t` of the step."""
    w = problem.w
    weights = state.weights + t * moves[0]
    intercept = state.intercept + t * moves[1]
    bounded = state.above, state.below, state.to_top, state.to_bottom
    above, below, top, bottom = (
        jnp.where(w > 0, x + t * dx, 1) for x, dx in zip(bounded, moves[4:], strict=True)
    )
    return state._replace(
        weights=weights,
        intercept=intercept,
        residual=jnp.where(w > 0, problem.y - dot(problem.Phi, weights) - intercept, 0),
        above=above,
        below=below,
        dual=jnp.where(w > 0, state.dual + t * moves[3], 0),
        to_top=top,
        to_bottom=bottom,
        threshold=state.threshold + t * moves[2],
        steps=state.steps + 1,
    )


def least_threshold(dtype: jnp.dtype) -> float:
    """Return a positive lower bound of the threshold: most targets of order one may be equal."""
    return epsilon(dtype) ** (2 / 3)


def _estimated_threshold(state: State) -> Float[Array, ""]:
    """Return Huber's d, estimated as the multiple `PER_MEDIAN` of the median `|e|`."""
    median = jnp.abs(state.residual[state.median_row])
    return jnp.maximum(PER_MEDIAN * median, least_threshold(median.dtype))


def _with_gap(problem: Problem, state: State) -> State:
    """Return the state with `u - v` matched to the residuals, and its gaps to the optimum."""
    w, top, e = problem.w, state.threshold, state.residual
    upper, lower = problem.slopes(top)
    nearest = jnp.minimum(state.to_top, state.to_bottom)
    bound = jnp.where(state.to_top < state.to_bottom, upper - nearest, nearest - lower)
    # Far from the bounds, a bound less the nearest distance would leave only the bound's rounding.
    dual = jnp.where(nearest < top / 2, bound, state.dual)
    difference = e - dual if problem.quantile is None else e  # u - v
    above = jnp.where(difference >= 0, state.below + difference, state.above)
    below = jnp.where(difference >= 0, state.below, state.above - difference)
    weighted_duals = w * dual
    gradient = problem.ridge * state.weights - dot(problem.Phi.T, weighted_duals)
    imbalance = jnp.sum(weighted_duals)
    # The sums cannot show the distance of an outlier: u (t - a) may be small although u is large.
    # If the bounds are far from a, u (t - a) is d times rounding, whereas Huber's loss errs by only
    # (u - v)^2 / 2. The distances to the bounds are therefore limited.
    largest_distance = jnp.maximum(jnp.abs(difference), 2)
    to_top, to_bottom = (jnp.minimum(x, largest_distance) for x in (state.to_top, state.to_bottom))
    products = jnp.sum(w * (above * to_top + below * to_bottom))
    slope = jnp.minimum(top, 1)  # of the loss at the median residual
    gradient_gap = jnp.sum(jnp.square(gradient)) / (2 * problem.ridge) + jnp.abs(imbalance) * slope
    size = jnp.minimum(jnp.abs(e), 1)
    losses = jnp.where(e >= 0, upper, lower) * size
    threshold_gap, median_row = jnp.zeros_like(top), state.median_row
    if problem.quantile is None:
        quadratic_part = jnp.minimum(size, top)
        losses = quadratic_part * (size - quadratic_part / 2)
        if problem.threshold is None:
            median_row = _quantile_row(jnp.abs(e), w, 0.5).astype(jnp.int32)
            threshold_error = _estimated_threshold(state._replace(median_row=median_row)) - top
            threshold_gap = jnp.abs(threshold_error) * jnp.sum(w * size)
    total = problem.ridge * jnp.sum(jnp.square(state.weights)) / 2 + jnp.sum(w * losses)
    total = jnp.where(total > 0, total, 1)
    # The rounding error of residuals is the epsilon of the targets, which are of order one.
    rounding = 4 * epsilon(e.dtype) * slope * jnp.sum(w)
    return state._replace(
        above=above,
        below=below,
        dual=dual,
        median_row=median_row,
        gradient=gradient,
        imbalance=imbalance,
        gap=jnp.maximum(products + gradient_gap + threshold_gap - rounding, 0) / total,
        gradient_gap=jnp.maximum(gradient_gap - rounding, 0) / total,
        threshold_gap=threshold_gap / total,
    )


def _quantile_row(
    values: Float[Array, " n"], w: Float[Array, " n"], quantile: float | Float[Array, ""]
) -> Int[Array, ""]:
    """Return the index of the row whose value is the weighted quantile."""
    order = jnp.argsort(values)
    cumulative_weight = jnp.cumsum(w[order])
    return order[jnp.searchsorted(cumulative_weight, cumulative_weight[-1] * quantile)]


def weighted_quantile(
    values: Float[Array, " n"], w: Float[Array, " n"], quantile: float | Float[Array, ""] = 0.5
) -> Float[Array, ""]:
    """Return the smallest value up to which the values have the share `quantile` of the weight."""
    return values[_quantile_row(values, w, quantile)]
