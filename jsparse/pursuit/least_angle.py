"""Least angle regression and the LASSO path (Efron et al. 2004; Karsmakers 2011, Section 2.2)."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._arguments import whole_number
from .._numerics import dot, epsilon, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import ScalarLike
from .path import LOST, precision_status
from .system import Column, Columns, System, check_atoms, check_nonnegative, scaled_systems

# Size below which a pivot counts as noise, in units of epsilon. It is smaller than in `conjugate`,
# because the correlation of a skipped atom may exceed the active correlations. On kernel columns
# closer than a lengthscale, in float32, the path was lost at 1e-4 of the largest penalty with 256,
# and at 1e-5 with 16.
NOISE = 16


class AnglePath(NamedTuple):
    """The corners of the piecewise linear path of `w`, from `w = 0` in row 0.

    `s` is the limit of steps, of which each leads to one corner. Rows after `steps` repeat the last
    corner.
    """

    coefficients: Float[Array, "s+1 D"]
    penalty: Float[Array, " s+1"]  # lambda of 1/2 w'A w - b'w + lambda |w|_1 at the corner
    cardinality: Int[Array, " s+1"]  # number of active atoms on the segment up to the corner
    residual_norm: Float[Array, " s+1"]  # |b - A w|
    explained: Float[Array, " s+1"]  # 2 b'w - w'A w, the explained part of |y|^2
    # estimated condition number of A among the active atoms, scaled to unit diagonal
    condition: Float[Array, " s+1"]
    steps: Int[Array, ""]  # number of corners after the start
    status: Int[Array, ""]

    __repr__ = short_repr


class State(NamedTuple):
    """The state at a corner of the path."""

    active: Int[Array, " k"]  # atoms in the order in which they entered, -1 in unused places
    sign: Float[Array, " k"]  # signs of the correlations of the active atoms
    factor: Float[Array, "k k"]  # upper R with R'R = A at the active atoms; identity elsewhere
    rows: Float[Array, "k D"]  # R'^(-1) times the rows of A at the active atoms; 0 elsewhere
    reduced_sign: Float[Array, " k"]  # R'^(-1) sign
    inverse: Float[Array, ""]  # trace of inverse of A at the active atoms, scaled to diagonal 1
    weights: Float[Array, " k"]  # coefficients of the active atoms
    count: Int[Array, ""]  # number of active atoms
    correlation: Float[Array, " D"]  # b - A w
    # atom whose correlation has reached the active correlations; -1 for none
    entering: Int[Array, ""]
    skipped: Bool[Array, " D"]  # atoms in the span of the active atoms
    violation: Float[Array, ""]  # largest violation of the conditions of a corner so far
    path: AnglePath

    __repr__ = short_repr


def init(
    b: Float[Array, " D"], diagonal: Float[Array, " D"], *, max_atoms: int, max_iterations: int
) -> State:
    """Return the state at the start of the path: no active atoms, `w = 0`.

    The atom with the largest correlation `|b|` is the first to enter.
    """
    D, k, s = b.shape[0], max_atoms, max_iterations
    largest = jnp.max(jnp.abs(b))
    zero = jnp.zeros(s + 1, b.dtype)
    finite = jnp.isfinite(largest) & jnp.all(jnp.isfinite(diagonal))
    status = jnp.where(largest == 0, CONVERGED, RUNNING)
    # Rounding makes a sum over rows negative by less than this; below it, A is indefinite.
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
        factor=jnp.eye(k, dtype=b.dtype),
        rows=jnp.zeros((k, D), b.dtype),
        reduced_sign=jnp.zeros(k, b.dtype),
        inverse=jnp.zeros((), b.dtype),
        weights=jnp.zeros(k, b.dtype),
        count=jnp.zeros((), jnp.int32),
        correlation=b,
        entering=jnp.where(diagonal[first] > 0, first, -1).astype(jnp.int32),
        skipped=jnp.zeros(D, bool),
        violation=jnp.zeros((), b.dtype),
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
    """Add the entering atom, if there is one, and move equiangularly to the next corner.

    At the next corner, the correlation of an inactive atom reaches the correlation of the active
    atoms or, for the LASSO, a coefficient reaches zero and its atom leaves. The direction of
    movement decides which atoms may enter or leave, so that several simultaneous events are
    processed one by one in steps of length 0.
    """
    path = state.path
    k, D, s = state.active.shape[0], b.shape[0], path.penalty.shape[0] - 1
    eps = epsilon(b.dtype)
    root_eps = float(np.sqrt(eps))
    slots = jnp.arange(k, dtype=jnp.int32)

    # An atom in the span of the active atoms stays level with them, so it is skipped.
    atom, has_atom = jnp.maximum(state.entering, 0), state.entering >= 0
    column, square = columns(atom[None])[0], diagonal[atom]
    row = state.rows[:, atom]  # the part of the column in the span of the active atoms
    pivot = column[atom] - jnp.sum(jnp.square(row))
    skips = has_atom & ~(pivot > NOISE * eps * square)
    # If A is positive semi-definite, |a_ij|^2 <= a_ii a_jj up to rounding.
    bound = square * ((1 + root_eps) * diagonal + NOISE * eps * jnp.max(diagonal))
    indefinite = has_atom & ((pivot < -root_eps * square) | jnp.any(jnp.square(column) > bound))
    full = ~skips & has_atom & (state.count >= k)
    exhausted = ~skips & (path.steps >= s)
    finite = jnp.all(jnp.isfinite(column) | ~has_atom)
    advances = finite & ~indefinite & ~full & ~exhausted
    joins = has_atom & ~skips & advances
    skipped = state.skipped | (skips & (jnp.arange(D, dtype=jnp.int32) == atom))

    # One product with the rows gives all that this step needs of A. At the active atoms `factor'
    # rows` is A; `condition` tells when rounding spoils this.
    coordinates = dot(state.factor, state.weights)  # A w = rows' coordinates
    in_span, slope, fitted = dot(jnp.stack([row, state.reduced_sign, coordinates]), state.rows)
    root = jnp.sqrt(jnp.where(joins, pivot, 1))
    place = jnp.minimum(state.count, k - 1)
    new_row = jnp.where(joins, (column - in_span) / root, state.rows[place])
    rows = state.rows.at[place].set(new_row)
    new = joins & (slots == state.count)
    factor = jnp.where(new[None, :], (row + jnp.where(new, root, 0))[:, None], state.factor)
    active = jnp.where(new, atom, state.active)
    new_sign = jnp.sign(state.correlation[atom])
    sign = jnp.where(new, new_sign, state.sign)
    new_reduced_sign = (new_sign - jnp.sum(row * state.reduced_sign)) / root
    reduced_sign = jnp.where(new, new_reduced_sign, state.reduced_sign)
    slope = jnp.where(joins, slope + new_reduced_sign * new_row, slope)
    count = state.count + joins.astype(jnp.int32)

    # In this direction all active correlations fall at an equal rate.
    inside, at = active >= 0, jnp.maximum(active, 0)
    sides = jnp.stack([reduced_sign, new.astype(b.dtype)], axis=1)
    direction, last_of_inverse = jax.scipy.linalg.solve_triangular(factor, sides).T
    inverse = state.inverse + jnp.sum(diagonal[at] * jnp.square(last_of_inverse))
    level = jnp.max(jnp.where(inside, jnp.abs(state.correlation[at]), 0))
    # The exact slope of active atoms is 1, so its deviation estimates the rounding.
    noise = jnp.max(jnp.where(inside, jnp.abs(slope[at] * sign - 1), 0), initial=16 * eps)
    inactive = (diagonal > 0) & ~skipped
    inactive = inactive.at[jnp.where(inside, active, D)].set(False, mode="drop")
    signed = jnp.stack([state.correlation, -state.correlation])
    speed = 1 - jnp.stack([slope, -slope])  # of atoms towards the active correlations
    approaching = inactive[None] & (speed > noise)
    entry = jnp.min(_time_to_close(level - signed, speed, approaching), axis=0)
    shrinkage = -direction * sign  # of the magnitudes of the active coefficients
    departure = _time_to_close(state.weights * sign, shrinkage, inside & (shrinkage > 0))
    first = jnp.argmin(departure).astype(jnp.int32)
    step_length = jnp.min(entry, initial=level)
    leaves = advances & (departure[first] <= step_length) if lasso else jnp.zeros((), bool)
    entering = jnp.where(~leaves & (step_length < level), jnp.argmin(entry), -1).astype(jnp.int32)
    step_length = jnp.where(advances, jnp.where(leaves, departure[first], step_length), 0)

    weights = jnp.where(leaves & (slots == first), 0, state.weights + step_length * direction)
    correlation = b - fitted - step_length * slope
    dense = jnp.zeros(D, b.dtype).at[jnp.where(inside, active, D)].add(weights, mode="drop")
    norm, penalty = jnp.linalg.norm(correlation), level - step_length
    deviation = jnp.where(inside, jnp.abs(correlation[at] * sign - penalty), 0)
    violation = jnp.maximum(jnp.max(deviation), jnp.max(jnp.abs(correlation)) - penalty)

    status = jnp.where(penalty <= jnp.maximum(tolerance, 4 * eps) * path.penalty[0], CONVERGED, 0)
    status = jnp.where(exhausted, EXHAUSTED, status)
    status = jnp.where(full, COMPLETED, status)
    status = jnp.where(indefinite, INDEFINITE, status)
    finite &= jnp.isfinite(norm) & jnp.isfinite(penalty)
    status = jnp.where(finite, status, NOT_FINITE)
    # If an atom was skipped, the path has no corner here.
    corner = path.steps + (advances & ~skips).astype(jnp.int32)
    from_corner = advances & (jnp.arange(s + 1, dtype=jnp.int32) >= corner)
    condition = jnp.maximum(count.astype(b.dtype) * inverse, 1)
    path = AnglePath(
        # `run` repeats the last corner in the rows after it.
        coefficients=path.coefficients.at[corner].set(
            jnp.where(advances, dense, path.coefficients[corner])
        ),
        penalty=jnp.where(from_corner, penalty, path.penalty),
        cardinality=jnp.where(from_corner, count, path.cardinality),
        residual_norm=jnp.where(from_corner, norm, path.residual_norm),
        explained=jnp.where(from_corner, dot(b + correlation, dense), path.explained),
        condition=jnp.where(from_corner, condition, path.condition),
        steps=corner,
        status=status.astype(jnp.int32),
    )
    next_state = State(
        active=active,
        sign=sign,
        factor=factor,
        rows=rows,
        reduced_sign=reduced_sign,
        inverse=inverse,
        weights=weights,
        count=count,
        correlation=correlation,
        entering=entering,
        skipped=skipped,
        violation=jnp.maximum(state.violation, jnp.where(advances, violation, 0)),
        path=path,
    )
    if not lasso:
        return next_state
    return jax.lax.cond(
        leaves, lambda state: _leave(state, first, diagonal), lambda state: state, next_state
    )


def _leave(state: State, which: Int[Array, ""], diagonal: Float[Array, " D"]) -> State:
    """Remove the active atom `state.active[which]`, and shift later ones.

    Without its column, R has one element below the diagonal in every later column. Rotations of
    neighbouring rows remove these elements, and leave `factor' rows` unchanged.
    """
    k, last = state.active.shape[0], state.count - 1
    slots = jnp.arange(k, dtype=jnp.int32)
    source = jnp.minimum(jnp.where(slots >= which, slots + 1, slots), k - 1)
    inside = slots < last
    active = jnp.where(inside, state.active[source], -1)
    tables = state.factor[:, source], state.rows, state.reduced_sign[:, None]

    def rotate(j: Int[Array, ""], tables: tuple[Array, ...]) -> tuple[Array, ...]:
        """Rotate rows `j` and `j + 1` so that element `j + 1, j` of the first table becomes 0."""
        upper, lower = tables[0][j, j], tables[0][j + 1, j]
        norm = jnp.hypot(upper, lower)
        cosine, sine = upper / norm, lower / norm
        rotation = jnp.stack([jnp.stack([cosine, sine]), jnp.stack([-sine, cosine])])

        def rotated(table: Float[Array, "k _"]) -> Float[Array, "k _"]:
            pair = jax.lax.dynamic_slice_in_dim(table, j, 2)
            return jax.lax.dynamic_update_slice_in_dim(table, dot(rotation, pair), j, 0)

        return jax.tree.map(rotated, tables)

    if k > 1:  # a single row has no neighbour
        tables = jax.lax.fori_loop(which, last, rotate, tables)
    factor, rows, reduced_sign = tables
    identity = jnp.eye(k, dtype=factor.dtype)
    factor = jnp.where(inside[:, None] & inside[None, :], jnp.triu(factor), identity)
    inverse = jax.scipy.linalg.solve_triangular(factor, identity)
    active_diagonal = jnp.where(inside, diagonal[jnp.maximum(active, 0)], 0)
    return state._replace(
        active=active,
        sign=jnp.where(inside, state.sign[source], 0),
        factor=factor,
        rows=jnp.where(inside[:, None], rows, 0),
        reduced_sign=jnp.where(inside, reduced_sign[:, 0], 0),
        inverse=jnp.sum(jnp.square(inverse) * active_diagonal[:, None]),
        weights=jnp.where(inside, state.weights[source], 0),
        count=last,
        # skipped atoms may now be independent of the active atoms
        skipped=jnp.zeros_like(state.skipped),
    )


@functools.partial(
    compiled, static_argnames=("max_atoms", "max_iterations", "lasso", "largest_condition")
)
def run(
    columns: Columns,
    b: Float[Array, " D"],
    diagonal: Float[Array, " D"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
    max_iterations: int,
    lasso: bool,
    largest_condition: float = math.inf,
) -> AnglePath:
    """Return the path of `lars`, or of `lasso`, in the units of the scaled arguments.

    The path ends at the first corner whose condition exceeds `largest_condition`. Then the status
    stays RUNNING, unless another rule ends the path there or the precision is lost.
    """
    state = jax.lax.while_loop(
        lambda state: (
            (state.path.status == RUNNING)
            & ~(state.path.condition[state.path.steps] > largest_condition)
        ),
        lambda state: step(state, columns, b, diagonal, tolerance, lasso=lasso),
        init(b, diagonal, max_atoms=max_atoms, max_iterations=max_iterations),
    )
    path, eps = state.path, epsilon(b.dtype)
    violated = state.violation > float(np.sqrt(eps)) * path.penalty[0]
    lost = (eps * jnp.max(path.condition) > LOST) | violated
    corners = jnp.minimum(jnp.arange(len(path.penalty), dtype=jnp.int32), path.steps)
    return path._replace(
        coefficients=path.coefficients[corners],
        status=jnp.maximum(path.status, precision_status(lost)),
    )


def lars(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """Run least angle regression for `A w = b` (Efron et al. 2004; Karsmakers 2011, Section 2.3).

    Atoms enter one at a time. The correlations of the active atoms fall together. An atom enters
    when its correlation `|b - A w|_i` equals the active correlations, unless the active atoms span
    it. After the last atom has entered, the path ends at the least-squares solution.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function from the number of an atom
            to its column.
        b: shape `D`.
        max_atoms: largest number of atoms (static). The path ends before one more would enter.
        tolerance: end when the largest correlation is at most `tolerance max |b|`.
        diagonal: the diagonal of A, shape `D`, if A is given by columns.

    Returns:
        `AnglePath`, of at most `max_atoms` steps. Its status is `CONVERGED` by the tolerance or at
        least squares; `COMPLETED` at `max_atoms`; `INDEFINITE` if A is not positive semi-definite
        (the path ends before); or `NOT_FINITE`. It is `PRECISION_LOST` if by `condition` the
        relative error of some coefficients may exceed 1e-3. It is also `PRECISION_LOST` if the
        correlations at a corner violate its conditions by more than the root of epsilon, as they do
        if b is not in the range of A.

    Works under `jit` and `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, a `max_atoms` that is not a whole number from 1 to
            D, or a negative tolerance.
    """
    return _path(A, b, max_atoms, None, tolerance, diagonal, lasso=False)


def lasso(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int,
    max_iterations: int | None = None,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """Solve the LASSO, `min 1/2 w'A w - b'w + lambda |w|_1`, for all lambda (eq. 7).

    The method is `lars` with a drop step: an atom leaves when its coefficient reaches zero. The
    corners then are the corners of the LASSO's solution path.

    Args:
        A: symmetric, positive semi-definite, shape `D D`, or a function from the number of an atom
            to its column.
        b: shape `D`.
        max_atoms: largest number of active atoms (static). The path ends before one more would
            enter.
        max_iterations: largest number of corners (static); by default `4 max_atoms`. If several
            atoms enter or leave at one lambda, each has a corner.
        tolerance: end when lambda is at most `tolerance max |b|`.
        diagonal: the diagonal of A, shape `D`, if A is given by columns.

    Returns:
        `AnglePath`, of at most `max_iterations` steps. The status is `EXHAUSTED` if this limit ends
        the path; otherwise it has the meaning stated at `lars`.

    Works under `jit` and `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, a `max_atoms` that is not a whole number from 1 to
            D, a `max_iterations` that is not one of at least 1, or a negative tolerance.
    """
    return _path(A, b, max_atoms, max_iterations, tolerance, diagonal, lasso=True)


def _path(
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    max_atoms: int,
    max_iterations: int | None,
    tolerance: ScalarLike,
    diagonal: ArrayLike | None,
    *,
    lasso: bool,
) -> AnglePath:
    """Check the arguments of `lars` or `lasso`, and return the path in the caller's units."""
    systems = single_system(A, b, diagonal)
    max_atoms = check_atoms(max_atoms, systems.b.shape[1])
    if max_iterations is None:
        max_iterations = 4 * max_atoms if lasso else max_atoms
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
    return systems.scale.unscaled_single(path)._replace(penalty=penalty)


