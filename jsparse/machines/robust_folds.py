"""Fit machines with Huber's loss without each fold, by steps from the machine of all rows.

An interior-point method takes some twenty sums of `n p^2` products for each fold and `C`. Here all
folds and `C` share the sums over all rows. A fold takes some tens of steps of `n p` operations.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_row_blocks, rows_in_block
from .._numerics import dot, dot_over_rows, like, present_rows
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING, TRUNCATED
from ..features import FeatureMap
from ..solvers.definite import factorise
from ..solvers.robust import PER_MEDIAN, least_threshold, weighted_quantile
from .held_out import HeldOut, OnFold, each_fold
from .rows import FoldLayout, Rows

TOLERANCE = 1e-4  # length of the last step: far below the noise of held-out errors
STEPS = 3000  # limit of the steps of one machine; most take fewer than 100
FREE_STEPS = 20  # steps in which the threshold is computed from the current residuals
START_DISTANCE = 5.0  # thresholds from the median at which targets are clipped for the first fit

# Returns the weights and the intercept of a ridge machine, given the weighted sums over rows of
# `target * phi` and of `target`.
Solver = Callable[[Array, Array], tuple[Array, Array]]


class System(NamedTuple):
    """Sums over rows with features `phi` and weights `w`."""

    products: Float[Array, "p p"]  # sum of w phi phi'
    features: Float[Array, " p"]  # sum of w phi
    total: Float[Array, ""]  # sum of w

    __repr__ = short_repr

    def solver(self, C: Float[Array, ""]) -> Solver:
        """Return the `Solver` of ridge regression, with the ridge `1/C` on the weights."""
        f, N = self.features, jnp.maximum(self.total, jnp.finfo(self.total.dtype).tiny)
        factor = factorise(self.products - f[:, None] * f[None] / N, 1 / C)

        def solve(
            features: Float[Array, " p"], total: Float[Array, ""]
        ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
            weights = factor.solve((features - f * (total / N))[:, None])[:, 0]
            return weights, (total - dot(f, weights)) / N

        return solve


def sums(Phi: Float[Array, "r p"], w: Float[Array, " r"]) -> System:
    """Return the `System` of rows with weights `w`."""
    weighted = Phi * w[:, None]
    return System(dot_over_rows(Phi, weighted), jnp.sum(weighted, axis=0), jnp.sum(w))


class Problem(NamedTuple):
    """Huber's objective of `solvers.robust.solve`, whose threshold follows the residuals."""

    Phi: Float[Array, "n p"]  # features, finite
    y: Float[Array, " n"]  # targets of one output, finite
    w: Float[Array, " n"]  # row weights, at least 0
    C: Float[Array, ""]
    tolerance: Float[Array, ""]  # of a step's root mean square change of residuals, in thresholds
    least: Float[Array, ""]  # lower limit of the threshold

    __repr__ = short_repr

    def threshold(self, residual: Float[Array, " n"]) -> Float[Array, ""]:
        """Return Huber's threshold for the residuals."""
        return jnp.maximum(PER_MEDIAN * weighted_quantile(jnp.abs(residual), self.w), self.least)


