"""Fixed-size machines with losses that outliers cannot dominate."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_row_blocks, rows_in_block
from .._numerics import dot, epsilon, is_concrete, like
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap, Linear
from ..normal_equations import accumulate
from ..solvers.definite import solve_definite
from .fixed_size import check_penalty, check_problem, in_one_dtype

Loss = Literal["absolute", "huber"]
SMOOTHING = 1e-3  # of the typical residual: below it the absolute loss is rounded off
TUNING = 1.345  # Huber's threshold in standard deviations: 95 % efficient for normal noise


class State(NamedTuple):
    """Iteratively reweighted least squares on features; the rows stay outside."""

    weights: Float[Array, " p"]  # w
    intercept: Float[Array, ""]  # b
    residual: Float[Array, " n"]  # y - Phi w - b
    threshold: Float[Array, ""]  # delta: residuals beyond count by their size, not their square
    objective: Float[Array, ""]  # 1/2 |w|^2 + C/2 sum_i weight_i L(e_i)
    steps: Int[Array, ""]
    status: Int[Array, ""]


class RobustFit(NamedTuple):
    """A fitted machine and how it came about."""

    expansion: KernelExpansion
    row_weights: Float[Array, "n *c"]  # of the last least-squares problem, 1 for rows that fit
    threshold: Float[Array, "*c"]
    objective: Float[Array, "*c"]
    steps: Int[Array, ""]  # of the output that took most
    status: Int[Array, ""]  # the worst over outputs


def fit(
    feature_map: FeatureMap,
    C: ScalarLike | Float[Array, " c"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None = None,
    *,
    loss: Loss = "absolute",
    threshold: ScalarLike | None = None,
    tolerance: ScalarLike | None = None,
    max_steps: int = 200,
    block_rows: int | None = None,
) -> RobustFit:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi(x_i)'w - b)` (De Brabanter 2010, eq. 6).

    - "absolute": `L(e) = |e|`, the L1 loss of Section 3.2, rounded off below `SMOOTHING` times the
      median size of the least-squares residuals (the paper solves a quadratic program).
    - "huber": `L(e) = e^2` up to a threshold d and `2 d |e| - d^2` beyond: least squares for the
      rows that fit, absolute for the others.

    Each step is a weighted least-squares problem, whose objective touches the true one from above
    at the last solution, so the objective never rises.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weight of the data-fit term, positive; or one for each output, shape `c`.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several, each on its own.
        weights: row weights, shape `n`, or each output's own, shape `n c`; at least 0.
        loss: "absolute" or "huber".
        threshold: Huber's d, in units of y. By default `TUNING` times the standard deviation that
            the median size of the residuals stands for, taken anew at every step.
        tolerance: stop when a step lowers the objective by no more than this part of it; by default
            1e-6, or what the dtype can resolve.
        max_steps: cap (static).
        block_rows: rows at a time in the sums.

    Memory `n p` for the features. Pure; works under `jit` and `vmap`. Not differentiable in reverse
    mode (an iteration of unknown length).

    Raises:
        ValueError: as `fixed_size.fit`, or if the loss is unknown or the threshold not positive.
    """
    if loss not in ("absolute", "huber"):
        raise ValueError(f"loss: expected 'absolute' or 'huber', got {loss!r}")
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, y, weights)
    n = X.shape[0]
    own = [None] if weights is None else list(weights.reshape(n, -1).T)
    for w in own:
        check_problem(None, C, X, y, w)
    if threshold is not None and is_concrete(threshold) and not threshold > 0:
        raise ValueError(f"threshold: expected a positive number, got {threshold}")
    columns = y.reshape(n, -1)
    w = jnp.ones(n, X.dtype) if weights is None else weights
    w = jnp.broadcast_to(w.reshape(n, -1), columns.shape)
    each = jnp.broadcast_to(jnp.asarray(C, X.dtype), columns.shape[1:])
    least = 8 * epsilon(X.dtype)
    tol = max(1e-6, least) if tolerance is None else tolerance
    delta = None if threshold is None else like(threshold, X)
    fitted = _fit(
        feature_map, each, X, columns, w, delta, like(tol, X), loss, max_steps, block_rows
    )
    if y.ndim == 2:
        return fitted
    # One output: without its axis.
    model = fitted.expansion
    expansion = KernelExpansion(
        model.kernel, model.prototypes, model.coefficients[:, 0], model.intercept[0]
    )
    return fitted._replace(
        expansion=expansion,
        row_weights=fitted.row_weights[:, 0],
        threshold=fitted.threshold[0],
        objective=fitted.objective[0],
    )


@functools.partial(jax.jit, static_argnames=("loss", "max_steps", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, " c"],
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, "n c"],
    threshold: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    loss: Loss,
    max_steps: int,
    block_rows: int | None,
) -> RobustFit:
    Phi = map_row_blocks(feature_map, X, rows_in_block(block_rows))

    def output(of: tuple[Array, Array, Array]) -> tuple[State, Float[Array, " n"]]:
        target, seen, c = of
        options: dict = {"loss": loss, "threshold": threshold, "block_rows": block_rows}
        state = init(Phi, target, seen, c, **options)
        state = run(state, Phi, target, seen, c, tolerance, max_steps=max_steps, **options)
        top = 2 * state.threshold if loss == "absolute" else 1
        return state, row_weights(state, loss) * top

    state, own = jax.lax.map(output, (y.T, w.T, C))
    return RobustFit(
        expansion=feature_map.expansion(state.weights.T, state.intercept),
        row_weights=own.T,
        threshold=state.threshold,
        objective=state.objective,
        steps=jnp.max(state.steps),
        status=jnp.max(state.status),
    )


