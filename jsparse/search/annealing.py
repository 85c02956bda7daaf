"""Coupled simulated annealing with variance control, for any objective.

While `status` is RUNNING, evaluate the points of `ask` and pass the values to `tell`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._numerics import is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, NOT_FINITE, RUNNING
from .._types import Key, ScalarLike
from . import box


class Schedule(NamedTuple):
    """Settings of the two temperatures; traced numbers, so a new value compiles nothing again.

    `T_k` scales the random moves; `T^ac` decides how often a move to a worse point is accepted. The
    defaults of alpha and the target variance are from De Brabanter 2010, which gives no values of
    T_0, T_0^ac and G. The defaults of these three were the best, or within noise of the best, on
    eight cross-validation surfaces of an RBF machine at 90 evaluations.
    """

    generation: ScalarLike = 0.5  # T_0, initial size of the moves, in widths of the box
    acceptance: ScalarLike = 0.3  # T_0^ac, initial value, in units of `AnnealingState.scale`
    rate: ScalarLike = 0.05  # alpha, relative change of T^ac, every G rounds
    # sigma_D^2, target variance of the acceptance probabilities; 1 is its maximum (q - 1) / q^2
    target: ScalarLike = 0.99
    inner: ScalarLike = 1  # G, rounds at one pair of temperatures

    __repr__ = short_repr


class AnnealingState(NamedTuple):
    """The state of an annealing search by `q` coupled solutions with `p` parameters each."""

    key: Key  # PRNG key of the search; round r draws from fold_in(key, r)
    thetas: Float[Array, "q p"]  # x_i, the current solutions
    values: Float[Array, " q"]  # E(x_i); infinity if not finite or not yet known
    best_theta: Float[Array, " p"]  # the best finite point ever evaluated
    best_value: Float[Array, ""]
    scale: Float[Array, ""]  # unit of T^ac: spread of the first unequal values; 0 before them
    acceptance: Float[Array, ""]  # acceptance temperature T_k^ac / scale
    variance: Float[Array, ""]  # sigma^2 of the acceptance probabilities
    schedule: Schedule  # T_0, T_0^ac, alpha, sigma_D^2, G
    low: Float[Array, " p"]
    high: Float[Array, " p"]
    rounds: Int[Array, ""]  # ensembles evaluated; k = (rounds - 1) // G
    evaluations: Int[Array, ""]  # q * rounds
    max_evaluations: Int[Array, ""]
    status: Int[Array, ""]  # RUNNING, COMPLETED, or NOT_FINITE: no value was finite

    __repr__ = short_repr


def init(
    key: Key,
    low: ArrayLike,
    high: ArrayLike,
    *,
    members: int = 5,
    max_evaluations: int = 90,
    schedule: Schedule | None = None,
) -> AnnealingState:
    """Return the state before any evaluation, with `members` random points as solutions.

    Args:
        key: PRNG key of the whole search.
        low: lower bounds of the (log-)parameters, shape `p`. The search has their dtype.
        high: upper bounds, shape `p`.
        members: q, the number of solutions in the ensemble.
        max_evaluations: the budget; it is rounded down to whole rounds of q evaluations.
        schedule: settings of the temperatures; None for the defaults of `Schedule`.

    Raises:
        ValueError: for bounds, counts or a schedule out of range.
    """
    lower, upper = box.bounds(low, high)
    if members < 1 or max_evaluations < members:
        raise ValueError(
            "members, max_evaluations: expected at least one member and one evaluation of each, "
            f"got {members} and {max_evaluations}"
        )
    schedule = schedule or Schedule()
    if all(is_concrete(a) for a in schedule):
        T0, T_ac, rate, target, inner = (float(a) for a in schedule)
        if not (T0 > 0 and T_ac > 0 and 0 < rate < 1 and 0 < target <= 1 and inner >= 1):
            raise ValueError(
                "schedule: expected positive temperatures, rate in (0, 1), target in (0, 1], "
                f"inner >= 1, got {schedule}"
            )
    return _initial_state(key, lower, upper, schedule, max_evaluations, members)


@functools.partial(compiled, static_argnames="q")
def _initial_state(
    key: Key,
    lower: Float[Array, " p"],
    upper: Float[Array, " p"],
    schedule: Schedule,
    max_evaluations: ArrayLike,
    q: int,
) -> AnnealingState:
    """Return the state of `init`: `q` solutions, uniformly random in the box."""
    dtype, p = lower.dtype, len(lower)
    uniform = jax.random.uniform(jax.random.fold_in(key, 0), (q, p), dtype)
    initial = lower[None] + (upper - lower)[None] * uniform
    zero = jnp.zeros((), dtype)
    return AnnealingState(
        key=key,
        thetas=initial,
        values=jnp.full(q, jnp.inf, dtype),
        best_theta=initial[0],
        best_value=jnp.full((), jnp.inf, dtype),
        scale=zero,
        acceptance=jnp.asarray(schedule.acceptance, dtype),
        variance=zero,
        schedule=Schedule(
            *(jnp.asarray(a, dtype) for a in schedule[:-1]),
            inner=jnp.asarray(schedule.inner, jnp.int32),
        ),
        low=lower,
        high=upper,
        rounds=jnp.zeros((), jnp.int32),
        evaluations=jnp.zeros((), jnp.int32),
        max_evaluations=jnp.asarray(max_evaluations, jnp.int32),
        status=jnp.asarray(RUNNING, jnp.int32),
    )


@compiled
def ask(state: AnnealingState) -> Float[Array, "q p"]:
    """Return the points that the next round evaluates, shape `q p`.

    The first round evaluates the random solutions of `init` (De Brabanter 2010, Appendix, Algorithm
    6, step 1). Later points are `y = x + T_k w tan(pi (u - 1/2))` per coordinate, reflected at the
    bounds. Here w is the width of the box, u is uniform (so the move is Cauchy, as in Xavier de
    Souza et al. 2010), and `T_k = T_0/(k+1)`.
    """
    thetas, low, high = state.thetas, state.low, state.high
    k = jnp.maximum(state.rounds - 1, 0) // state.schedule.inner
    reach = state.schedule.generation / (k + 1).astype(thetas.dtype) * (high - low)
    key_move, _ = _round_keys(state)
    cauchy = jax.random.cauchy(key_move, thetas.shape, thetas.dtype)
    reflect = jax.vmap(box.reflect, in_axes=(0, None, None))
    probes = reflect(thetas + reach[None] * cauchy, low, high)
    return jnp.where(state.rounds == 0, thetas, probes)


def _round_keys(state: AnnealingState) -> tuple[Key, Key]:
    # The draws of round 0 are not used, so `init` may draw the first solutions from its key.
    key_move, key_accept = jax.random.split(jax.random.fold_in(state.key, state.rounds))
    return key_move, key_accept


@compiled
def tell(
    state: AnnealingState, probes: Float[Array, "q p"], probe_values: Float[Array, " q"]
) -> AnnealingState:
    """Return the state after a round, from the points of `ask` and their objective values.

    A round is one inner iteration of De Brabanter 2010, Appendix, Algorithm 6, steps 2-21, with the
    acceptance probability of Xavier de Souza et al. 2010 (CSA-M):

        A_i = exp(E(x_i) / T) / sum_j exp(E(x_j) / T)

    The Appendix prints `A = exp(-E(y_i)/T) / (exp(-E(y_i)/T) + rho)`, yet its variance
    `mean(A^2) - 1/q^2` and its target `0.99 (q - 1)/q^2` presuppose `sum A = 1`. With the printed
    A, T^ac would fall for ever. The worst solutions are the most likely to move uphill. With q = 1
    the probability is 1: the search is a random walk that records its best point.

    The unit of T^ac is the spread (median minus smallest) of the values of the solutions in the
    first round after which they are not all equal. So the search does not depend on the unit or
    origin of the objective. The median is used because a cross-validation error can grow by six
    decades in a corner of the box. While all values are equal, T^ac stays constant.

    Values that are not finite are never accepted and never the best. A solution without a finite
    value accepts the first finite probe. Until then it counts as the worst solution in A.
    """
    q, dtype, schedule = state.values.size, state.thetas.dtype, state.schedule
    _, key_accept = _round_keys(state)

    # x_i = y_i if y_i is not worse, or else with probability A_i. In the first round every E(x_i)
    # is infinite, so every finite y_i is accepted.
    energies = box.finite_or_inf(probe_values)
    A = acceptance_probabilities(state.values, state.acceptance, state.scale)
    uphill = jax.random.uniform(key_accept, (q,), dtype) < A  # may move to a worse point
    accepted = jnp.isfinite(energies) & ((energies <= state.values) | uphill)
    thetas = jnp.where(accepted[:, None], probes, state.thetas)
    values = jnp.where(accepted, energies, state.values)

    leader = jnp.argmin(energies)
    better = energies[leader] < state.best_value

    # Adjust T^ac so that the variance of A approaches its target.
    scale = jnp.where(state.scale > 0, state.scale, _spread(values))
    A = acceptance_probabilities(values, state.acceptance, scale)
    variance = jnp.mean(A * A) - 1 / q**2
    factor = jnp.where(
        variance < schedule.target * ((q - 1) / q**2), 1 - schedule.rate, 1 + schedule.rate
    )
    due = (state.rounds > 0) & (state.rounds % schedule.inner == 0) & (_spread(values) > 0)
    # If several values tie for the worst, the variance never reaches its target and T^ac shrinks
    # without end; the floor keeps the quotient by T^ac finite.
    floor = float(np.sqrt(jnp.finfo(dtype).tiny))
    acceptance = jnp.where(due, jnp.maximum(state.acceptance * factor, floor), state.acceptance)

    evaluations = state.evaluations + q
    status = jnp.where(evaluations + q > state.max_evaluations, COMPLETED, RUNNING)
    best_value = jnp.where(better, energies[leader], state.best_value)
    status = jnp.where((status == COMPLETED) & ~jnp.isfinite(best_value), NOT_FINITE, status)
    return state._replace(
        thetas=thetas,
        values=values,
        best_theta=jnp.where(better, probes[leader], state.best_theta),
        best_value=best_value,
        scale=scale,
        acceptance=acceptance,
        variance=variance,
        rounds=state.rounds + 1,
        evaluations=evaluations,
        status=status.astype(jnp.int32),
    )


def acceptance_probabilities(
    values: Float[Array, " q"], temperature: Float[Array, ""], scale: Float[Array, ""]
) -> Float[Array, " q"]:
    """Return the probability that each solution moves to a worse point, without overflow.

    It is `A_i = exp(E_i / T) / sum_j exp(E_j / T)`, where E are the `values` of the solutions and T
    is `temperature * scale`. While all values are equal, `scale` is 0 and every A_i is 1 / q. A
    value that is not finite counts as the worst finite value.
    """
    finite = jnp.isfinite(values)
    worst = jnp.max(jnp.where(finite, values, -jnp.inf))
    gap = jnp.where(finite, values - worst, 0)
    # Divide twice, as the product of a small temperature and a small scale may underflow to 0.
    return jax.nn.softmax(gap / jnp.where(scale > 0, scale, 1) / temperature)


def _spread(values: Float[Array, " q"]) -> Float[Array, ""]:
    """Return the median minus the smallest finite value; if 0, the largest minus the smallest."""
    ordered = jnp.sort(box.finite_or_inf(values))
    count = jnp.sum(jnp.isfinite(ordered))
    middle, top = ordered[count // 2], ordered[jnp.maximum(count - 1, 0)]
    spread = jnp.where(middle > ordered[0], middle, top) - ordered[0]
    return jnp.where(count > 1, spread, 0)
