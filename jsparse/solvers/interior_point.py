"""Support vector machines on explicit features, by a primal-dual interior-point method."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import default_block_rows, map_systems, sum_row_blocks
from .._numerics import dot, epsilon, is_concrete, like, unbatched_lapack
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from .definite import factorise, inverse_of_lower

Hinge = Literal["hinge", "squared_hinge"]

MAX_ITERATIONS = 100
_FRACTION = 0.99  # of the step to the nearest bound
_BLOCK_SIZE = 2**18  # feature values in a block of rows: a megabyte in float32
_PATIENCE = 8  # steps without a clear decrease of the gap, after which the iteration stops


def default_tolerance(dtype: jnp.dtype) -> float:
    """Return a relative duality gap that the dtype can reach.

    It is 1e-10 in float64 and 40 epsilon in float32. The gap is a sum of non-negative terms, so
    float32 resolves a gap of a few epsilon, but steps in float32 do not get as near.
    """
    return max(1e-10, 40 * epsilon(dtype))


class Problem(NamedTuple):
    """The problem of one target, in units in which the largest row weight is 1.

    Minimise `ridge/2 |w|^2 + sum_i weight_i l(e_i) + balance (b - mean' w)` with `e = aim - y (Phi
    w + b)`. The hinge is `l(e) = max(0, e)`, the squared hinge `l(e) = max(0, e)^2 / 2`. A
    classifier has aim 1 and balance 0. A one-class machine has aim 0 and a positive balance.
    """

    features: Float[Array, "p n"]  # transpose of the centred Phi; its long rows make products fast
    y: Float[Array, " n"]  # -1 or +1
    w: Float[Array, " n"]  # weight, not the coefficients of the formula
    ridge: Float[Array, ""]
    mean: Float[Array, " p"]  # of the original features; subtracted in `features`
    aim: Float[Array, ""]
    balance: Float[Array, ""]
    loss: Hinge

    __repr__ = short_repr


class State(NamedTuple):
    """A primal-dual interior-point iteration on a `Problem`.

    At the optimum `ridge w = Phi' (weight y a) + balance mean`, `sum weight y a = balance`,
    `xi - s = e` and `s a = 0`. The hinge adds `xi (1 - a) = 0`, the squared hinge `xi = a`.
    """

    weights: Float[Array, " p"]  # w
    intercept: Float[Array, ""]  # b
    dual: Float[Array, " n"]  # a; the source's alpha is C weight a
    to_top: Float[Array, " n"]  # 1 - a
    slack: Float[Array, " n"]  # xi
    surplus: Float[Array, " n"]  # s
    best: "Best"
    steps_without_decrease: Int[Array, ""]  # steps since the gap last fell by over a tenth
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class Best(NamedTuple):
    """The iterate with the smallest gap. Rounding can make later iterates worse."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    dual: Float[Array, " n"]  # satisfies sum weight y a = balance
    objective: Float[Array, ""]  # of weights and intercept
    gap: Float[Array, ""]

    __repr__ = short_repr


class Solution(NamedTuple):
    """For each target, the iterate with the smallest duality gap.

    If no step succeeds, it is the start. A classifier's gap is then infinite.
    """

    weights: Float[Array, " p *l"]
    intercept: Float[Array, "*l"]
    dual: Float[Array, " n *l"]  # alpha; 0 for rows without weight
    objective: Float[Array, "*l"]
    gap: Float[Array, "*l"]  # objective less a lower bound of its minimum
    steps: Int[Array, "*l"]
    status: Int[Array, "*l"]

    __repr__ = short_repr


