"""Least angle regression and the LASSO path (Efron et al. 2004; Karsmakers 2011, Section 2.2)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._numerics import dot, epsilon
from .._status import CONVERGED, EXHAUSTED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import ScalarLike
from .system import Column, Columns, check_atoms, check_nonnegative, system


class AnglePath(NamedTuple):
    """The corners of a piecewise linear path, from no atoms on.

    `s` is the cap on steps; corners past `steps` repeat the last.
    """

    coefficients: Float[Array, "s+1 D"]
    penalty: Float[Array, " s+1"]  # lambda of 1/2 w'A w - b'w + lambda |w|_1 at the corner
    cardinality: Int[Array, " s+1"]  # atoms active until the corner
    residual_norm: Float[Array, " s+1"]  # |b - A w|
    explained: Float[Array, " s+1"]  # 2 b'w - w'A w, so much of |y|^2
    steps: Int[Array, ""]
    status: Int[Array, ""]


class State(NamedTuple):
    """At a corner of the path."""

    active: Int[Array, " k"]  # atoms in order of coming, -1 in empty places
    sign: Float[Array, " k"]  # of their correlations
    columns: Float[Array, "k D"]  # of A
    factor: Float[Array, "k k"]  # lower Cholesky factor of A among them, 1 on empty places
    weights: Float[Array, " k"]
    count: Int[Array, ""]
    correlation: Float[Array, " D"]  # b - A w
    free: Bool[Array, " D"]  # neither active nor found to depend on those
    dropped: Int[Array, ""]  # atom that has just left, -1: it may not come back at once
    path: AnglePath


def init(
    b: Float[Array, " D"], diagonal: Float[Array, " D"], *, max_atoms: int, max_steps: int
) -> State:
    """No atoms, `w = 0`."""
    D, k, s = b.shape[0], max_atoms, max_steps
    largest = jnp.max(jnp.abs(b))
    zero = jnp.zeros(s + 1, b.dtype)
    path = AnglePath(
        coefficients=jnp.zeros((s + 1, D), b.dtype),
        penalty=zero + largest,
        cardinality=jnp.zeros(s + 1, jnp.int32),
        residual_norm=zero + jnp.linalg.norm(b),
        explained=zero,
        steps=jnp.zeros((), jnp.int32),
        status=jnp.where(largest == 0, CONVERGED, RUNNING).astype(jnp.int32),
    )
    return State(
        active=jnp.full(k, -1, jnp.int32),
        sign=jnp.zeros(k, b.dtype),
        columns=jnp.zeros((k, D), b.dtype),
        factor=jnp.eye(k, dtype=b.dtype),
        weights=jnp.zeros(k, b.dtype),
        count=jnp.zeros((), jnp.int32),
        correlation=b,
        free=diagonal > 0,
        dropped=jnp.full((), -1, jnp.int32),
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
    """Let one atom come, and go along the equiangular direction to the next corner.

    The next corner is where an atom outside has as large a correlation as those inside or, for the
    LASSO, where a coefficient inside passes zero and its atom leaves.
    """
    k, D = state.active.shape[0], b.shape[0]
    eps = epsilon(b.dtype)
    place = jnp.arange(D, dtype=jnp.int32)
    slots = jnp.arange(k, dtype=jnp.int32)

    # An atom comes, unless one has just left or there is no room.
    outside = state.free & (place != state.dropped)
    atom = jnp.argmax(jnp.where(outside, jnp.abs(state.correlation), -1)).astype(jnp.int32)
    wanted = (state.dropped < 0) & jnp.any(outside) & (state.count < k)
    column = columns(atom[None])[0]
    among = jnp.where(state.active >= 0, column[jnp.maximum(state.active, 0)], 0)
    row = jax.scipy.linalg.solve_triangular(state.factor, among, lower=True)
    pivot = column[atom] - jnp.sum(jnp.square(row))
    joins = wanted & (pivot > 16 * eps * diagonal[atom])
    new = joins & (slots == state.count)
    root = jnp.sqrt(jnp.where(joins, pivot, 1))
    factor = jnp.where(new[:, None], (row + jnp.where(new, root, 0))[None, :], state.factor)
    kept_columns = jnp.where(new[:, None], column[None, :], state.columns)
    active = jnp.where(new, atom, state.active)
    sign = jnp.where(new, jnp.sign(state.correlation[atom]), state.sign)
    count = state.count + joins.astype(jnp.int32)
    free = state.free & ~(wanted & (place == atom))
    # An atom in the span of those inside is passed over, without a move.
    moves = joins | ~wanted

    # The direction in which all correlations inside fall at the same rate.
    direction = jax.scipy.linalg.cho_solve((factor, True), sign)
    direction = jnp.where(active >= 0, direction, 0)
    slope = dot(direction, kept_columns)
    level = jnp.max(jnp.where(active >= 0, jnp.abs(_at(state.correlation, active)), 0))
    # Steps at which an atom outside draws level; one that is so already, by a tie, at once.
    c, behind = state.correlation, -16 * eps * level
    left = place == state.dropped  # falls below the level, but may draw level with the other sign
    upper = jnp.where(free & ~(left & (c > 0)), _step(level - c, 1 - slope), jnp.inf)
    lower = jnp.where(free & ~(left & (c < 0)), _step(level + c, 1 + slope), jnp.inf)
    ahead = jnp.stack([upper, lower])
    gamma = jnp.min(jnp.where(ahead > behind, jnp.maximum(ahead, 0), jnp.inf), initial=level)
    crossing = _step(-state.weights, direction)
    crossing = jnp.where((active >= 0) & ~new & (crossing > 0), crossing, jnp.inf)
    first = jnp.argmin(crossing).astype(jnp.int32)
    leaves = (crossing[first] < gamma) if lasso else jnp.zeros((), bool)
    leaves = leaves & moves
    gamma = jnp.where(moves, jnp.where(leaves, crossing[first], gamma), 0)

    weights = jnp.where(active >= 0, state.weights + gamma * direction, 0)
    weights = jnp.where(leaves & (slots == first), 0, weights)
    inside = active >= 0
    correlation = b - dot(weights, kept_columns)
    corner = state.path.steps + moves.astype(jnp.int32)
    dense = jnp.zeros(D, b.dtype).at[jnp.where(inside, active, D)].add(weights, mode="drop")
    explained = dot(b + correlation, dense)
    dropped = jnp.where(leaves, active[first], -1)

    stay = _leave(active, sign, kept_columns, factor, weights, first, leaves)
    active, sign, kept_columns, factor, weights = stay
    path = state.path
    onward = jnp.arange(path.penalty.shape[0], dtype=jnp.int32) >= corner
    norm, penalty = jnp.linalg.norm(correlation), level - gamma
    status = jnp.where(penalty <= jnp.maximum(tolerance, 4 * eps) * path.penalty[0], CONVERGED, 0)
    status = jnp.where(
        (status == RUNNING)
        & moves
        & ((corner >= path.penalty.shape[0] - 1) | ((count >= k) & ~leaves)),
        EXHAUSTED,
        status,
    )
    status = jnp.where(wanted & (pivot < -jnp.sqrt(eps) * diagonal[atom]), INDEFINITE, status)
    status = jnp.where(jnp.isfinite(norm) & jnp.isfinite(penalty), status, NOT_FINITE)
    return State(
        active=active,
        sign=sign,
        columns=kept_columns,
        factor=factor,
        weights=weights,
        count=count - leaves.astype(jnp.int32),
        correlation=correlation,
        free=free | (leaves & (place == dropped)),
        dropped=dropped,
        path=AnglePath(
            coefficients=jnp.where(onward[:, None], dense[None], path.coefficients),
            penalty=jnp.where(onward, penalty, path.penalty),
            cardinality=jnp.where(onward, count, path.cardinality),
            residual_norm=jnp.where(onward, norm, path.residual_norm),
            explained=jnp.where(onward, explained, path.explained),
            steps=corner,
            status=status.astype(jnp.int32),
        ),
    )


def _leave(
    active: Array,
    sign: Array,
    columns: Array,
    factor: Array,
    weights: Array,
    which: Int[Array, ""],
    leaves: Bool[Array, ""],
) -> tuple[Array, Array, Array, Array, Array]:
    """Without the atom in place `which`; those behind it move up. Rare, so factored anew."""

    def without() -> tuple[Array, Array, Array, Array, Array]:
        k = active.shape[0]
        slots = jnp.arange(k, dtype=jnp.int32)
        source = jnp.minimum(jnp.where(slots >= which, slots + 1, slots), k - 1)
        last = slots == k - 1
        after = jnp.where(last, -1, active[source])
        inside = after >= 0
        rows = jnp.where(inside[:, None], columns[source], 0)
        among = rows[:, jnp.maximum(after, 0)]
        both = inside[:, None] & inside[None, :]
        matrix = jnp.where(both, among, jnp.eye(k, dtype=factor.dtype))
        return (
            after,
            jnp.where(inside, sign[source], 0),
            rows,
            jnp.linalg.cholesky(matrix),
            jnp.where(inside, weights[source], 0),
        )

    return jax.lax.cond(leaves, without, lambda: (active, sign, columns, factor, weights))


@functools.partial(jax.jit, static_argnames=("max_atoms", "max_steps", "lasso"))
def run(
    columns: Columns,
    b: Float[Array, " D"],
    diagonal: Float[Array, " D"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
    max_steps: int,
    lasso: bool,
) -> AnglePath:
    """Corners until the path ends."""
    return jax.lax.while_loop(
        lambda state: state.path.status == RUNNING,
        lambda state: step(state, columns, b, diagonal, tolerance, lasso=lasso),
        init(b, diagonal, max_atoms=max_atoms, max_steps=max_steps),
    ).path


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
    inside, whose correlations fall together.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function that gives its columns, see
            `scdp`.
        b: shape `D`.
        max_atoms: atoms at most (static); with the last the path goes to least squares.
        tolerance: end when the largest correlation is at most `tolerance max |b|`.
        diagonal: of A, shape `D`, if A is given by columns.

    Raises:
        ValueError: for shapes that do not fit, or more atoms than there are.
    """
    return _path(A, b, max_atoms, max_atoms, tolerance, diagonal, lasso=False)


