"""Support vector machines on explicit features, by a primal-dual interior-point method."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_systems, rows_in_block, sum_row_blocks
from .._numerics import dot, dot_over_rows, epsilon, is_concrete, like, unbatched_lapack
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from .definite import factorise, inverse_of_lower

Hinge = Literal["hinge", "squared_hinge"]

MAX_ITERATIONS = 100
_BACK = 0.99  # fraction of the step to the nearest bound
_PATIENCE = 8  # steps without a smaller gap, after which rounding is assumed to prevent one


def default_tolerance(dtype: jnp.dtype) -> float:
    """Return a relative duality gap that the dtype can reach.

    It is 1e-10 in float64. The gap is a sum of non-negative terms, so nothing cancels and float32
    can resolve a gap of a few times its epsilon. The steps in float32 do not get as near.
    """
    return max(1e-10, 40 * epsilon(dtype))


class Problem(NamedTuple):
    """A machine of one target in units in which row weights are of order one.

    Minimise `ridge/2 |w|^2 + sum_i weight_i l(e_i) + balance (b - mean' w)` with `e = aim - y (Phi
    w + b)`, where `l(e)` is `max(0, e)`, or `max(0, e)^2 / 2`. A classifier has the aim 1 and the
    balance 0; a one-class machine the aim 0.
    """

    Phi: Float[Array, "n p"]
    y: Float[Array, " n"]  # -1 or +1
    w: Float[Array, " n"]
    ridge: Float[Array, ""]
    mean: Float[Array, " p"]  # which was subtracted from the features
    aim: Float[Array, ""]
    balance: Float[Array, ""]

    __repr__ = short_repr


class State(NamedTuple):
    """A primal-dual interior-point iteration on a `Problem`.

    At the optimum `ridge w = Phi' (weight y a) + balance mean`, `sum weight y a = balance`,
    `xi - s = e`, `s a = 0`, and for the hinge `xi (1 - a) = 0`, for its square `xi = a`.
    """

    weights: Float[Array, " p"]  # w
    intercept: Float[Array, ""]  # b
    dual: Float[Array, " n"]  # a, alpha = C weight a of the source
    to_top: Float[Array, " n"]  # 1 - a
    slack: Float[Array, " n"]  # xi
    surplus: Float[Array, " n"]  # s
    best: "Best"
    since: Int[Array, ""]  # steps since the best iterate
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class Best(NamedTuple):
    """The iterate with the smallest gap; because of rounding, later iterates may be worse."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    dual: Float[Array, " n"]  # with sum weight y a = balance
    objective: Float[Array, ""]  # of weights and intercept
    gap: Float[Array, ""]

    __repr__ = short_repr


class Solution(NamedTuple):
    """A machine for each target: its iterate with the smallest duality gap."""

    weights: Float[Array, "p *l"]
    intercept: Float[Array, "*l"]
    dual: Float[Array, "n *l"]  # alpha; 0 for rows without weight
    objective: Float[Array, "*l"]
    gap: Float[Array, "*l"]  # objective less a lower bound of its minimum
    steps: Int[Array, "*l"]
    status: Int[Array, "*l"]

    __repr__ = short_repr