def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n *l"],
    C: ScalarLike | Float[Array, "*l"],
    weights: Float[Array, " n"] | Float[Array, " n *l"] | None = None,
    *,
    loss: Hinge = "hinge",
    tolerance: ScalarLike | None = None,
    max_iterations: int = MAX_ITERATIONS,
    block_rows: int | None = None,
) -> Solution:
    """Fit support vector machines to features (Wu et al. 2006, problem (24)-(27) and its dual).

    - "hinge": `1/2 |w|^2 + C sum_i weight_i max(0, 1 - y_i f_i)`, with `f = Phi w + b`.
    - "squared_hinge": `1/2 |w|^2 + C/2 sum_i weight_i max(0, 1 - y_i f_i)^2`.

    The method is a primal-dual interior-point method with Mehrotra's predictor and corrector
    (Nocedal and Wright 2006, Algorithm 16.4). Each step sums the normal equations of a weighted
    least-squares problem in `p + 1` unknowns, about the mean, and factorises them once. They are
    shifted if rounding would make them indefinite, and their solutions are refined against the
    rows. The gap is the distance to a dual solution that meets all constraints.

    Args:
        Phi: features, shape `n p`; the penalty is the squared norm of their coefficients.
        y: targets -1 and +1, shape `n`, or `n l` for several machines on the same features. The
            targets of rows of weight 0 have no effect.
        C: weight of the data-fit term, positive: a number, or one for each target, shape `l`.
        weights: row weights, at least 0, shape `n`, or `n l` with a column for each target. Rows
            of weight 0 are ignored.
        loss: "hinge" or "squared_hinge" (static).
        tolerance: largest duality gap, relative to the objective; by default `default_tolerance`.
        max_iterations: limit of steps (static).
        block_rows: number of rows whose products are in memory at a time; the default depends on
            the device and on the number of features (static).

    Returns:
        `Solution`. If all rows of a target are of one class, its machine is constant. The status of
        each target is `CONVERGED`, `EXHAUSTED` at the limit of steps, `PRECISION_LOST` if rounding
        keeps the gap above the tolerance, or `NOT_FINITE` if the features are not finite.

    Pure; works under `jit` and `vmap`. Not differentiable in reverse mode; the derivative of the
    objective is the derivative of the Lagrangian with weights and multipliers held fixed (Lemma 1).

    Raises:
        ValueError: for an unknown loss, shapes that do not fit, `max_iterations` below 1, or
            concrete targets other than -1 and +1.
    """
    if loss not in ("hinge", "squared_hinge"):
        raise ValueError(f"loss: expected 'hinge' or 'squared_hinge', got {loss!r}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations: expected at least 1, got {max_iterations}")
    if y.ndim not in (1, 2) or y.shape[0] != Phi.shape[0]:
        raise ValueError(f"y: expected shape ({len(Phi)},) or ({len(Phi)}, l), got {y.shape}")
    outputs = y.shape[1:]
    for name, value, allowed in (
        ("C", C, ((), outputs)),
        ("weights", 1.0 if weights is None else weights, ((), (len(Phi),), y.shape)),
    ):
        if jnp.shape(value) not in allowed:
            raise ValueError(
                f"{name}: expected one of the shapes {allowed}, got {jnp.shape(value)}"
            )
    if is_concrete(y) and (weights is None or is_concrete(weights)):
        targets, row_weights = np.asarray(y), np.asarray(1.0 if weights is None else weights)
        if row_weights.ndim < y.ndim:
            row_weights = row_weights[..., None]
        invalid = targets[(row_weights > 0) & (np.abs(targets) != 1)]
        if len(invalid):
            raise ValueError(f"y: expected -1 and +1, got {invalid[0]:g}")
    tol = like(default_tolerance(Phi.dtype) if tolerance is None else tolerance, Phi)
    w = jnp.ones((), Phi.dtype) if weights is None else jnp.asarray(weights)
    w = jnp.broadcast_to(w.reshape(w.shape + (1,) * (y.ndim - w.ndim)), y.shape)
    C = jnp.broadcast_to(jnp.asarray(C, Phi.dtype), outputs)
    block_rows = _default_block_rows(Phi) if block_rows is None else block_rows
    solve_one = functools.partial(
        _solve, loss=loss, max_iterations=max_iterations, block_rows=block_rows
    )
    if not outputs:
        return solve_one(Phi, y, C, w, tol)
    solutions = map_systems(lambda arguments: solve_one(Phi, *arguments, tol), (y.T, C, w.T))
    return Solution(*(jnp.moveaxis(value, 0, -1) for value in solutions))