def init(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    *,
    loss: Loss,
    threshold: Float[Array, ""] | None = None,
    block_rows: int | None = None,
) -> State:
    """Least squares with the rows' own weights."""
    weights, intercept, residual, lost = _least_squares(Phi, y, w, C, block_rows)
    delta = _threshold(loss, threshold, residual, w)
    # Most rows fitted to rounding by least squares: there is nothing to reweight.
    size = epsilon(y.dtype) * jnp.max(jnp.where(w > 0, jnp.abs(y), 0))
    done = weighted_median(jnp.abs(residual), w) <= 8 * size
    status = jnp.where(done, CONVERGED, RUNNING)
    status = jnp.where(lost, PRECISION_LOST, status).astype(jnp.int32)
    objective = _objective(loss, weights, residual, w, C, delta)
    zero = jnp.zeros((), jnp.int32)
    return State(weights, intercept, residual, delta, objective, zero, status)


def step(
    state: State,
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    tolerance: Float[Array, ""],
    *,
    loss: Loss,
    threshold: Float[Array, ""] | None = None,
    max_steps: int = 200,
    block_rows: int | None = None,
) -> State:
    """Least squares with rows weighted by how well they fit."""
    own = row_weights(state, loss)
    weights, intercept, residual, lost = _least_squares(Phi, y, w * own, C, block_rows)
    delta = state.threshold
    if loss == "huber":
        delta = _threshold(loss, threshold, residual, w)
    objective = _objective(loss, weights, residual, w, C, delta)
    steps = state.steps + 1
    status = jnp.where(steps >= max_steps, EXHAUSTED, RUNNING)
    # With a threshold that moves, the objective is not of one function: any change counts.
    change = jnp.abs(state.objective - objective)
    status = jnp.where(change <= tolerance * jnp.abs(objective), CONVERGED, status)
    status = jnp.where(lost, PRECISION_LOST, status)
    status = jnp.where(jnp.isfinite(objective), status, NOT_FINITE).astype(jnp.int32)
    return State(weights, intercept, residual, delta, objective, steps, status)


def run(
    state: State,
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    tolerance: Float[Array, ""],
    *,
    loss: Loss,
    threshold: Float[Array, ""] | None = None,
    max_steps: int = 200,
    block_rows: int | None = None,
) -> State:
    """Steps until the status is no longer `RUNNING`."""
    return jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(
            state, Phi, y, w, C, tolerance, loss=loss, threshold=threshold, max_steps=max_steps,
            block_rows=block_rows,
        ),
        state,
    )  # fmt: skip


def row_weights(state: State, loss: Loss) -> Float[Array, " n"]:
    """`L'(e) / 2e`: 1 / 2|e| for the absolute loss, min(1, d / |e|) for Huber's."""
    size = jnp.maximum(jnp.abs(state.residual), state.threshold)
    return 1 / (2 * size) if loss == "absolute" else state.threshold / size


def _threshold(
    loss: Loss,
    threshold: Float[Array, ""] | None,
    residual: Float[Array, " n"],
    w: Float[Array, " n"],
) -> Float[Array, ""]:
    if loss == "huber" and threshold is not None:
        return threshold
    typical = weighted_median(jnp.abs(residual), w)
    largest = jnp.max(jnp.where(w > 0, jnp.abs(residual), 0))
    # If nothing is left over, any number will do.
    floor = jnp.where(largest > 0, epsilon(residual.dtype) * largest, 1)
    # Median of |e| to standard deviation, for normal noise.
    factor = SMOOTHING if loss == "absolute" else TUNING * 1.4826
    return jnp.maximum(factor * typical, floor)


def weighted_median(values: Float[Array, " n"], w: Float[Array, " n"]) -> Float[Array, ""]:
    """The smallest value up to which lies half of the weight."""
    order = jnp.argsort(values)
    reached = jnp.cumsum(w[order])
    return values[order[jnp.searchsorted(reached, reached[-1] / 2)]]


def _objective(
    loss: Loss,
    weights: Float[Array, " p"],
    residual: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    threshold: Float[Array, ""],
) -> Float[Array, ""]:
    size = jnp.abs(residual)
    square, linear = jnp.square(size), 2 * threshold * size - jnp.square(threshold)
    losses = jnp.where(size <= threshold, square, linear)
    if loss == "absolute":  # the same, scaled to a slope of one
        losses = losses / (2 * threshold)
    return jnp.sum(jnp.square(weights)) / 2 + C / 2 * jnp.sum(w * losses)


def _least_squares(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    block_rows: int | None,
) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " n"], Array]:
    p = Phi.shape[1]
    sums = accumulate(Linear(jnp.zeros(p, Phi.dtype)), Phi, y, w, block_rows=block_rows)
    f, N, t = sums.feature_sum, sums.weight_sum, sums.target_sum
    centred = sums.gram - f[:, None] * f[None, :] / N
    solved = solve_definite(centred, (sums.cross - f * t / N)[:, None], 1 / C)
    weights = solved.x[:, 0]
    intercept = (t - dot(f, weights)) / N
    residual = y - dot(Phi, weights) - intercept
    return weights, intercept, residual, solved.lost