def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, "n *l"],
    C: ScalarLike | Float[Array, "*l"],
    weights: Float[Array, " n"] | Float[Array, "n *l"] | None = None,
    *,
    loss: Hinge = "hinge",
    tolerance: ScalarLike | None = None,
    max_iterations: int = MAX_ITERATIONS,
    block_rows: int | None = None,
) -> Solution:
    """Support vector machines on given features (Wu et al. 2006, problem (24)-(27) and its dual).

    - "hinge": `1/2 |w|^2 + C sum_i weight_i max(0, 1 - y_i f_i)`, with `f = Phi w + b`.
    - "squared_hinge": `1/2 |w|^2 + C/2 sum_i weight_i max(0, 1 - y_i f_i)^2`.

    The method is a primal-dual interior-point method with Mehrotra's predictor and corrector
    (Nocedal and Wright 2006, Algorithm 16.4). Each step solves the normal equations of a weighted
    least-squares problem in `p + 1` unknowns. They are summed over blocks of rows about the mean
    and factorised once per step. If rounding would make them indefinite they are shifted; their
    solutions are refined against the rows. The gap is the distance to a dual solution that meets
    all constraints.

    Args:
        Phi: features, shape `n p`; penalised by the identity.
        y: targets -1 and +1, shape `n`, or `n l` for several machines on the same features. The
            targets of rows of weight 0 have no effect.
        C: weight of the data-fit term, positive; or one for each target, shape `l`.
        weights: row weights, at least 0, shape `n`, or `n l` with a column for each target. A row
            of weight 0 is absent.
        loss: "hinge" or "squared_hinge" (static).
        tolerance: largest duality gap, relative to the objective; by default `default_tolerance`.
        max_iterations: cap on steps (static).
        block_rows: rows whose products are in memory at a time (static).

    Returns:
        `Solution`. A target all of whose rows are of one class has the constant machine of that
        class. The status of each is `CONVERGED`, `EXHAUSTED` at the limit of steps,
        `PRECISION_LOST` if rounding keeps the gap above the tolerance, `NOT_FINITE` if the features
        are not finite.

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
    for name, a, allowed in (
        ("C", C, ((), outputs)),
        ("weights", 1.0 if weights is None else weights, ((), (len(Phi),), y.shape)),
    ):
        if jnp.shape(a) not in allowed:
            raise ValueError(f"{name}: expected one of the shapes {allowed}, got {jnp.shape(a)}")
    if is_concrete(y) and (weights is None or is_concrete(weights)):
        seen = np.asarray(1.0 if weights is None else weights)
        seen = np.broadcast_to(seen if seen.ndim != 1 or y.ndim == 1 else seen[:, None], y.shape)
        other = np.asarray(y)[(seen > 0) & (np.abs(np.asarray(y)) != 1)]
        if len(other):
            raise ValueError(f"y: expected -1 and +1, got {other[0]:g}")
    tol = like(default_tolerance(Phi.dtype) if tolerance is None else tolerance, Phi)
    w = jnp.ones((), Phi.dtype) if weights is None else jnp.asarray(weights)
    w = w if w.ndim == y.ndim else w.reshape(w.shape + (1,) * (y.ndim - w.ndim))
    w = jnp.broadcast_to(w, y.shape)
    C = jnp.broadcast_to(jnp.asarray(C, Phi.dtype), outputs)
    one = functools.partial(
        _solve, loss=loss, max_iterations=max_iterations, block_rows=rows_in_block(block_rows)
    )
    if not outputs:
        return one(Phi, y, C, w, tol)
    solutions = map_systems(lambda of: one(Phi, *of, tol), (y.T, C, w.T))
    return Solution(*(jnp.moveaxis(a, 0, -1) for a in solutions))


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
    problem, heaviest = in_own_units(Phi, y, C, w)
    first = init(problem, tolerance, loss=loss)
    last = _iterated(problem, first, tolerance, loss, max_iterations, block_rows)
    return _in_units(problem, last, C * heaviest)


def _iterated(
    problem: Problem,
    state: State,
    tolerance: Float[Array, ""],
    loss: Hinge,
    max_iterations: int,
    block_rows: int,
) -> State:
    return jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(
            problem,
            state,
            tolerance,
            loss=loss,
            max_iterations=max_iterations,
            block_rows=block_rows,
        ),
        state,
    )


def _in_units(problem: Problem, state: State, unit: Float[Array, ""]) -> Solution:
    """Return the best iterate, with its objective in the problem's unit."""
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
    max_iterations: int = MAX_ITERATIONS,
    block_rows: int | None = None,
) -> Solution:
    """Solve the one-class support vector machine on given features (Schoelkopf et al. 2001).

    Minimise `1/2 |w|^2 - rho + 1 / (nu sum_i weight_i) sum_i weight_i max(0, rho - Phi_i w)` by the
    steps of `solve`.

    Args:
        Phi: features, shape `n p`.
        nu: upper bound of the weighted fraction of rows with `Phi_i w < rho`, between 0 and 1.
        weights: row weights, shape `n`, at least 0. A row of weight 0 is absent.
        tolerance: see `solve`.
        max_iterations: cap on steps (static).
        block_rows: rows whose products are in memory at a time (static).

    Returns:
        `Solution`, whose intercept is `-rho` and whose multipliers add up to 1.

    Pure; works under `jit` and `vmap`; derivatives as in `solve`.

    Raises:
        ValueError: if `max_iterations` is below 1 or the weights are not of shape `n`.
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations: expected at least 1, got {max_iterations}")
    w = jnp.ones(len(Phi), Phi.dtype) if weights is None else jnp.asarray(weights)
    if w.shape != (len(Phi),):
        raise ValueError(f"weights: expected shape ({len(Phi)},), got {w.shape}")
    tol = like(default_tolerance(Phi.dtype) if tolerance is None else tolerance, Phi)
    rows = rows_in_block(block_rows)
    return _solve_one_class(
        Phi, like(nu, Phi), w, tol, max_iterations=max_iterations, block_rows=rows
    )


@functools.partial(compiled, static_argnames=("max_iterations", "block_rows"))
def _solve_one_class(
    Phi: Float[Array, "n p"],
    nu: Float[Array, ""],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    *,
    max_iterations: int,
    block_rows: int,
) -> Solution:
    one = jnp.ones((), Phi.dtype)
    problem, _ = in_own_units(Phi, jnp.ones(len(Phi), Phi.dtype), one, w)
    unit = nu * jnp.sum(problem.w)
    problem = problem._replace(ridge=unit, aim=0 * one, balance=unit)
    # All multipliers are nu, so the weights are the mean of the features.
    a, e = nu * jnp.ones_like(w), -dot(problem.Phi, problem.mean)
    spread = jnp.sqrt(dot(problem.w, jnp.square(e)) / jnp.sum(problem.w))
    size = jnp.where(spread > 0, spread, 1)
    slack = jnp.maximum(e, 0) + size
    first = _begun(problem, tolerance, problem.mean, 0 * one, a, 1 - a, slack, slack - e, "hinge")
    last = _iterated(problem, first, tolerance, "hinge", max_iterations, block_rows)
    return _in_units(problem, last, 1 / unit)


def in_own_units(
    Phi: Float[Array, "n p"], y: Float[Array, " n"], C: Float[Array, ""], w: Float[Array, " n"]
) -> tuple[Problem, Float[Array, ""]]:
    """Return the problem of a classifier, and the largest row weight."""
    heaviest = jnp.max(w)
    heaviest = jnp.where(heaviest > 0, heaviest, 1)
    w, present = w / heaviest, w > 0
    Phi = jnp.where(present[:, None], Phi, 0)
    total = jnp.sum(w)
    centre = dot(w, Phi) / jnp.where(total > 0, total, 1)
    Phi = jnp.where(present[:, None], Phi - centre[None, :], 0)
    info = jnp.finfo(Phi.dtype)
    ridge = jnp.clip(1 / C / heaviest, info.tiny, 1 / info.tiny / 16)
    one = jnp.ones((), Phi.dtype)
    return Problem(Phi, jnp.where(present, y, 1), w, ridge, centre, one, 0 * one), heaviest


def init(problem: Problem, tolerance: Float[Array, ""], *, loss: Hinge) -> State:
    """Return a start on the central path: the machine that is 0."""
    Phi, y, w = problem[:3]
    n, p = Phi.shape
    ones, nothing = jnp.ones(n, Phi.dtype), jnp.zeros(p, Phi.dtype)
    # With e = 1: s a = xi (1 - a) = 1/2; or s a = 1, a - s = 1.
    a = 0.5**0.5 if loss == "hinge" else (1 + 5**0.5) / 2
    slack = 0.5 / (1 - a) if loss == "hinge" else a
    # If all rows are of one class, the machine is constant.
    up, down = jnp.sum(jnp.where(y > 0, w, 0)), jnp.sum(jnp.where(y > 0, 0, w))
    alone = (up == 0) | (down == 0)
    constant = jnp.where(down == 0, 1, -1).astype(Phi.dtype)
    intercept = jnp.where(alone, constant, 0)
    begun = _begun(
        problem, tolerance, nothing, intercept, a * ones, (1 - a) * ones, slack * ones,
        (slack - 1) * ones, loss,
    )  # fmt: skip
    best = _judged(problem, nothing, constant, 0 * ones, loss)
    best = jax.tree.map(lambda a, b: jnp.where(alone, a, b), best, begun.best)
    good = begun.status != NOT_FINITE
    status = jnp.where(alone & good, CONVERGED, begun.status)
    return begun._replace(best=best, status=status.astype(jnp.int32))


def _begun(
    problem: Problem,
    tolerance: Float[Array, ""],
    weights: Float[Array, " p"],
    intercept: Float[Array, ""],
    dual: Float[Array, " n"],
    to_top: Float[Array, " n"],
    slack: Float[Array, " n"],
    surplus: Float[Array, " n"],
    loss: Hinge,
) -> State:
    """Return the first iterate."""
    none = jnp.zeros((), jnp.int32)
    best = _judged(problem, weights, intercept, dual, loss)
    status = jnp.where(_near(best, tolerance), CONVERGED, RUNNING)
    finite = jnp.isfinite(jnp.sum(problem.Phi))
    status = jnp.where(finite, status, NOT_FINITE).astype(jnp.int32)
    return State(
        weights=weights,
        intercept=intercept,
        dual=dual,
        to_top=to_top,
        slack=slack,
        surplus=surplus,
        best=best,
        since=none,
        steps=none,
        status=status,
    )


def _near(best: Best, tolerance: Float[Array, ""]) -> Bool[Array, ""]:
    return best.gap <= tolerance * jnp.abs(best.objective)


def step(
    problem: Problem,
    state: State,
    tolerance: Float[Array, ""],
    *,
    loss: Hinge,
    max_iterations: int = MAX_ITERATIONS,
    block_rows: int = 2048,
) -> State:
    """Step towards the optimum, then correct towards the central path, with one factorisation."""
    w = problem.w
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    system = _system(problem, state, loss, block_rows)
    none = jnp.zeros_like(w)
    ahead = _direction(problem, state, system, none, none, loss, refine=False)
    t = 1 / jnp.maximum(_most(problem, state, ahead, loss), 1)

    def products(t: Array, by: "_Move") -> Float[Array, ""]:
        complementarity = (s + t * by.surplus) * (a + t * by.dual)
        if loss == "hinge":
            complementarity += (xi + t * by.slack) * (top - t * by.dual)
        return jnp.sum(w * complementarity)

    now, then = products(jnp.zeros_like(t), ahead), products(t, ahead)
    pairs = 2 if loss == "hinge" else 1
    nu = (then / now) ** 3 * now / (pairs * jnp.sum(w))
    upper, lower = nu + ahead.slack * ahead.dual, nu - ahead.surplus * ahead.dual
    moves = _direction(problem, state, system, upper, lower, loss, refine=True)
    t = _BACK / jnp.maximum(_most(problem, state, moves, loss), _BACK)
    after = _moved(problem, state, moves, t, loss)
    judged = _judged(problem, after.weights, after.intercept, after.dual, loss)
    better = judged.gap < state.best.gap
    # Above the tolerance the gap must fall by more than rounding, or the loop would not end.
    since = jnp.where(judged.gap < 0.9 * state.best.gap, 0, state.since + 1)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), judged, state.best)
    status = jnp.where(after.steps >= max_iterations, EXHAUSTED, RUNNING)
    sound = jnp.isfinite(judged.gap)
    status = jnp.where((since >= _PATIENCE) | ~sound, PRECISION_LOST, status)
    status = jnp.where(_near(best, tolerance), CONVERGED, status)
    return after._replace(best=best, since=since, status=status.astype(jnp.int32))


class _System(NamedTuple):
    """Newton's equations of a step, whose matrix is factorised once."""

    D: Float[Array, " n"]  # da = D (de - rho), with rho from the requested products
    own: Float[Array, " n"]  # D times the row weights
    mean: Float[Array, " p"]  # mean of the features with those weights
    total: Float[Array, ""]
    inverse: Float[Array, "p p"]  # the Cholesky factor, lower triangular
    scale: Float[Array, " p"]
    gradient: Float[Array, " p"]  # ridge w - Phi' (weight y a) - balance mean
    imbalance: Float[Array, ""]  # sum weight y a - balance


