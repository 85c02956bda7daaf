"""The direct method: descend on a convex machine's objective in its prototypes (Wu et al. 2006).

`W(Z)` is the minimum of the objective over coefficients and intercept, for given prototypes `Z`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import epsilon, like, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from ..expansion import KernelExpansion
from .inner_problems import Fisher as Fisher
from .inner_problems import InnerProblem as InnerProblem
from .inner_problems import LargeMargin as LargeMargin
from .inner_problems import LeastSquares as LeastSquares
from .inner_problems import OneClass as OneClass
from .inner_problems import Solved as Solved

TOLERANCE = 1e-3  # relative decrease of W over the last `_WINDOW` steps that counts as convergence
MAX_ITERATIONS = 200
# Of several descents only the one with the lowest W after these steps goes on. Three whole descents
# take twice as long, and the best of them ended only 0.8 % lower on average over eight tables. A
# single descent ended 15 % higher than the best (`python -m benchmarks starts`).
FIRST_STEPS = 20
_WINDOW = 10
_MEMORY = 10  # steps that L-BFGS remembers
_TRIALS = 16  # step lengths that one line search tries
_DECREASE, _CURVATURE = 1e-4, 0.9  # constants of Wolfe's conditions (Nocedal and Wright, eq. 3.6)


class DirectFit(NamedTuple):
    """A machine whose prototypes a descent found, and the course of the descent.

    If each of `l` problems has separate prototypes, there is a descent for each problem.
    """

    expansion: KernelExpansion
    history: Float[Array, "*l s"]  # W after 0, 1, .. steps; NaN after the last step
    steps: Int[Array, "*l"]  # number of steps taken
    evaluations: Int[Array, "*l"]  # evaluations of W; each solves one inner problem
    status: Int[Array, ""]

    __repr__ = short_repr


def marginal(
    problem: InnerProblem,
) -> Callable[[Float[Array, "m d"]], tuple[Float[Array, ""], Solved]]:
    """Return the marginal function `W(Z)` of an inner problem (Wu 2006, eq. 12-15).

    The derivative of `W` is the derivative of the Lagrangian with solution and multipliers held
    fixed (Lemma 1, eq. 19). It exists where the solution and the multipliers are unique.

    Args:
        problem: an inner problem such as `LargeMargin(kernel, X, y, C)`.

    Returns:
        A function of `Z`, shape `m d`, that returns `W(Z)` and `Solved`. `W` is differentiable
        once, in both modes, in `Z`. If the differentiated function constructs the problem, `W` is
        differentiable in the problem's fields too: hyper-parameters of the kernel, `C`, inputs that
        are the output of a network. Second derivatives are wrong. No derivative passes through
        `Solved`.
    """

    def value(Z: Float[Array, "m d"]) -> tuple[Float[Array, ""], Solved]:
        fixed, Z_fixed = jax.lax.stop_gradient((problem, Z))
        solved = jax.lax.stop_gradient(fixed.solve(Z_fixed))
        lagrangian = problem.lagrangian(Z, solved)
        return solved.value + (lagrangian - jax.lax.stop_gradient(lagrangian)), solved

    return value


class State(NamedTuple):
    """A descent on `W` by L-BFGS with a line search by bisection; `step` evaluates `W` once.

    `gradient`, `direction` and `slope` belong to `W / unit` as a function of `Z / spread`. So the
    descent does not depend on the units of targets and inputs.
    """

    Z: Float[Array, "m d"]  # the last accepted prototypes
    value: Float[Array, ""]  # W(Z); infinite before the first evaluation
    solved: Solved  # the solution of the inner problem for Z
    spread: Float[Array, " d"]  # standard deviation of each input column
    unit: Float[Array, ""]  # norm of the gradient of W at the start
    gradient: Float[Array, "m d"]  # gradient at Z
    memory: Any  # the state of L-BFGS
    steepest: Bool[Array, ""]  # whether the direction is steepest descent, not from L-BFGS
    direction: Float[Array, "m d"]  # direction of the line search
    slope: Float[Array, ""]  # directional derivative of W / unit at Z
    t: Float[Array, ""]  # the next step length to try
    low: Float[Array, ""]  # the longest step length known to be too short: W still falls steeply
    high: Float[Array, ""]  # the shortest step length known to be too long: W does not fall enough
    trials: Int[Array, ""]  # step lengths tried in this line search
    history: Float[Array, " s+1"]  # W after 0, 1, .. steps; NaN after the last step
    steps: Int[Array, ""]  # number of steps taken
    evaluations: Int[Array, ""]  # number of evaluations of W
    status: Int[Array, ""]

    __repr__ = short_repr


class Minimum(NamedTuple):
    """The prototypes at which a descent ended, and the course of the descent."""

    Z: Float[Array, "m d"]  # prototypes
    solved: Solved  # the solution of the inner problem for Z
    history: Float[Array, " s+1"]  # W after 0, 1, .. steps; NaN after the last step
    steps: Int[Array, ""]  # number of steps taken
    evaluations: Int[Array, ""]  # evaluations of W; each solves one inner problem
    status: Int[Array, ""]

    __repr__ = short_repr


def minimise(
    problem: InnerProblem,
    start: Float[Array, "*s m d"],
    *,
    tolerance: ScalarLike = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Minimum:
    """Find a local minimum of the marginal function (Wu 2006, Section 2.1) by L-BFGS.

    Doubling and halving finds step lengths that meet the weak Wolfe conditions (Lewis and Overton
    2013). `W` may have kinks, where the strong conditions cannot be met. Each iteration of the loop
    evaluates `W` once, so that no member of a batch waits for the line search of another.

    With several starts every descent takes up to 20 steps. Then only the descent with the lowest
    finite `W` goes on: one start alone may end in a poor local minimum. A start that is not finite
    is skipped; if none is finite, the status is `NOT_FINITE`.

    Args:
        problem: an inner problem.
        start: prototypes to start from, shape `m d`; or several starts, shape `s m d`.
        tolerance: the descent has converged when the last ten steps have lowered `W` by at most
            `tolerance` times `problem.magnitude(W)`, which by default is `|W|`.
        max_iterations: limit of steps; the history has one entry more (static).

    Returns:
        `Minimum`. Its status is the worse status of the descent and of the last inner problem. At
        the limit of steps a descent ends with `EXHAUSTED`. If the line search finds no lower `W`,
        although the derivative predicts one, it ends with `PRECISION_LOST`. If `W` is not finite at
        the start, it ends with `NOT_FINITE`.

    The units of targets, and of inputs with lengthscales, affect the path by rounding only. `W`
    has the unit of squared targets. If the dtype cannot hold squared targets, `solved.value` and
    `history` are 0 or infinite; all other results are sound.

    Pure; works under `jit` and `vmap`, over problems or starts.

    Raises:
        ValueError: if `max_iterations` is below 1, or for a `start` of another shape.
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations: expected at least 1, got {max_iterations}")
    if start.ndim not in (2, 3) or len(start) < 1:
        raise ValueError(f"start: expected shape (m, d) or (s, m, d), got {start.shape}")
    starts = start.reshape(-1, *start.shape[-2:])
    return _minimise(problem, starts, like(tolerance, start), max_iterations)