@functools.partial(compiled, static_argnames=("loss", "max_iterations", "block_rows"))
def _solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    C: Float[Array, ""],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    *,
    loss: Hinge,
    max_iterations: int,
    block_rows: int,
) -> Solution:
    problem, largest_weight = scaled_problem(Phi, y, C, w, loss)
    start, unit = init(problem), C * largest_weight
    return _solution(problem, start, unit, tolerance, max_iterations, block_rows)


def _solution(
    problem: Problem,
    start: State,
    unit: Float[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: int,
    block_rows: int,
) -> Solution:
    """Iterate to the optimum; return the best iterate, with objective and gap times `unit`."""
    state = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(problem, state, tolerance, max_iterations, block_rows),
        start,
    )
    best = state.best
    return Solution(
        weights=best.weights,
        intercept=best.intercept - dot(problem.mean, best.weights),
        dual=jnp.where(problem.w > 0, unit * problem.w * best.dual, 0),
        objective=unit * best.objective,
        gap=unit * best.gap,
        steps=state.steps,
        status=state.status,
    )


def solve_one_class(
    Phi: Float[Array, "n p"],
    nu: ScalarLike,
    weights: Float[Array, " n"] | None = None,
    *,
    tolerance: ScalarLike | None = None,
) -> Solution:
    """Fit a one-class support vector machine to features (Schoelkopf et al. 2001).

    Minimise `1/2 |w|^2 - rho + 1 / (nu sum_i weight_i) sum_i weight_i max(0, rho - Phi_i w)` with
    the method of `solve`.

    Args:
        Phi: features, shape `n p`.
        nu: upper bound of the weighted fraction of rows with `Phi_i w < rho`, between 0 and 1.
        weights: row weights, shape `n`, at least 0. Rows of weight 0 are ignored.
        tolerance: largest duality gap, relative to the objective; by default `default_tolerance`.

    Returns:
        `Solution`. The intercept is `-rho`, and the dual variables add up to 1.

    Pure; works under `jit` and `vmap`; derivatives as in `solve`.

    Raises:
        ValueError: if the weights are not of shape `n`.
    """
    w = jnp.ones(len(Phi), Phi.dtype) if weights is None else jnp.asarray(weights)
    if w.shape != (len(Phi),):
        raise ValueError(f"weights: expected shape ({len(Phi)},), got {w.shape}")
    tol = like(default_tolerance(Phi.dtype) if tolerance is None else tolerance, Phi)
    return _solve_one_class(Phi, like(nu, Phi), w, tol)


@compiled
def _solve_one_class(
    Phi: Float[Array, "n p"],
    nu: Float[Array, ""],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
) -> Solution:
    one = jnp.ones((), Phi.dtype)
    problem, _ = scaled_problem(Phi, jnp.ones(len(Phi), Phi.dtype), one, w, "hinge")
    unit = nu * jnp.sum(problem.w)
    problem = problem._replace(ridge=unit, aim=0 * one, balance=unit)
    # If all dual variables are nu, the weights are the mean of the features.
    a, e = nu * jnp.ones_like(w), -dot(problem.mean, problem.features)
    spread = jnp.sqrt(dot(problem.w, jnp.square(e)) / jnp.sum(problem.w))
    size = jnp.where(spread > 0, spread, 1)
    slack = jnp.maximum(e, 0) + size
    # If all features are 0, the start is the optimum, to which no step comes as close.
    best = _evaluate(problem, problem.mean, 0 * one, a)
    start = _first_state(problem, best, a, 1 - a, slack, slack - e)
    return _solution(problem, start, 1 / unit, tolerance, MAX_ITERATIONS, _default_block_rows(Phi))