class _Move(NamedTuple):
    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    dual: Float[Array, " n"]
    slack: Float[Array, " n"]
    surplus: Float[Array, " n"]


@unbatched_lapack
def _lower(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    return factorise(matrix, jnp.zeros((), matrix.dtype)).lower


def _system(problem: Problem, state: State, loss: Hinge, block_rows: int) -> _System:
    Phi, y, w, ridge = problem[:4]
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    p = Phi.shape[1]
    D = 1 / (s / a + (xi / top if loss == "hinge" else 1))
    own = jnp.where(w > 0, w * D, 0)
    total = jnp.sum(own)
    mean = dot(own, Phi) / total

    # Centred at the mean of the features: a difference of sums would lose digits.
    def products(Phi: Float[Array, "r p"], own: Float[Array, " r"]) -> Float[Array, "p p"]:
        centred = Phi - mean[None, :]
        return dot_over_rows(centred * own[:, None], centred)

    gram = sum_row_blocks(products, (Phi, own), jnp.zeros((p, p), Phi.dtype), block_rows)
    matrix = gram + ridge * jnp.eye(p, dtype=Phi.dtype)
    scale = 1 / jnp.sqrt(jnp.diagonal(matrix))  # features of very different size
    inverse = inverse_of_lower(_lower(matrix * scale[:, None] * scale[None, :]))
    pull = w * y * a
    gradient = ridge * state.weights - dot(pull, Phi) - problem.balance * problem.mean
    imbalance = jnp.sum(pull) - problem.balance
    return _System(D, own, mean, total, inverse, scale, gradient, imbalance)


def _newton(
    problem: Problem,
    system: _System,
    features: Float[Array, " p"],
    total: Float[Array, ""],
    refine: bool,
) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, " n"]]:
    """Return weights, intercept and values `Phi w + b` that solve the equations.

    On request they are refined against the rows, whose rounding is relative to the features and not
    to their squares.
    """
    Phi, ridge = problem.Phi, problem.ridge
    mean, scale, inverse = system.mean, system.scale, system.inverse
    features = features - mean * total

    def solved(rhs: Float[Array, " p"]) -> Float[Array, " p"]:
        return scale * dot(dot(inverse, scale * rhs), inverse)

    def left(x: Float[Array, " p"]) -> Float[Array, " p"]:
        values = system.own * (dot(Phi, x) - dot(mean, x))
        return features - dot(values, Phi) + mean * jnp.sum(values) - ridge * x

    x = solved(features)
    if refine:
        x = x + solved(left(x))
    b = total / system.total - dot(mean, x)
    return x, b, dot(Phi, x) + b