@functools.partial(compiled, static_argnames="max_iterations")
def _minimise(
    problem: InnerProblem,
    starts: Float[Array, "s m d"],
    tolerance: Float[Array, ""],
    max_iterations: int,
) -> Minimum:
    """Minimise `W` from `s` starts, see `minimise`."""
    scaled, exponent = problem.scaled()  # W of tiny or huge targets could underflow or overflow

    def descend(state: State, max_steps: Int[Array, ""] | int) -> State:
        return jax.lax.while_loop(
            lambda state: (state.status == RUNNING) & (state.steps < max_steps),
            lambda state: step(scaled, state, tolerance, max_iterations),
            state,
        )

    def next_descent(k: Int[Array, ""], best: State) -> State:
        """Descend some steps from start `k`, and return the better descent.

        A `k` beyond the last start takes all remaining steps of the best descent.
        """
        no_start_left = k == len(starts)
        start = starts[jnp.minimum(k, len(starts) - 1)]
        state = _where(no_start_left, best, init(scaled, start, max_iterations))
        state = descend(state, jnp.where(no_start_left, max_iterations, FIRST_STEPS))
        return _where(no_start_left | (k == 0) | (state.value < best.value), state, best)

    first = init(scaled, starts[0], max_iterations)
    if len(starts) == 1:
        last = descend(first, max_iterations)
    else:  # one loop for both parts, as a second one would double the time of compilation
        last = jax.lax.fori_loop(0, len(starts) + 1, next_descent, first)
    status = jnp.maximum(last.status, last.solved.status)
    history = times_power(last.history[None], 2 * exponent[None])[0]
    solved = last.solved.times_power(exponent)
    return Minimum(last.Z, solved, history, last.steps, last.evaluations, status)


def _lbfgs() -> Any:
    import optax  # imported late, as it is slow to import and rarely needed

    return optax.scale_by_lbfgs(memory_size=_MEMORY)


def init(problem: InnerProblem, start: Float[Array, "m d"], max_iterations: int) -> State:
    """Return the state of a descent before the first evaluation of the marginal function `W`."""
    zero, no_steps = jnp.zeros((), start.dtype), jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(problem.solve, start)
    unsolved = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    zeros, infinite = jnp.zeros_like(start), zero + jnp.inf
    finite = jnp.all(jnp.isfinite(start))
    return State(
        Z=start, value=infinite, solved=unsolved, unit=zero + 1,
        spread=jnp.broadcast_to(problem.spread(), start.shape[1:]),
        gradient=zeros, memory=_lbfgs().init(start), steepest=jnp.asarray(True), direction=zeros,
        slope=zero, t=zero, low=zero, high=infinite, trials=no_steps,
        history=jnp.full(max_iterations + 1, jnp.nan, start.dtype), steps=no_steps - 1,
        evaluations=no_steps, status=jnp.where(finite, RUNNING, NOT_FINITE).astype(jnp.int32),
    )  # fmt: skip