def _default_block_rows(Phi: Float[Array, "n p"]) -> int:
    """Return the number of rows in a block of products.

    Few features make large blocks, with `_BLOCK_SIZE` values, as each block has a fixed cost.
    """
    return max(default_block_rows(), _BLOCK_SIZE // max(1, Phi.shape[1]))


def scaled_problem(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    C: Float[Array, ""],
    w: Float[Array, " n"],
    loss: Hinge,
) -> tuple[Problem, Float[Array, ""]]:
    """Return a classifier's problem, its weights divided by the largest, and the largest weight."""
    largest_weight = jnp.max(w)
    largest_weight = jnp.where(largest_weight > 0, largest_weight, 1)
    w, present = w / largest_weight, w > 0
    features = jnp.where(present[None, :], Phi.T, 0)
    total = jnp.sum(w)
    centre = dot(features, w) / jnp.where(total > 0, total, 1)
    features = jnp.where(present[None, :], features - centre[:, None], 0)
    info = jnp.finfo(Phi.dtype)
    ridge = jnp.clip(1 / C / largest_weight, info.tiny, 1 / info.tiny / 16)
    one, y = jnp.ones((), Phi.dtype), jnp.where(present, y, 1)
    return Problem(features, y, w, ridge, centre, one, 0 * one, loss), largest_weight


def init(problem: Problem) -> State:
    """Return a start on the central path, with weights 0.

    If all rows are of one class, the optimum is a constant, and the state has converged.
    """
    (features, y, w), loss = problem[:3], problem.loss
    ones, zero_weights = jnp.ones_like(y), jnp.zeros_like(features[:, 0])
    # As e = 1, the hinge has s a = xi (1 - a) = 1/2; the squared hinge has s a = 1 and a - s = 1.
    a = 0.5**0.5 if loss == "hinge" else (1 + 5**0.5) / 2
    slack = 0.5 / (1 - a) if loss == "hinge" else a
    # If all rows are of one class, the machine is constant.
    positive_weight = jnp.sum(jnp.where(y > 0, w, 0))
    negative_weight = jnp.sum(jnp.where(y > 0, 0, w))
    one_class = (positive_weight == 0) | (negative_weight == 0)
    constant = jnp.where(negative_weight == 0, 1, -1).astype(y.dtype)
    intercept = jnp.where(one_class, constant, 0)
    # A constant machine of one class has neither loss nor penalty. Otherwise the gap counts as
    # infinite, so that the gap of the first step replaces it.
    best = Best(
        zero_weights, intercept, jnp.where(one_class, 0, a * ones),
        objective=_objective(problem, zero_weights, intercept, jnp.where(one_class, 0, ones)),
        gap=jnp.where(one_class, 0, jnp.inf).astype(y.dtype),
    )  # fmt: skip
    start = _first_state(problem, best, a * ones, (1 - a) * ones, slack * ones, (slack - 1) * ones)
    constant_is_best = one_class & (start.status == RUNNING)
    status = jnp.where(constant_is_best, CONVERGED, start.status)
    return start._replace(status=status.astype(jnp.int32))


def _first_state(
    problem: Problem,
    best: Best,
    dual: Float[Array, " n"],
    to_top: Float[Array, " n"],
    slack: Float[Array, " n"],
    surplus: Float[Array, " n"],
) -> State:
    """Return the state of the first iterate, which has the weights and intercept of `best`."""
    zero = jnp.zeros((), jnp.int32)
    finite = jnp.isfinite(jnp.sum(problem.features))
    status = jnp.where(finite, RUNNING, NOT_FINITE).astype(jnp.int32)
    return State(
        best.weights, best.intercept, dual, to_top, slack, surplus, best,
        steps_without_decrease=zero, steps=zero, status=status,
    )  # fmt: skip


def step(
    problem: Problem,
    state: State,
    tolerance: Float[Array, ""],
    max_iterations: int,
    block_rows: int,
) -> State:
    """Step towards the optimum, then correct towards the central path, with one factorisation."""
    w, loss = problem.w, problem.loss
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    system = _system(problem, state, block_rows)
    zeros = jnp.zeros_like(w)
    predictor = _direction(problem, state, system, zeros, zeros, refine=False)
    t = 1 / jnp.maximum(_inverse_step(problem, state, predictor), 1)

    def products(t: Array, move: "_Move") -> Float[Array, ""]:
        complementarity = (s + t * move.surplus) * (a + t * move.dual)
        if loss == "hinge":
            complementarity += (xi + t * move.slack) * (top - t * move.dual)
        return jnp.sum(w * complementarity)

    current, predicted = products(jnp.zeros_like(t), predictor), products(t, predictor)
    pairs = 2 if loss == "hinge" else 1
    # Mehrotra's product of the pairs on the central path; the corrections are of second order.
    central_product = (predicted / current) ** 3 * current / (pairs * jnp.sum(w))
    slack_products = central_product + predictor.slack * predictor.dual
    surplus_products = central_product - predictor.surplus * predictor.dual
    corrector = _direction(problem, state, system, slack_products, surplus_products, refine=True)
    t = _FRACTION / jnp.maximum(_inverse_step(problem, state, corrector), _FRACTION)
    after = _take_step(problem, state, corrector, t)
    candidate = _evaluate(problem, after.weights, after.intercept, after.dual)
    better = candidate.gap < state.best.gap
    # Only a clear decrease resets the counter: rounding could lower the gap for ever.
    steps_without_decrease = jnp.where(
        candidate.gap < 0.9 * state.best.gap, 0, state.steps_without_decrease + 1
    )
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), candidate, state.best)
    status = jnp.where(after.steps >= max_iterations, EXHAUSTED, RUNNING)
    finite = jnp.isfinite(candidate.gap)
    status = jnp.where((steps_without_decrease >= _PATIENCE) | ~finite, PRECISION_LOST, status)
    converged = best.gap <= tolerance * jnp.abs(best.objective)
    status = jnp.where(converged, CONVERGED, status)
    return after._replace(
        best=best, steps_without_decrease=steps_without_decrease, status=status.astype(jnp.int32)
    )