def _direction(
    problem: Problem,
    state: State,
    system: _System,
    upper: Float[Array, " n"],
    lower: Float[Array, " n"],
    loss: Hinge,
    *,
    refine: bool,
) -> _Move:
    """Return the step after which `xi (1 - a)` is `upper` and `s a` is `lower`, to first order."""
    y = problem.y
    xi, s, a, top = state.slack, state.surplus, state.dual, state.to_top
    rho = s - lower / a
    if loss == "hinge":
        rho += upper / top - xi
    pull = system.own * y * rho
    weights, intercept, values = _newton(
        problem,
        system,
        -system.gradient - dot(pull, problem.Phi),
        system.imbalance - jnp.sum(pull),
        refine,
    )
    dual = -system.D * (y * values + rho)
    surplus = lower / a - s - s / a * dual
    slack = upper / top - xi + xi / top * dual if loss == "hinge" else dual
    return _Move(weights, intercept, dual, slack, surplus)


def _most(problem: Problem, state: State, move: _Move, loss: Hinge) -> Float[Array, ""]:
    """Return the reciprocal of the largest step that keeps every component non-negative."""
    ratio = jnp.maximum(-move.dual / state.dual, -move.surplus / state.surplus)
    if loss == "hinge":
        ratio = jnp.maximum(ratio, move.dual / state.to_top)
        ratio = jnp.maximum(ratio, -move.slack / state.slack)
    return jnp.max(jnp.where(problem.w > 0, ratio, 0))


