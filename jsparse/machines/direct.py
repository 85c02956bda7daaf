"""The direct method: descend on a convex machine's objective in its prototypes (Wu et al. 2006)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_systems
from .._numerics import epsilon, like, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from .inner_problems import Fisher as Fisher
from .inner_problems import InnerProblem as InnerProblem
from .inner_problems import LargeMargin as LargeMargin
from .inner_problems import LeastSquares as LeastSquares
from .inner_problems import OneClass as OneClass
from .inner_problems import Solved as Solved

TOLERANCE = 1e-3  # decrease of W by the last `_WINDOW` steps together, as part of its magnitude
MAX_STEPS = 200
_WINDOW = 10
_MEMORY = 10  # of L-BFGS
_TRIALS = 16  # in one line search
_DECREASE, _CURVATURE = 1e-4, 0.9  # of Wolfe's conditions (Nocedal and Wright 2006, eq. 3.6)


class DirectFit(NamedTuple):
    """A machine whose prototypes a descent found, and the course of the descent.

    If problems have prototypes of their own, all but the machine and the status have an entry for
    each problem.
    """

    expansion: KernelExpansion
    history: Float[Array, "*l s"]  # W after 0, 1, .. steps; NaN for those not taken
    steps: Int[Array, "*l"]
    evaluations: Int[Array, "*l"]  # of W, each the solution of one inner problem
    status: Int[Array, ""]

    __repr__ = short_repr


def marginal(
    problem: InnerProblem,
) -> Callable[[Float[Array, "m d"]], tuple[Float[Array, ""], Solved]]:
    """Return the marginal function `W(Z)` of an inner problem (Wu 2006, eq. 12-15).

    Its derivative is the Lagrangian's with solution and multipliers held fixed (Lemma 1, eq. 19),
    not the derivative of the steps that found them. It exists where the solution and the
    multipliers are unique.

    Args:
        problem: such as `LargeMargin(kernel, X, y, C)`.

    Returns:
        A function of `Z`, shape `m d`, that returns `W(Z)` and `Solved`. `W` is differentiable
        once, in both modes, in `Z` and, if the problem is made within the function that is
        differentiated, in whatever the problem holds: hyper-parameters of the kernel, `C`, inputs
        that are themselves the output of a network. Second derivatives are not those of `W`. No
        derivative passes through `Solved`.
    """

    def value(Z: Float[Array, "m d"]) -> tuple[Float[Array, ""], Solved]:
        fixed, Z_fixed = jax.lax.stop_gradient((problem, Z))
        solved = jax.lax.stop_gradient(fixed.solve(Z_fixed))
        lagrangian = problem.lagrangian(Z, solved)
        return solved.value + (lagrangian - jax.lax.stop_gradient(lagrangian)), solved

    return value


class State(NamedTuple):
    """A descent on `W`, one evaluation of it a step: L-BFGS with a line search by bisection.

    The gradient, direction and slope belong to `W / unit` as a function of `Z / spread`. The path
    thus does not depend on the units of the targets and of the inputs.
    """

    Z: Float[Array, "m d"]  # the last point accepted
    value: Float[Array, ""]  # W there; infinite before the first evaluation
    solved: Solved
    spread: Float[Array, " d"]  # standard deviation of each input column
    unit: Float[Array, ""]  # norm of the gradient of W at the start
    gradient: Float[Array, "m d"]  # at Z
    memory: Any  # of L-BFGS
    steepest: Bool[Array, ""]  # whether the direction is that of the gradient, not of the memory
    direction: Float[Array, "m d"]
    slope: Float[Array, ""]  # directional derivative of W / unit
    t: Float[Array, ""]  # the next step length to try
    low: Float[Array, ""]  # a step length that is too short, as W is still steep there
    high: Float[Array, ""]  # a step length that is too long, as W is too large there
    trials: Int[Array, ""]  # in this line search
    history: Float[Array, " s+1"]  # W after 0, 1, .. steps; NaN for those not taken
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class Minimum(NamedTuple):
    """Prototypes at which a descent ended."""

    Z: Float[Array, "m d"]
    solved: Solved
    history: Float[Array, " s+1"]  # W after 0, 1, .. steps; NaN for those not taken
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]  # of W, each the solution of one inner problem
    status: Int[Array, ""]

    __repr__ = short_repr

    def times_power(self, exponent: Int[Array, ""]) -> "Minimum":
        """Return the minimum for targets times `2^exponent`."""
        history = times_power(self.history[None], 2 * exponent[None])[0]
        return self._replace(solved=self.solved.times_power(exponent), history=history)

    def machine(self, kernel: Kernel) -> DirectFit:
        """Return the fit of the prototypes with the solution's coefficients."""
        solved = self.solved
        expansion = KernelExpansion(kernel, self.Z, solved.coefficients, solved.intercept)
        return DirectFit(expansion, self.history, self.steps, self.evaluations, self.status)