class _System(NamedTuple):
    """Newton's equations of a step, whose matrix is factorised once."""

    D: Float[Array, " n"]  # da = D (de - rho), with rho from the requested products
    row_weights: Float[Array, " n"]  # D times the weights of the problem
    mean: Float[Array, " p"]  # weighted mean of the features
    total: Float[Array, ""]  # sum of the row weights
    inverse: Float[Array, "p p"]  # inverse of the Cholesky factor, lower triangular
    scale: Float[Array, " p"]  # of the features, for a unit diagonal
    gradient: Float[Array, " p"]  # ridge w - Phi' (weight y a) - balance mean
    imbalance: Float[Array, ""]  # sum weight y a - balance


class _Move(NamedTuple):
    """A step: the changes of the components of `State`."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    dual: Float[Array, " n"]
    slack: Float[Array, " n"]
    surplus: Float[Array, " n"]


@unbatched_lapack
def _cholesky_factor(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    return factorise(matrix, jnp.zeros((), matrix.dtype)).lower


def _system(problem: Problem, state: State, block_rows: int) -> _System:
    """Return Newton's equations at an iterate, with their matrix factorised."""
    features, y, w, ridge = problem[:4]
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    p = len(features)
    D = 1 / (s / a + (xi / top if problem.loss == "hinge" else 1))
    row_weights = jnp.where(w > 0, w * D, 0)
    total = jnp.sum(row_weights)
    mean = dot(features, row_weights) / total

    # The features are centred before they are multiplied: a difference of sums would lose digits.
    def products(
        block: Float[Array, "r p"], row_weights: Float[Array, " r"]
    ) -> Float[Array, "p p"]:
        centred = block.T - mean[:, None]
        return dot(centred * row_weights[None, :], centred.T)

    zero = jnp.zeros((p, p), features.dtype)
    gram = sum_row_blocks(products, (features.T, row_weights), zero, block_rows)
    matrix = gram + ridge * jnp.eye(p, dtype=features.dtype)
    scale = 1 / jnp.sqrt(jnp.diagonal(matrix))  # sizes of features may differ widely
    inverse = inverse_of_lower(_cholesky_factor(matrix * scale[:, None] * scale[None, :]))
    signed_duals = w * y * a
    gradient = ridge * state.weights - dot(features, signed_duals) - problem.balance * problem.mean
    imbalance = jnp.sum(signed_duals) - problem.balance
    return _System(D, row_weights, mean, total, inverse, scale, gradient, imbalance)