def _moved(problem: Problem, state: State, move: _Move, t: Float[Array, ""], loss: Hinge) -> State:
    """Take a fraction of the step, and make `xi - s` equal to `e`."""
    Phi, y, w = problem[:3]
    weights, intercept = state.weights + t * move.weights, state.intercept + t * move.intercept
    e = problem.aim - y * (dot(Phi, weights) + intercept)
    present = w > 0
    dual = jnp.where(present, state.dual + t * move.dual, 0.5)
    # Updated separately: if one is far smaller than 1, subtracting the other from 1 would leave
    # only rounding.
    top = jnp.where(present, state.to_top - t * move.dual, 0.5)
    near = jnp.where(dual < 0.5, dual, 1 - top) if loss == "hinge" else dual
    slack = jnp.where(present, state.slack + t * move.slack, 1)
    surplus = jnp.where(present, state.surplus + t * move.surplus, 1)
    # Adjust the larger of the two: adjusting the smaller would leave only rounding.
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


def _judged(
    problem: Problem,
    weights: Float[Array, " p"],
    intercept: Float[Array, ""],
    a: Float[Array, " n"],
    loss: Hinge,
) -> Best:
    """Return the objective and its distance from a dual solution that meets all constraints.

    To meet the constraints, the dual variables of the heavier class are reduced until the classes
    balance; with one class only they are increased. Then the gap is `sum weight (l(e) + l*(a) - a
    e) + ridge/2 |w - v|^2` with `v = (Phi' (weight y a) + balance mean) / ridge`. Every term is
    non-negative by the Fenchel-Young inequality.
    """
    Phi, y, w, ridge, mean, aim, balance = problem
    first = y > 0
    up, down = jnp.sum(jnp.where(first, w * a, 0)), jnp.sum(jnp.where(first, 0, w * a))
    wanted = jnp.maximum(jnp.minimum(up, down + balance), balance)
    most = jnp.sum(jnp.where(first, w, 0))
    part = jnp.where(
        first, wanted / jnp.where(up > 0, up, 1), (wanted - balance) / jnp.where(down > 0, down, 1)
    )
    short_of = (most - wanted) / jnp.where(most > up, most - up, 1)
    a = jnp.where(first & (wanted > up), 1 - (1 - a) * short_of, part * a)
    e = aim - y * (dot(Phi, weights) + intercept)
    short = jnp.maximum(e, 0)
    if loss == "hinge":
        losses, missed = short, jnp.where(e > 0, (1 - a) * short, -a * e)
    else:
        losses = jnp.square(short) / 2
        missed = jnp.square(short - a) / 2 + a * (short - e)
    v = (dot(w * y * a, Phi) + balance * mean) / ridge
    gap = jnp.sum(w * missed) + ridge / 2 * jnp.sum(jnp.square(weights - v))
    objective = ridge / 2 * jnp.sum(jnp.square(weights)) + jnp.sum(w * losses)
    objective += balance * (intercept - dot(mean, weights))
    return Best(weights, intercept, a, objective, gap)