def step(
    problem: InnerProblem, state: State, tolerance: Float[Array, ""], max_iterations: int
) -> State:
    """Evaluate `W` at the step length `t`, then accept the step or go on with the line search."""
    spread = state.spread[None, :]
    Z = state.Z + state.t * spread * state.direction
    (value, solved), gradient = jax.value_and_grad(marginal(problem), has_aux=True)(Z)
    gradient = gradient * spread
    steepness = jnp.linalg.norm(gradient)
    unit = jnp.where((state.evaluations == 0) & (steepness > 0), steepness, state.unit)
    gradient = gradient / unit
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
    decreases = finite & (value <= state.value + _DECREASE * state.t * state.slope * unit)
    flat = jnp.sum(gradient * state.direction) >= _CURVATURE * state.slope
    low, high = jnp.where(decreases, state.t, state.low), jnp.where(decreases, state.high, state.t)
    trials, evaluations = state.trials + 1, state.evaluations + 1
    # The last trial of a search accepts any decrease, even if W still falls steeply there.
    accepted = decreases & (flat | (trials >= _TRIALS))
    next_t = jnp.where(jnp.isfinite(high), (low + high) / 2, 2 * low)
    searching = state._replace(t=next_t, low=low, high=high, trials=trials)
    # After a kink L-BFGS may give a useless direction: restart it along the gradient.
    failed = ~accepted & (trials >= _TRIALS) & ~state.steepest & jnp.isfinite(state.value)
    restarted = state._replace(memory=_lbfgs().init(state.Z), steepest=jnp.asarray(True))
    searching = _where(failed, _new_search(restarted, _downhill(state.gradient)), searching)

    with jax.numpy_dtype_promotion("standard"):  # the state of L-BFGS is in JAX's default float
        update: Any = _lbfgs().update(gradient, state.memory, Z / spread)
    upwards, memory = update
    memory = jax.tree.map(lambda new, old: new.astype(old.dtype), memory, state.memory)
    direction = -upwards.astype(Z.dtype)
    downhill = jnp.sum(gradient * direction) < 0  # rounding may turn a direction uphill
    direction = jnp.where(downhill, direction, _downhill(gradient))
    steps = state.steps + 1
    moved = state._replace(
        Z=Z, value=value, solved=solved, unit=unit, gradient=gradient, memory=memory,
        steepest=~downhill, history=state.history.at[steps].set(value), steps=steps,
    )  # fmt: skip
    after = _where(accepted, _new_search(moved, direction), searching)
    after = after._replace(evaluations=evaluations)
    magnitude = problem.magnitude(after.value)
    return after._replace(status=_status(after, magnitude, tolerance, max_iterations, accepted))


def _where(condition: Bool[Array, ""], first: State, second: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def _downhill(gradient: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Return the negative gradient, shortened to length 1 if it is longer."""
    return -gradient / jnp.maximum(1, jnp.linalg.norm(gradient))


def _new_search(state: State, direction: Float[Array, "m d"]) -> State:
    """Return the state at the beginning of a line search along a direction."""
    zero, slope = jnp.zeros_like(state.value), jnp.sum(state.gradient * direction)
    return state._replace(
        direction=direction, slope=slope, t=zero + 1, low=zero, high=zero + jnp.inf,
        trials=jnp.zeros_like(state.trials),
    )  # fmt: skip


def _status(
    state: State,
    magnitude: Float[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: int,
    accepted: Bool[Array, ""],
) -> Int[Array, ""]:
    """Return the stop code of a descent after a trial of the line search; `RUNNING` if it goes on.

    Decreases of `W` count relative to `magnitude`. `accepted` is whether the trial became a step.
    """
    bound = tolerance * magnitude
    gain = -state.slope / 2 * state.unit  # predicted decrease of W, if W is quadratic
    before = state.history[jnp.maximum(state.steps - _WINDOW, 0)]
    slow = (state.steps >= _WINDOW) & (before - state.value <= bound)
    stationary = gain <= epsilon(state.value.dtype) * magnitude
    status = jnp.where(state.steps >= max_iterations, EXHAUSTED, RUNNING)
    status = jnp.where(accepted & (slow | stationary), CONVERGED, status)
    failed = ~accepted & (state.trials >= _TRIALS)
    end = jnp.where(gain <= bound, CONVERGED, PRECISION_LOST)
    end = jnp.where(jnp.isfinite(state.value), end, NOT_FINITE)
    return jnp.where(failed, end, status).astype(jnp.int32)