def _newton(
    problem: Problem,
    system: _System,
    weights_rhs: Float[Array, " p"],
    intercept_rhs: Float[Array, ""],
    refine: bool,
) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " n"]]:
    """Solve Newton's equations; return weights, intercept and values `Phi w + b`.

    Refinement uses the rows, whose rounding is relative to the features, not to their squares.
    """
    features, ridge = problem.features, problem.ridge
    mean, scale, inverse = system.mean, system.scale, system.inverse
    centred_rhs = weights_rhs - mean * intercept_rhs

    def apply_inverse(rhs: Float[Array, " p"]) -> Float[Array, " p"]:
        return scale * dot(dot(inverse, scale * rhs), inverse)

    def residual(x: Float[Array, " p"]) -> Float[Array, " p"]:
        values = system.row_weights * (dot(x, features) - dot(mean, x))
        return centred_rhs - dot(features, values) + mean * jnp.sum(values) - ridge * x

    x = apply_inverse(centred_rhs)
    if refine:
        x = x + apply_inverse(residual(x))
    b = intercept_rhs / system.total - dot(mean, x)
    return x, b, dot(x, features) + b


def _direction(
    problem: Problem,
    state: State,
    system: _System,
    slack_products: Float[Array, " n"],
    surplus_products: Float[Array, " n"],
    *,
    refine: bool,
) -> _Move:
    """Return the step after which, to first order, the products have the given values.

    `slack_products` are the products `xi (1 - a)`, `surplus_products` the products `s a`.
    """
    y, loss = problem.y, problem.loss
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    rho = s - surplus_products / a
    if loss == "hinge":
        rho += slack_products / top - xi
    weighted_rho = system.row_weights * y * rho
    weights, intercept, values = _newton(
        problem,
        system,
        -system.gradient - dot(problem.features, weighted_rho),
        system.imbalance - jnp.sum(weighted_rho),
        refine,
    )
    dual = -system.D * (y * values + rho)
    surplus = surplus_products / a - s - s / a * dual
    slack = dual
    if loss == "hinge":
        slack = slack_products / top - xi + xi / top * dual
    return _Move(weights, intercept, dual, slack, surplus)


def _inverse_step(problem: Problem, state: State, move: _Move) -> Float[Array, ""]:
    """Return the reciprocal of the largest step that keeps every component non-negative."""
    ratio = jnp.maximum(-move.dual / state.dual, -move.surplus / state.surplus)
    if problem.loss == "hinge":
        ratio = jnp.maximum(ratio, move.dual / state.to_top)
        ratio = jnp.maximum(ratio, -move.slack / state.slack)
    return jnp.max(jnp.where(problem.w > 0, ratio, 0))