class Machine(NamedTuple):
    """A machine, with its residuals at all rows; or the difference of two machines."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    residual: Float[Array, " n"]

    __repr__ = short_repr


class State(NamedTuple):
    """The state of `minimise` after some steps."""

    machine: Machine
    change: Machine  # `machine` less the machine of the previous step
    momentum: Float[Array, ""]  # Nesterov's t, 1 after a restart
    threshold: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def minimise(
    problem: Problem, weights: Float[Array, " p"], intercept: Float[Array, ""], solve: Solver
) -> tuple[Machine, Int[Array, ""]]:
    """Minimise the objective from the given weights and intercept; return machine and stop code.

    `solve` is the `System.solver` of the problem's rows. The sums of all rows, also of outliers,
    bound the curvature of the loss, so a step with `solve` lowers the objective of the current
    threshold. Nesterov's momentum reduces the number of steps to about its square root. It
    restarts where it leads uphill (O'Donoghue and Candes 2015).
    """
    Phi, y, w, C, tolerance, _ = problem

    def step(state: State) -> State:
        t = (1 + jnp.sqrt(1 + 4 * jnp.square(state.momentum))) / 2
        momentum = (state.momentum - 1) / t
        ahead = jax.tree.map(lambda a, b: a + momentum * b, state.machine, state.change)
        # The median may alternate between rows for ever, so later steps average the thresholds.
        e, share = ahead.residual, 1 / jnp.maximum(state.steps - FREE_STEPS, 1).astype(y.dtype)
        d = state.threshold + share * (problem.threshold(e) - state.threshold)
        slopes = w * jnp.clip(e, -d, d)
        move = solve(dot(slopes, Phi) - ahead.weights / C, jnp.sum(slopes))
        move = Machine(*move, -dot(Phi, move[0]) - move[1])
        machine = jax.tree.map(jnp.add, ahead, move)
        change = jax.tree.map(jnp.subtract, machine, state.machine)
        uphill = jnp.sum(w * move.residual * change.residual) < 0
        size = jnp.sqrt(jnp.sum(w * jnp.square(move.residual / d)) / jnp.sum(w))
        status = jnp.where(state.steps + 1 >= STEPS, EXHAUSTED, RUNNING)
        status = jnp.where(size <= tolerance, CONVERGED, status)
        status = jnp.where(jnp.isfinite(size), status, NOT_FINITE).astype(jnp.int32)
        return State(machine, change, jnp.where(uphill, 1, t), d, state.steps + 1, status)

    zero = jnp.zeros((), jnp.int32)
    start = Machine(weights, intercept, y - dot(Phi, weights) - intercept)
    no_change = jax.tree.map(jnp.zeros_like, start)
    d = problem.threshold(start.residual)
    first = State(start, no_change, jnp.ones((), y.dtype), d, zero, zero + RUNNING)
    last = jax.lax.while_loop(lambda state: state.status == RUNNING, step, first)
    return last.machine, last.status


def fit_all(problem: Problem, solve: Solver) -> tuple[Machine, Int[Array, ""]]:
    """Fit to all rows; return machine and stop code. `solve` is as for `minimise`.

    The start is ridge regression on targets clipped about their median.
    """
    centre = weighted_quantile(problem.y, problem.w)
    distance = START_DISTANCE * problem.threshold(problem.y - centre)
    targets = problem.w * jnp.clip(problem.y, centre - distance, centre + distance)
    ridge = solve(dot(targets, problem.Phi), jnp.sum(targets))
    return minimise(problem, *ridge, solve)


def held_out(
    feature_map: FeatureMap, C: Float[Array, " s"], rows: Rows, folds: FoldLayout, on_fold: OnFold
) -> HeldOut:
    """Predict the rows of each fold by machines with Huber's loss fitted without the fold.

    Arguments are as for `Method.held_out`.
    """
    n, parts = len(rows), rows.by_fold(folds)
    X = present_rows(rows.X, rows.weights, apart=True)
    Phi = map_row_blocks(feature_map, X, rows_in_block(None))
    y = rows.target_columns
    w = jnp.broadcast_to(rows.problem_weights.reshape(n, -1), y.shape)
    y, tolerance = jnp.where(w > 0, y, 0), like(TOLERANCE, y)
    row_numbers, valid = folds.gather(jnp.arange(n, dtype=jnp.int32)), jnp.asarray(folds.valid)

    def one_output(arrays: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        C, y, w = arrays
        distance = jnp.abs(y - weighted_quantile(y, w))
        scale = weighted_quantile(distance, jnp.where(distance > 0, w, 0))
        least = jnp.maximum(least_threshold(y.dtype) * scale, jnp.finfo(y.dtype).tiny)
        problem, all_sums = Problem(Phi, y, w, C, tolerance, least), sums(Phi, w)
        full, full_status = fit_all(problem, all_sums.solver(C))

        def one_fold(fold: tuple[Array, Array]) -> tuple[Array, Array]:
            numbers, in_fold = fold
            is_held_out, features = jnp.zeros(n, bool).at[numbers].max(in_fold), Phi[numbers]
            fold_sums = sums(features, jnp.where(in_fold, w[numbers], 0))
            solve = jax.tree.map(jnp.subtract, all_sums, fold_sums).solver(C)
            without = problem._replace(w=jnp.where(is_held_out, 0, w))
            machine, status = minimise(without, full.weights, full.intercept, solve)
            return dot(features, machine.weights) + machine.intercept, status

        values, status = jax.lax.map(one_fold, (row_numbers, valid))
        energy = jnp.diagonal(all_sums.products) - jnp.square(all_sums.features) / all_sums.total
        lost = jnp.where(feature_map.unresolved(C, energy), TRUNCATED, 0)
        return values, jnp.maximum(jnp.maximum(jnp.max(status), full_status), lost)

    s, outputs = len(C), y.shape[1]
    each = jnp.repeat(C, outputs), jnp.tile(y.T, (s, 1)), jnp.tile(w.T, (s, 1))
    values, status = jax.lax.map(one_output, each)  # (s l) v r
    values = jnp.moveaxis(values.reshape(s, outputs, *row_numbers.shape), (0, 1), (2, 3))
    status = jnp.max(status.reshape(s, outputs), axis=1)
    return each_fold(lambda status, _, values: (values, status), status, values, C, parts, on_fold)