def minimise(
    problem: InnerProblem,
    start: Float[Array, "m d"],
    *,
    tolerance: ScalarLike = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Minimum:
    """Find a local minimum of the marginal function (Wu 2006, Section 2.1) by L-BFGS.

    Step lengths meet the weak Wolfe conditions, and are found by doubling and halving (Lewis and
    Overton 2013): `W` may have kinks, where the strong conditions cannot be met. The loop evaluates
    `W` once in each turn, so that no member of a batch waits for the line search of another.

    Args:
        problem: an inner problem.
        start: prototypes to start from, shape `m d`.
        tolerance: the descent has converged when the last ten steps have lowered `W` by at most
            this part of `problem.magnitude(W)`, by default `|W|`.
        max_steps: cap on steps; the length of the history (static).

    Returns:
        `Minimum`, with the worse status of the descent and of the inner problem at its end:
        `EXHAUSTED` at the cap, `PRECISION_LOST` if no point with a lower `W` was found although the
        derivative promises one, `NOT_FINITE` if `W` is not finite at the start.

    Other units of the targets, or of the inputs together with the lengthscales, change the path by
    rounding only. `W` has the targets' unit squared. Where the dtype cannot hold that square,
    `solved.value` and `history` are 0 or infinite; the other results and the status do not depend
    on it.

    Pure; works under `jit` and `vmap`, over problems or starts.

    Raises:
        ValueError: for a cap below 1, or a start that does not fit.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
    if start.ndim != 2:
        raise ValueError(f"start: expected shape (m, d), got {start.shape}")
    return _minimise(problem, start, like(tolerance, start), max_steps)


def best_of(
    problem: InnerProblem,
    starts: Float[Array, "*s m d"],
    *,
    tolerance: ScalarLike = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Minimum:
    """Return the lowest of the minima at which descents from several starts end.

    From one start alone no step may lower `W`, or the valley may be a poor one. On a CPU the
    descents follow each other, elsewhere they run as one batch. A minimum that is not finite is
    taken only if all are. Everything else is as in `minimise`; one start may have the shape `m d`.

    Raises:
        ValueError: as `minimise`, or if there is no start.
    """
    if starts.ndim not in (2, 3) or len(starts) < 1:
        raise ValueError(f"starts: expected shape (s, m, d) or (m, d), got {starts.shape}")
    starts = starts.reshape(-1, *starts.shape[-2:])
    if len(starts) == 1:
        return minimise(problem, starts[0], tolerance=tolerance, max_steps=max_steps)
    scaled, exponent = problem.scaled()  # else the dtype might not tell one W from another
    minima = map_systems(
        lambda start: minimise(scaled, start, tolerance=tolerance, max_steps=max_steps), starts
    )
    W = minima.solved.value
    best = jnp.argmin(jnp.where(jnp.isfinite(W), W, jnp.inf))
    return jax.tree.map(lambda a: a[best], minima).times_power(exponent)


@functools.partial(compiled, static_argnames="max_steps")
def _minimise(
    problem: InnerProblem, start: Float[Array, "m d"], tolerance: Float[Array, ""], max_steps: int
) -> Minimum:
    scaled, exponent = problem.scaled()
    last = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(scaled, state, tolerance, max_steps),
        init(scaled, start, max_steps),
    )
    status = jnp.maximum(last.status, last.solved.status)
    minimum = Minimum(last.Z, last.solved, last.history, last.steps, last.evaluations, status)
    return minimum.times_power(exponent)


def _lbfgs() -> Any:
    import optax  # slow to import, and often not needed

    return optax.scale_by_lbfgs(memory_size=_MEMORY)


def init(problem: InnerProblem, start: Float[Array, "m d"], max_steps: int) -> State:
    """Return the state at the start, before the first evaluation of `W`."""
    zero, none = jnp.zeros((), start.dtype), jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(problem.solve, start)
    unsolved = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    flat, infinite = jnp.zeros_like(start), zero + jnp.inf
    return State(
        Z=start, value=infinite, solved=unsolved, unit=zero + 1,
        spread=jnp.broadcast_to(problem.spread(), start.shape[1:]),
        gradient=flat, memory=_lbfgs().init(start), steepest=jnp.asarray(True), direction=flat,
        slope=zero, t=zero, low=zero, high=infinite, trials=none,
        history=jnp.full(max_steps + 1, jnp.nan, start.dtype), steps=none - 1, evaluations=none,
        status=none + RUNNING,
    )  # fmt: skip


def step(problem: InnerProblem, state: State, tolerance: Float[Array, ""], max_steps: int) -> State:
    """Evaluate `W` once, at the next point of a line search or the first of a new one."""
    spread = state.spread[None, :]
    Z = state.Z + state.t * spread * state.direction
    (value, solved), gradient = jax.value_and_grad(marginal(problem), has_aux=True)(Z)
    gradient = gradient * spread
    steepness = jnp.linalg.norm(gradient)
    unit = jnp.where((state.evaluations == 0) & (steepness > 0), steepness, state.unit)
    gradient = gradient / unit
    sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
    enough = sound & (value <= state.value + _DECREASE * state.t * state.slope * unit)
    flat = jnp.sum(gradient * state.direction) >= _CURVATURE * state.slope
    low, high = jnp.where(enough, state.t, state.low), jnp.where(enough, state.high, state.t)
    trials, evaluations = state.trials + 1, state.evaluations + 1
    # At the end of the search a lower point is taken, however steep it may be.
    accepted = enough & (flat | (trials >= _TRIALS))
    between = jnp.where(jnp.isfinite(high), (low + high) / 2, 2 * low)
    searching = state._replace(t=between, low=low, high=high, trials=trials)
    # Behind a kink the memory may lead nowhere; then the gradient is tried.
    lost = ~accepted & (trials >= _TRIALS) & ~state.steepest & jnp.isfinite(state.value)
    again = state._replace(memory=_lbfgs().init(state.Z), steepest=jnp.asarray(True))
    searching = _where(lost, _new_search(again, _downhill(state.gradient)), searching)

    with jax.numpy_dtype_promotion("standard"):  # its state is in the default float
        update: Any = _lbfgs().update(gradient, state.memory, Z / spread)
    upwards, memory = update
    memory = jax.tree.map(lambda new, old: new.astype(old.dtype), memory, state.memory)
    direction = -upwards.astype(Z.dtype)
    downhill = jnp.sum(gradient * direction) < 0  # rounding may turn a direction uphill
    direction = jnp.where(downhill, direction, _downhill(gradient))
    steps = state.steps + 1
    arrived = state._replace(
        Z=Z, value=value, solved=solved, unit=unit, gradient=gradient, memory=memory,
        steepest=~downhill, history=state.history.at[steps].set(value), steps=steps,
    )  # fmt: skip
    after = _where(accepted, _new_search(arrived, direction), searching)
    after = after._replace(evaluations=evaluations)
    magnitude = problem.magnitude(after.value)
    return after._replace(status=_status(after, magnitude, tolerance, max_steps, accepted))


def _where(condition: Bool[Array, ""], first: State, second: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def _downhill(gradient: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Return the direction of steepest descent, at most of length 1."""
    return -gradient / jnp.maximum(1, jnp.linalg.norm(gradient))


def _new_search(state: State, direction: Float[Array, "m d"]) -> State:
    """Return the state at the beginning of a line search."""
    zero, slope = jnp.zeros_like(state.value), jnp.sum(state.gradient * direction)
    return state._replace(
        direction=direction, slope=slope, t=zero + 1, low=zero, high=zero + jnp.inf,
        trials=jnp.zeros_like(state.trials),
    )  # fmt: skip


def _status(
    state: State,
    magnitude: Float[Array, ""],
    tolerance: Float[Array, ""],
    max_steps: int,
    accepted: Bool[Array, ""],
) -> Int[Array, ""]:
    """Return `RUNNING`, or how the descent ended."""
    bound = tolerance * magnitude
    gain = -state.slope / 2 * state.unit  # expected decrease of W if it is quadratic
    before = state.history[jnp.maximum(state.steps - _WINDOW, 0)]
    settled = (state.steps >= _WINDOW) & (before - state.value <= bound)
    still = gain <= epsilon(state.value.dtype) * magnitude
    status = jnp.where(state.steps >= max_steps, EXHAUSTED, RUNNING)
    status = jnp.where(accepted & (settled | still), CONVERGED, status)
    failed = ~accepted & (state.trials >= _TRIALS)
    end = jnp.where(gain <= bound, CONVERGED, PRECISION_LOST)
    end = jnp.where(jnp.isfinite(state.value), end, NOT_FINITE)
    return jnp.where(failed, end, status).astype(jnp.int32)