def _take_step(problem: Problem, state: State, move: _Move, t: Float[Array, ""]) -> State:
    """Return the state after the fraction `t` of the step, with `xi - s` set to `e`."""
    (features, y, w), loss = problem[:3], problem.loss
    weights, intercept = state.weights + t * move.weights, state.intercept + t * move.intercept
    e = problem.aim - y * (dot(weights, features) + intercept)
    present = w > 0
    dual = jnp.where(present, state.dual + t * move.dual, 0.5)
    # `dual` and `top` are updated separately: if one is tiny, 1 minus the other is only rounding.
    top = jnp.where(present, state.to_top - t * move.dual, 0.5)
    near = jnp.where(dual < 0.5, dual, 1 - top) if loss == "hinge" else dual
    slack = jnp.where(present, state.slack + t * move.slack, 1)
    surplus = jnp.where(present, state.surplus + t * move.surplus, 1)
    # Adjust the larger of slack and surplus: adjusting the smaller would leave only rounding.
    if loss == "hinge":
        positive = e >= 0
        slack = jnp.where(present & positive, surplus + e, slack)
        surplus = jnp.where(present & ~positive, slack - e, surplus)
    else:
        surplus = jnp.where(present & (e < 0), dual - e, surplus)
    return state._replace(
        weights=weights,
        intercept=intercept,
        dual=near,
        to_top=top,
        slack=slack,
        surplus=surplus,
        steps=state.steps + 1,
    )


def _evaluate(
    problem: Problem,
    weights: Float[Array, " p"],
    intercept: Float[Array, ""],
    a: Float[Array, " n"],
) -> Best:
    """Return the iterate with its objective and its gap to a feasible dual solution.

    The dual variables `a` are made feasible: `sum weight y a = balance`, see `Problem`. For a
    classifier, the `a` of the class with the larger sum are reduced. For a one-class machine, all
    `a` are reduced, or increased towards 1. Then the gap is `sum weight (l(e) + l*(a) - a e) +
    ridge/2 |w - v|^2` with the conjugate `l*` of the loss and the weights `v = (Phi' (weight y a) +
    balance mean) / ridge` of the dual solution. Every term is non-negative by the Fenchel-Young
    inequality.
    """
    features, y, w, ridge, mean, aim, balance, loss = problem
    positive = y > 0
    positive_sum = jnp.sum(jnp.where(positive, w * a, 0))
    negative_sum = jnp.sum(jnp.where(positive, 0, w * a))
    balanced_sum = jnp.maximum(jnp.minimum(positive_sum, negative_sum + balance), balance)
    largest_sum = jnp.sum(jnp.where(positive, w, 0))
    shrinkage = jnp.where(
        positive,
        balanced_sum / jnp.where(positive_sum > 0, positive_sum, 1),
        (balanced_sum - balance) / jnp.where(negative_sum > 0, negative_sum, 1),
    )
    growth = (largest_sum - balanced_sum) / jnp.where(
        largest_sum > positive_sum, largest_sum - positive_sum, 1
    )
    a = jnp.where(positive & (balanced_sum > positive_sum), 1 - (1 - a) * growth, shrinkage * a)
    e = aim - y * (dot(weights, features) + intercept)
    shortfall = jnp.maximum(e, 0)
    if loss == "hinge":
        gap_terms = jnp.where(e > 0, (1 - a) * shortfall, -a * e)
    else:
        gap_terms = jnp.square(shortfall - a) / 2 + a * (shortfall - e)
    v = (dot(features, w * y * a) + balance * mean) / ridge
    gap = jnp.sum(w * gap_terms) + ridge / 2 * jnp.sum(jnp.square(weights - v))
    return Best(weights, intercept, a, _objective(problem, weights, intercept, e), gap)


def _objective(
    problem: Problem,
    weights: Float[Array, " p"],
    intercept: Float[Array, ""],
    e: Float[Array, " n"],
) -> Float[Array, ""]:
    """Return the objective of weights and intercept with the margin deficits `e`."""
    losses = jnp.maximum(e, 0)
    if problem.loss == "squared_hinge":
        losses = jnp.square(losses) / 2
    objective = problem.ridge / 2 * jnp.sum(jnp.square(weights)) + jnp.sum(problem.w * losses)
    return objective + problem.balance * (intercept - dot(problem.mean, weights))
