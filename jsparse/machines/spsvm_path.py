"""The greedy path of the sparse SVM: add one prototype after another (Keerthi et al. 2006)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import (
    capacities,
    default_block_rows,
    map_row_blocks,
    of_capacity,
    systems_at_once,
)
from .._numerics import dot, epsilon
from .._repr import short_repr
from .._status import (
    COMPLETED,
    CONVERGED,
    INDEFINITE,
    NOT_FINITE,
    PRECISION_LOST,
    RUNNING,
    TRUNCATED,
)
from .._types import Key
from ..kernels import Kernel
from ..pursuit.conjugate import NOISE
from .spsvm_newton import Objective, line_search, minimise, precision

# Newton's systems and products with the features are padded to a quarter, half or all of the path's
# largest size. Below 64 prototypes a smaller size would save less time than its compilation takes.
_EIGHTHS, _LEAST = (2, 4, 8), 64
# Each drawn candidate gets a few Newton steps, and the best of them are searched to the end. With a
# large `C` the few steps may miss most of the decrease, as the objective then has sharp bends.
_SCREENING_STEPS, _FINALISTS = 3, 8
# Bytes of the largest table of kernel values that is computed once and kept.
_MOST_BYTES = 1 << 27


class Problem(NamedTuple):
    """Kernel, rows, candidates and objective. Harmful values of absent rows have been replaced."""

    kernel: Kernel
    rows: Float[Array, "n d"]
    candidates: Float[Array, "M d"]
    kernel_values: Float[Array, "M n"] | None  # see `values_of_candidates`
    objective: Objective

    __repr__ = short_repr

    def at_rows(self, numbers: Int[Array, " r"]) -> Float[Array, "r n"]:
        """Return the kernel values between the candidates with these numbers and all rows."""
        if self.kernel_values is not None:
            return self.kernel_values[numbers]
        # Distances are centred at the second argument, as an absent row may be far away.
        return self.kernel.cross_gram(self.rows, self.candidates[numbers]).T

    def at_candidates(self, numbers: Int[Array, " r"]) -> Float[Array, "r M"]:
        """Return the kernel values between the candidates with these numbers and all candidates."""
        # Distances are centred at all candidates, as in `values_of_candidates`: where a candidate
        # is also a row, its two values then have nearly the same rounding error.
        return self.kernel.cross_gram(self.candidates[numbers], self.candidates)


def values_of_candidates(
    kernel: Kernel,
    rows: Float[Array, "n d"],
    candidates: Float[Array, "M d"],
    most_prototypes: int,
    subset: int,
) -> Float[Array, "M n"] | None:
    """Return the kernel values between the `M` candidates and the rows, or None.

    None means that each step computes the values of the candidates that it draws. This is so on an
    accelerator, if the table would take more than `_MOST_BYTES`, or if a path of `most_prototypes`
    draws fewer than `M` candidates in all, as each prototype is chosen out of `subset`.
    """
    M = len(candidates)
    size = M * len(rows) * rows.dtype.itemsize
    if systems_at_once() > 1 or size > _MOST_BYTES or most_prototypes * subset < M:
        return None
    in_blocks = map_row_blocks(
        lambda block: kernel.cross_gram(block, candidates), rows, default_block_rows()
    )
    return in_blocks.T


class Machine(NamedTuple):
    """A machine and diagnostics of its coefficients; or machines of all sizes, with a leading axis.

    Let `K = L L'` be the kernel matrix of the prototypes. Then `f = coordinates' features + b` and
    `beta = L^(-T) coordinates`. In these coordinates the penalty is the identity, and Newton's
    systems are well-conditioned even if `K` is not: float32 would lose all digits otherwise.
    """

    coordinates: Float[Array, "*s k"]
    intercept: Float[Array, "*s"]
    # Diagnostics of the last optimisation of all coefficients.
    condition: Float[Array, "*s"]  # condition number of the system
    error: Float[Array, "*s"]  # relative error that rounding causes
    status: Int[Array, "*s"]  # stop code of Newton's method

    __repr__ = short_repr


class State(NamedTuple):
    """The path so far."""

    features: Float[Array, "k p"]  # L^(-1) k(z_j, x) at the n rows, then the M candidates
    factor: Float[Array, "k k"]  # L; the identity where there is no prototype
    values: Float[Array, " n"]  # f(x) at the rows
    machine: Machine  # the current machine
    machines: Machine  # machines of 1, 2, .. prototypes, leading axis k
    support: Int[Array, " k"]  # candidates in the order of selection, -1 for none
    free: Bool[Array, " M"]  # candidates neither selected nor found to depend on the prototypes
    truncated: Bool[Array, ""]  # whether a skipped candidate would have lowered the objective
    optimised: Int[Array, ""]  # size at the last optimisation of all coefficients
    size: Int[Array, ""]  # number of prototypes
    step: Int[Array, ""]  # number of steps; some add no prototype
    status: Int[Array, ""]

    __repr__ = short_repr


def init(problem: Problem, max_prototypes: int) -> State:
    """Return the initial state, without prototypes."""
    k, n, M = max_prototypes, len(problem.rows), len(problem.candidates)
    dtype = problem.rows.dtype
    zero, count = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    machine = Machine(jnp.zeros(k, dtype), zero, zero + 1, zero, count + RUNNING)
    return State(
        features=jnp.zeros((k, n + M), dtype),
        factor=jnp.eye(k, dtype=dtype),
        values=jnp.zeros(n, dtype),
        machine=machine,
        machines=jax.tree.map(lambda a: jnp.broadcast_to(a, (k, *a.shape)), machine),
        support=jnp.full(k, -1, jnp.int32),
        free=jnp.ones(M, bool),
        truncated=jnp.zeros((), bool),
        optimised=count,
        size=count,
        step=count,
        status=count + RUNNING,
    )


def step(
    problem: Problem,
    state: State,
    key: Key,
    growth: Float[Array, ""],
    max_iterations: Int[Array, ""],
    length: Int[Array, ""],
    *,
    subset: int,
) -> State:
    """Draw candidates and add the best, or none if all of them depend on the prototypes.

    Then optimise all coefficients, if the path has ended or has grown by the factor `growth`. The
    path ends at `length` prototypes.
    """
    eps = epsilon(problem.rows.dtype)
    drawn = _draw(problem, state, key, subset)
    grown = _add_best(problem, state, drawn)
    ended = jnp.where(grown.truncated, TRUNCATED, CONVERGED)
    status = jnp.where(jnp.any(grown.free), RUNNING, ended)
    most = jnp.minimum(length, len(state.support))
    status = jnp.where(grown.size >= most, COMPLETED, status)
    due = grown.size.astype(growth.dtype) >= growth * state.optimised.astype(growth.dtype)
    due = ((grown.size > state.size) & due) | (status != RUNNING)
    # Only small arrays pass through the branches: the features would be copied.
    machine, values = jax.lax.cond(
        due,
        lambda: _optimise_all(problem, grown, max_iterations),
        lambda: (grown.machine, grown.values),
    )
    optimised = jnp.where(due, grown.size, grown.optimised)
    grown = grown._replace(machine=machine, values=values, optimised=optimised)
    square, pivot = drawn.square, drawn.pivot
    indefinite = jnp.any(drawn.free & (pivot < -jnp.sqrt(eps) * jnp.abs(square)))
    finite = jnp.all(jnp.isfinite(machine.coordinates)) & jnp.isfinite(machine.intercept)
    finite &= jnp.all(jnp.isfinite(pivot) | ~drawn.free)
    status = jnp.where(indefinite, INDEFINITE, jnp.where(finite, status, NOT_FINITE))
    last = jnp.maximum(grown.size - 1, 0)
    machines = jax.tree.map(lambda a, new: a.at[last].set(new), grown.machines, machine)
    return grown._replace(machines=machines, status=status.astype(jnp.int32))


class Drawn(NamedTuple):
    """Random candidates, each with the decrease of the objective by its coefficient alone."""

    number: Int[Array, " r"]  # row numbers in the table of candidates
    free: Bool[Array, " r"]  # False for surplus draws, if fewer candidates are free
    at_rows: Float[Array, "r n"]  # k(z, x) at the rows
    shares: Float[Array, "r k"]  # L^(-1) k(z_j, z)
    square: Float[Array, " r"]  # k(z, z)
    pivot: Float[Array, " r"]  # Schur complement k(z, z) - |shares|^2; 0 if z is dependent
    noise: Float[Array, " r"]  # size of a pivot of 0 after rounding
    slope: Float[Array, " r"]  # derivative of the penalty in the candidate's coefficient, at 0
    gain: Float[Array, " r"]  # decrease of the objective by a few Newton steps, see `_draw`

    __repr__ = short_repr


def _draw(problem: Problem, state: State, key: Key, subset: int) -> Drawn:
    """Draw a random subset of the candidates in `State.free`, and compute the gain of each.

    The gain is the decrease of the objective by a few Newton steps of the candidate's coefficient,
    with all other coefficients held fixed.
    """
    objective, dtype = problem.objective, problem.rows.dtype
    eps, least = epsilon(dtype), float(jnp.finfo(dtype).tiny)
    # Draw in float32 for all dtypes, so that all dtypes examine the same subsets.
    step_key = jax.random.fold_in(key, state.step)
    uniform = jax.random.uniform(step_key, state.free.shape, jnp.float32)
    priorities, number = jax.lax.top_k(jnp.where(state.free, uniform, -1.0), subset)
    at_rows = problem.at_rows(number)
    shares = state.features[:, len(problem.rows) + number].T
    square = problem.kernel.diagonal(problem.candidates[number])
    slope = dot(shares, state.machine.coordinates)
    _, gain = line_search(objective, state.values, at_rows, square, slope, _SCREENING_STEPS)
    return Drawn(
        number=number.astype(jnp.int32),
        free=priorities >= 0,
        at_rows=at_rows,
        shares=shares,
        square=square,
        pivot=square - jnp.sum(jnp.square(shares), axis=1),
        noise=NOISE * eps * square + least,  # above 0, so that candidates of norm 0 are skipped
        slope=slope,
        gain=gain,
    )


def _add_best(problem: Problem, state: State, drawn: Drawn) -> State:
    """Return the state after adding the best drawn candidate and optimising its coefficient."""
    M, k, n, objective = len(state.free), len(state.support), len(problem.rows), problem.objective
    independent = drawn.free & (drawn.pivot > drawn.noise)
    dependent = drawn.free & (drawn.pivot <= drawn.noise)
    gains, finalists = jax.lax.top_k(
        jnp.where(independent, drawn.gain, -jnp.inf), min(_FINALISTS, len(drawn.gain))
    )
    steps, final_gains = line_search(
        objective, state.values, drawn.at_rows[finalists], drawn.square[finalists],
        drawn.slope[finalists],
    )  # fmt: skip
    first = jnp.argmax(jnp.where(gains > -jnp.inf, final_gains, -jnp.inf))
    best = finalists[first].astype(jnp.int32)
    skipped = jnp.argmax(jnp.where(dependent, drawn.pivot, -jnp.inf)).astype(jnp.int32)
    both = jnp.stack([best, skipped])
    at_candidates = problem.at_candidates(drawn.number[both])
    at_points = jnp.concatenate([drawn.at_rows[both], at_candidates], axis=1)
    projections = of_capacity(
        state.size,
        capacities(k, _EIGHTHS, _LEAST),
        lambda size: dot(drawn.shares[both, :size], state.features[:size]),
    )
    residuals = at_points - projections
    # Whether the data would outweigh the penalty for the skipped direction, if it were resolved.
    skipped_at_rows = residuals[1, :n]
    useful = objective.C * dot(objective.inside(state.values), jnp.square(skipped_at_rows))
    useful = useful > jnp.maximum(drawn.pivot, drawn.noise)[skipped]

    adds, size = jnp.any(independent), state.size
    slot = jnp.where(adds, size, k)  # out of range if nothing is added: mode "drop" ignores it
    root = jnp.sqrt(jnp.where(adds, drawn.pivot[best], 1))
    row = drawn.shares[best].at[size].set(root)
    t = jnp.where(adds, steps[first], 0)
    used = dependent.at[best].set(dependent[best] | adds)
    coordinates = state.machine.coordinates + t * row
    return state._replace(
        features=state.features.at[slot].set(residuals[0] / root, mode="drop"),
        factor=state.factor.at[slot].set(row, mode="drop"),
        values=state.values + t * at_points[0, :n],
        machine=state.machine._replace(coordinates=coordinates),
        support=state.support.at[slot].set(drawn.number[best], mode="drop"),
        free=state.free.at[jnp.where(used, drawn.number, M)].set(False, mode="drop"),
        truncated=state.truncated | (dependent[skipped] & useful),
        size=size + adds.astype(jnp.int32),
        step=state.step + 1,
    )


def _optimise_all(
    problem: Problem, state: State, max_iterations: Int[Array, ""]
) -> tuple[Machine, Float[Array, " n"]]:
    """Optimise all coefficients and the intercept; return the machine, and its values at rows."""
    max_prototypes = len(state.support)

    def optimise(k: int) -> tuple[Machine, Float[Array, " n"]]:
        """Optimise the first `k` places, which hold all prototypes."""
        at_rows = state.features[:k, : len(problem.rows)]
        extended = jnp.concatenate([at_rows, jnp.ones_like(state.values)[None]])
        start = jnp.append(state.machine.coordinates[:k], state.machine.intercept)
        last = minimise(problem.objective, extended, start, max_iterations)
        condition, error = precision(state.factor[:k, :k], state.support[:k] >= 0, last.hessian)
        # If rounding has spoilt Newton's systems, the error cannot be estimated.
        error = jnp.where(last.status == PRECISION_LOST, jnp.inf, error)
        coordinates = jnp.zeros(max_prototypes, extended.dtype).at[:k].set(last.solution[:k])
        machine = Machine(coordinates, last.solution[k], condition, error, last.status)
        return machine, dot(last.solution, extended)

    return of_capacity(state.size, capacities(max_prototypes, _EIGHTHS, _LEAST), optimise)
