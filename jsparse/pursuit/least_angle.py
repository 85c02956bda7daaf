"""Least angle regression and the LASSO path (Efron et al. 2004; Karsmakers 2011, Section 2.2)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._arguments import whole_number
from .._numerics import dot, epsilon, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import (
    COMPLETED,
    CONVERGED,
    EXHAUSTED,
    INDEFINITE,
    NOT_FINITE,
    PRECISION_LOST,
    RUNNING,
)
from .._types import ScalarLike
from .path import LOST
from .system import (
    Column,
    Columns,
    System,
    check_atoms,
    check_nonnegative,
    system,
)

# Where a pivot is noise, in units of the precision. Fewer than in `conjugate`, as an atom passed
# over may rise above the level: in float32, on kernel columns closer than a lengthscale, 256 was
# seen to lose the path from 1e-4 of the largest penalty on, 16 not before 1e-5.
NOISE = 16


class AnglePath(NamedTuple):
    """The corners of a piecewise linear path, from no atoms on.

    `s` is the cap on steps; corners past `steps` repeat the last.
    """

    coefficients: Float[Array, "s+1 D"]
    penalty: Float[Array, " s+1"]  # lambda of 1/2 w'A w - b'w + lambda |w|_1 at the corner
    cardinality: Int[Array, " s+1"]  # atoms active until the corner
    residual_norm: Float[Array, " s+1"]  # |b - A w|
    explained: Float[Array, " s+1"]  # 2 b'w - w'A w, so much of |y|^2
    condition: Float[Array, " s+1"]  # estimate for the atoms active until there, of A scaled
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class State(NamedTuple):
    """At a corner of the path."""

    active: Int[Array, " k"]  # atoms in order of coming, -1 in empty places
    sign: Float[Array, " k"]  # of their correlations
    columns: Float[Array, "k D"]  # of A
    factor: Float[Array, "k k"]  # lower Cholesky factor of A among them, 1 on empty places
    inverse: Float[Array, ""]  # trace of the inverse of A among them, scaled to unit diagonal
    weights: Float[Array, " k"]
    count: Int[Array, ""]
    correlation: Float[Array, " D"]  # b - A w
    coming: Int[Array, ""]  # atom that has drawn level, -1: none
    passed: Bool[Array, " D"]  # atoms found to depend on those active
    excess: Float[Array, ""]  # largest violation of the conditions of a corner so far
    path: AnglePath

    __repr__ = short_repr


def init(
    b: Float[Array, " D"], diagonal: Float[Array, " D"], *, max_atoms: int, max_iterations: int
) -> State:
    """No atoms, `w = 0`."""
    D, k, s = b.shape[0], max_atoms, max_iterations
    largest = jnp.max(jnp.abs(b))
    zero = jnp.zeros(s + 1, b.dtype)
    finite = jnp.isfinite(largest) & jnp.all(jnp.isfinite(diagonal))
    status = jnp.where(largest == 0, CONVERGED, RUNNING)
    # A sum over rows errs by less than the root of the precision.
    indefinite = jnp.min(diagonal) < -jnp.sqrt(epsilon(b.dtype)) * jnp.max(jnp.abs(diagonal))
    status = jnp.where(indefinite, INDEFINITE, status)
    path = AnglePath(
        coefficients=jnp.zeros((s + 1, D), b.dtype),
        penalty=zero + largest,
        cardinality=jnp.zeros(s + 1, jnp.int32),
        residual_norm=zero + jnp.linalg.norm(b),
        explained=zero,
        condition=zero + 1,
        steps=jnp.zeros((), jnp.int32),
        status=jnp.where(finite, status, NOT_FINITE).astype(jnp.int32),
    )
    first = jnp.argmax(jnp.where(diagonal > 0, jnp.abs(b), -1))
    return State(
        active=jnp.full(k, -1, jnp.int32),
        sign=jnp.zeros(k, b.dtype),
        columns=jnp.zeros((k, D), b.dtype),
        factor=jnp.eye(k, dtype=b.dtype),
        inverse=jnp.zeros((), b.dtype),
        weights=jnp.zeros(k, b.dtype),
        count=jnp.zeros((), jnp.int32),
        correlation=b,
        coming=jnp.where(diagonal[first] > 0, first, -1).astype(jnp.int32),
        passed=jnp.zeros(D, bool),
        excess=jnp.zeros((), b.dtype),
        path=path,
    )


def step(
    state: State,
    columns: Columns,
    b: Float[Array, " D"],
    diagonal: Float[Array, " D"],
    tolerance: Float[Array, ""],
    *,
    lasso: bool,
) -> State:
    """Let the atom come that has drawn level, and go along the equiangular direction to a corner.

    The next corner is where an atom outside has as large a correlation as those inside or, for the
    LASSO, where a coefficient inside passes zero and its atom leaves. Which atoms may do so is
    decided by the direction they move in, so that of several at once each has its turn, by steps of
    length 0.
    """
    path = state.path
    k, D, s = state.active.shape[0], b.shape[0], path.penalty.shape[0] - 1
    eps = epsilon(b.dtype)
    root_eps = float(np.sqrt(eps))
    slots = jnp.arange(k, dtype=jnp.int32)

    # One in the span of those inside keeps level with them without coming, and is passed over.
    atom, wanted = jnp.maximum(state.coming, 0), state.coming >= 0
    column = columns(atom[None])[0]
    own, at = diagonal[atom], jnp.maximum(state.active, 0)
    among = jnp.where(state.active >= 0, column[at], 0)
    row = jax.scipy.linalg.solve_triangular(state.factor, among, lower=True)
    pivot = column[atom] - jnp.sum(jnp.square(row))
    passes = wanted & ~(pivot > NOISE * eps * own)
    # |a_ij|^2 <= a_ii a_jj, to the rounding of either side.
    most = own * ((1 + root_eps) * diagonal + NOISE * eps * jnp.max(diagonal))
    indefinite = wanted & ((pivot < -root_eps * own) | jnp.any(jnp.square(column) > most))
    full = ~passes & wanted & (state.count >= k)
    exhausted = ~passes & (path.steps >= s)
    finite = jnp.all(jnp.isfinite(column) | ~wanted)
    moves = finite & ~indefinite & ~full & ~exhausted
    joins = wanted & ~passes & moves
    new = joins & (slots == state.count)
    root = jnp.sqrt(jnp.where(joins, pivot, 1))
    factor = jnp.where(new[:, None], (row + jnp.where(new, root, 0))[None, :], state.factor)
    shares = jax.scipy.linalg.solve_triangular(state.factor, row, lower=True, trans=1)
    grown = state.inverse + (own + jnp.sum(diagonal[at] * jnp.square(shares))) / jnp.square(root)
    inverse = jnp.where(joins, grown, state.inverse)
    kept_columns = jnp.where(new[:, None], column[None, :], state.columns)
    active = jnp.where(new, atom, state.active)
    sign = jnp.where(new, jnp.sign(state.correlation[atom]), state.sign)
    count = state.count + joins.astype(jnp.int32)
    passed = state.passed | (passes & (jnp.arange(D, dtype=jnp.int32) == atom))

    # The direction in which all correlations inside fall at the same rate.
    inside, at = active >= 0, jnp.maximum(active, 0)
    direction = jnp.where(inside, jax.scipy.linalg.cho_solve((factor, True), sign), 0)
    slope = dot(direction, kept_columns)
    level = jnp.max(jnp.where(inside, jnp.abs(state.correlation[at]), 0))
    # Rounding, as seen on the atoms inside, whose slope is one.
    noise = jnp.max(jnp.where(inside, jnp.abs(slope[at] * sign - 1), 0), initial=16 * eps)
    outside = (diagonal > 0) & ~passed
    outside = outside.at[jnp.where(inside, active, D)].set(False, mode="drop")
    both = jnp.stack([state.correlation, -state.correlation])
    gaining = 1 - jnp.stack([slope, -slope])  # on the level
    joining = jnp.min(_until(level - both, gaining, outside[None] & (gaining > noise)), axis=0)
    leaving = _until(state.weights * sign, -direction * sign, inside & (direction * sign < 0))
    first = jnp.argmin(leaving).astype(jnp.int32)
    gamma = jnp.min(joining, initial=level)
    leaves = moves & (leaving[first] <= gamma) if lasso else jnp.zeros((), bool)
    coming = jnp.where(~leaves & (gamma < level), jnp.argmin(joining), -1).astype(jnp.int32)
    gamma = jnp.where(moves, jnp.where(leaves, leaving[first], gamma), 0)

    weights = jnp.where(leaves & (slots == first), 0, state.weights + gamma * direction)
    correlation = b - dot(weights, kept_columns)
    dense = jnp.zeros(D, b.dtype).at[jnp.where(inside, active, D)].add(weights, mode="drop")
    norm, penalty = jnp.linalg.norm(correlation), level - gamma
    off = jnp.where(inside, jnp.abs(correlation[at] * sign - penalty), 0)
    excess = jnp.maximum(jnp.max(off), jnp.max(jnp.abs(correlation)) - penalty)

    status = jnp.where(penalty <= jnp.maximum(tolerance, 4 * eps) * path.penalty[0], CONVERGED, 0)
    status = jnp.where(exhausted, EXHAUSTED, status)
    status = jnp.where(full, COMPLETED, status)
    status = jnp.where(indefinite, INDEFINITE, status)
    finite &= jnp.isfinite(norm) & jnp.isfinite(penalty)
    status = jnp.where(finite, status, NOT_FINITE)
    # Where an atom was passed over the path has no corner.
    corner = path.steps + (moves & ~passes).astype(jnp.int32)
    onward = moves & (jnp.arange(s + 1, dtype=jnp.int32) >= corner)
    condition = jnp.maximum(count.astype(b.dtype) * inverse, 1)
    path = AnglePath(
        coefficients=jnp.where(onward[:, None], dense[None], path.coefficients),
        penalty=jnp.where(onward, penalty, path.penalty),
        cardinality=jnp.where(onward, count, path.cardinality),
        residual_norm=jnp.where(onward, norm, path.residual_norm),
        explained=jnp.where(onward, dot(b + correlation, dense), path.explained),
        condition=jnp.where(onward, condition, path.condition),
        steps=corner,
        status=status.astype(jnp.int32),
    )
    after = State(
        active=active,
        sign=sign,
        columns=kept_columns,
        factor=factor,
        inverse=inverse,
        weights=weights,
        count=count,
        correlation=correlation,
        coming=coming,
        passed=passed,
        excess=jnp.maximum(state.excess, jnp.where(moves, excess, 0)),
        path=path,
    )
    return jax.lax.cond(leaves, _leave, lambda state, which: state, after, first)


def _leave(state: State, which: Int[Array, ""]) -> State:
    """Without the atom in place `which`; those behind it move up. Rare, so factored again."""
    k = state.active.shape[0]
    slots = jnp.arange(k, dtype=jnp.int32)
    source = jnp.minimum(jnp.where(slots >= which, slots + 1, slots), k - 1)
    active = jnp.where(slots == k - 1, -1, state.active[source])
    inside = active >= 0
    columns = jnp.where(inside[:, None], state.columns[source], 0)
    factor, inverse = factored(columns[:, jnp.maximum(active, 0)], inside)
    return state._replace(
        active=active,
        sign=jnp.where(inside, state.sign[source], 0),
        columns=columns,
        factor=factor,
        inverse=inverse,
        weights=jnp.where(inside, state.weights[source], 0),
        count=state.count - 1,
        passed=jnp.zeros_like(state.passed),  # some may depend on those active no longer
    )


@functools.partial(compiled, static_argnames=("max_atoms", "max_iterations", "lasso"))
def run(
    columns: Columns,
    b: Float[Array, " D"],
    diagonal: Float[Array, " D"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
    max_iterations: int,
    lasso: bool,
) -> AnglePath:
    """Corners until the path ends."""
    state = jax.lax.while_loop(
        lambda state: state.path.status == RUNNING,
        lambda state: step(state, columns, b, diagonal, tolerance, lasso=lasso),
        init(b, diagonal, max_atoms=max_atoms, max_iterations=max_iterations),
    )
    path, eps = state.path, epsilon(b.dtype)
    lost = (eps * jnp.max(path.condition) > LOST) | (
        state.excess > float(np.sqrt(eps)) * path.penalty[0]
    )
    return path._replace(status=jnp.maximum(path.status, lost_if(lost)))


def lars(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """Least angle regression for `A w = b` (Efron et al. 2004; Karsmakers 2011, Section 2.3).

    Atoms come one at a time, each when its correlation `|b - A w|_i` is as large as that of those
    inside, whose correlations fall together. With the last one that there is the path goes to least
    squares. An atom in the span of those inside does not come.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function that gives its columns, see
            `scdp`.
        b: shape `D`.
        max_atoms: atoms at most (static); the path ends where one more would come.
        tolerance: end when the largest correlation is at most `tolerance max |b|`.
        diagonal: of A, shape `D`, if A is given by columns.

    Returns:
        `AnglePath`, of `max_atoms` steps at most. Its status: `CONVERGED` by the tolerance or at
        least squares, `COMPLETED` at `max_atoms`, `INDEFINITE` if A is seen not to be positive
        semi-definite (the path ends before), `PRECISION_LOST` if by `condition` some coefficients
        may be wrong by more than 1e-3, or if at a corner the correlations are not what they should
        be by more than the root of the precision (also for a b that is not in the range of A),
        `NOT_FINITE`.

    Works under `jit` and `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, or more atoms than there are.
        TypeError: if `max_atoms` is no whole number.
    """
    return _path(A, b, max_atoms, max_atoms, tolerance, diagonal, lasso=False)


def lasso(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int,
    max_iterations: int | None = None,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """Solve the LASSO, `min 1/2 w'A w - b'w + lambda |w|_1`, for all lambda, as corners (eq. 7).

    As `lars`, but an atom whose coefficient reaches zero leaves (the drop step), which makes the
    path exactly that of the LASSO.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function that gives its columns, see
            `scdp`.
        b: shape `D`.
        max_atoms: atoms active at once at most (static); the path ends where one more would come.
        max_iterations: corners at most (static); by default `4 max_atoms`. Of atoms that come or
            leave together each takes one, at the same lambda.
        tolerance: end when lambda is at most `tolerance max |b|`.
        diagonal: of A, shape `D`, if A is given by columns.

    Returns:
        `AnglePath`. Its status as of `lars`, and `EXHAUSTED` at `max_iterations`.

    Works under `jit` and `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, more atoms than there are, or less than one step.
        TypeError: if `max_atoms` or `max_iterations` is no whole number.
    """
    steps = 4 * max_atoms if max_iterations is None else max_iterations
    return _path(A, b, max_atoms, steps, tolerance, diagonal, lasso=True)


def _path(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    max_atoms: int,
    max_iterations: int,
    tolerance: ScalarLike,
    diagonal: ArrayLike | None,
    *,
    lasso: bool,
) -> AnglePath:
    systems = single(A, b, diagonal)
    max_atoms = check_atoms(max_atoms, systems.b.shape[1])
    check_nonnegative("tolerance", tolerance)
    path = run(
        systems.columns,
        systems.b[0, :, 0],
        systems.diagonal[0],
        jnp.asarray(tolerance, systems.b.dtype),
        max_atoms=max_atoms,
        max_iterations=whole_number("max_iterations", max_iterations, 1),
        lasso=lasso,
    )
    penalty = times_power(path.penalty[None], systems.scale.b)[0]
    return systems.scale.undone_alone(path)._replace(penalty=penalty)


def single(
    A: Float[ArrayLike, "D D"] | Column, b: Float[ArrayLike, " D"], diagonal: ArrayLike | None
) -> System:
    """Return the system; raise ValueError unless it is one with one right-hand side."""
    systems = system(A, b, diagonal)
    if systems.batched or systems.several:
        raise ValueError("A, b: expected one system with one right-hand side")
    return systems


def factored(
    matrix: Float[Array, "k k"], inside: Bool[Array, " k"]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """Cholesky factor, 1 on empty places, and the trace of the inverse scaled to unit diagonal."""
    unit = jnp.eye(inside.shape[0], dtype=matrix.dtype)
    factor = jnp.linalg.cholesky(jnp.where(inside[:, None] & inside[None, :], matrix, unit))
    solved = jax.scipy.linalg.solve_triangular(factor, unit, lower=True)
    diagonal = jnp.where(inside, jnp.diagonal(matrix), 0)
    return factor, jnp.sum(jnp.square(solved) * diagonal[None, :])


def lost_if(lost: Bool[Array, ""]) -> Int[Array, ""]:
    """`PRECISION_LOST`, or 0."""
    return jnp.where(lost, PRECISION_LOST, 0).astype(jnp.int32)


def _until(gap: Array, speed: Array, moving: Array) -> Array:
    """Length of the step that closes a gap, 0 if rounding has closed it, infinite if none does."""
    return jnp.where(moving, jnp.maximum(gap, 0) / jnp.where(moving, speed, 1), jnp.inf)