def lasso(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int,
    max_steps: int | None = None,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """The LASSO path, `min 1/2 w'A w - b'w + lambda |w|_1` for all lambda, as corners (eq. 7).

    As `lars`, but an atom whose coefficient reaches zero leaves (the drop step), which makes the
    path exactly that of the LASSO.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function that gives its columns, see
            `scdp`.
        b: shape `D`.
        max_atoms: atoms active at once at most (static).
        max_steps: corners at most (static); by default `4 max_atoms`.
        tolerance: end when lambda is at most `tolerance max |b|`.
        diagonal: of A, shape `D`, if A is given by columns.

    Raises:
        ValueError: for shapes that do not fit, or more atoms than there are.
    """
    steps = 4 * max_atoms if max_steps is None else max_steps
    return _path(A, b, max_atoms, steps, tolerance, diagonal, lasso=True)


@functools.partial(jax.jit, static_argnames="max_atoms")
def debiased(
    path: AnglePath, A: Float[Array, "D D"], b: Float[Array, " D"], *, max_atoms: int
) -> AnglePath:
    """Least squares on the atoms of each corner (the de-bias step; Karsmakers 2011, Remark 1).

    Args:
        path: of `lars` or `lasso`.
        A: shape `D D`.
        b: shape `D`.
        max_atoms: most nonzeros of a corner (static).
    """
    D = b.shape[0]

    def corner(w: Float[Array, " D"]) -> tuple[Array, Array, Array]:
        atoms = jnp.nonzero(w, size=max_atoms, fill_value=D)[0].astype(jnp.int32)
        inside, at = atoms < D, jnp.minimum(atoms, D - 1)
        both = inside[:, None] & inside[None, :]
        matrix = jnp.where(both, A[at[:, None], at[None, :]], jnp.eye(max_atoms, dtype=A.dtype))
        rhs = jnp.where(inside, b[at], 0)
        solved = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), rhs)
        dense = jnp.zeros_like(w).at[atoms].add(solved, mode="drop")
        residual = b - dot(A, dense)
        return dense, jnp.linalg.norm(residual), dot(b + residual, dense)

    dense, norm, explained = jax.lax.map(corner, path.coefficients)
    return path._replace(coefficients=dense, residual_norm=norm, explained=explained)


def _path(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    max_atoms: int,
    max_steps: int,
    tolerance: ScalarLike,
    diagonal: ArrayLike | None,
    *,
    lasso: bool,
) -> AnglePath:
    posed = system(A, b, diagonal)
    if posed.batched or posed.several:
        raise ValueError("A, b: expected one system with one right-hand side")
    max_atoms = check_atoms(max_atoms, posed.b.shape[1])
    check_nonnegative("tolerance", tolerance)
    if max_steps < 1:
        raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
    return run(
        posed.columns,
        posed.b[0, :, 0],
        posed.diagonal[0],
        jnp.asarray(tolerance, posed.b.dtype),
        max_atoms=max_atoms,
        max_steps=max_steps,
        lasso=lasso,
    )


def _at(values: Float[Array, " D"], atoms: Int[Array, " k"]) -> Float[Array, " k"]:
    return values[jnp.maximum(atoms, 0)]


def _step(distance: Array, speed: Array) -> Array:
    """`distance / speed`, infinite where the speed is 0."""
    return jnp.where(speed != 0, distance / jnp.where(speed != 0, speed, 1), jnp.inf)