def single_system(
    A: Float[ArrayLike, "D D"] | Column, b: Float[ArrayLike, " D"], diagonal: ArrayLike | None
) -> System:
    """Return `A w = b`, scaled; raise ValueError unless it is one system with one vector `b`."""
    systems = scaled_systems(A, b, diagonal)
    if systems.batched or systems.several:
        raise ValueError("A, b: expected one system with one right-hand side")
    return systems


def factored(
    matrix: Float[Array, "k k"], filled: Bool[Array, " k"]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """Return the Cholesky factor of `matrix`, and the trace of its inverse scaled to unit diagonal.

    Rows and columns that are not `filled` count as rows of the identity, and not in the trace.
    """
    identity = jnp.eye(filled.shape[0], dtype=matrix.dtype)
    factor = jnp.linalg.cholesky(jnp.where(filled[:, None] & filled[None, :], matrix, identity))
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    diagonal = jnp.where(filled, jnp.diagonal(matrix), 0)
    return factor, jnp.sum(jnp.square(inverse) * diagonal[None, :])


def _time_to_close(gap: Array, speed: Array, moving: Array) -> Array:
    """Return the step length that closes `gap`: 0 if it is closed, infinity if not `moving`."""
    return jnp.where(moving, jnp.maximum(gap, 0) / jnp.where(moving, speed, 1), jnp.inf)
