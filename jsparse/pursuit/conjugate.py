"""Sparse conjugate directions pursuit (Karsmakers 2011, Algorithms 2 and 3)."""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._numerics import dot, epsilon
from .._programs import compiled
from .._repr import short_repr
from .._runtime import on_cpu
from .._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import ScalarLike
from .path import (
    Path,
    assemble,
    best_free_atom,
    directions_of,
    norm,
    residual_status,
    truncation_status,
)
from .system import Column, Columns, check_atoms, check_initial, check_nonnegative, scaled_systems

Rule = Literal["residual", "gain"]

# On a CPU, systems of at least this many atoms are solved one after another. Measured on two cores
# for 4 to 100 systems: with 1,000 atoms this takes half the time of stepping together; with 200
# atoms 0.5 to 1 of it; with 100 atoms, 0.4 for four systems and 1.8 for a hundred.
_MANY_ATOMS = 200

# Number of rows of images that a CPU reads at a time. Only filled rows are read, because reading
# takes nearly all of the time.
_ROWS = 32
# Size below which a pivot counts as noise, in units of epsilon. With 16 or 64, steps along noisy
# pivots undid the progress of some paths in float32.
NOISE = 256


class State(NamedTuple):
    """A batch of pursuits that step together; pursuits that have ended are frozen.

    `K` is `max_atoms`, on a CPU rounded up to a multiple of 32 if it is larger than 32.
    """

    images: Float[Array, "v K D"]  # t_j = A p_j; for directions with p_j'A p_j = 1
    residual: Float[Array, "v D c"]  # b - A w, the paper's -c
    remaining: Float[Array, "v D"]  # diagonal of A, less the part explained by the directions
    along: Float[Array, "v K c"]  # eta_j = p_j'b
    support: Int[Array, "v K"]  # s, in the order of selection; -1 for none
    free: Bool[Array, "v D"]  # atoms not selected
    residual_norm: Float[Array, "v e"]  # |b - A w| with 0, 1, .. k atoms
    size: Int[Array, " v"]
    step: Int[Array, ""]
    status: Int[Array, " v"]

    __repr__ = short_repr


def init(
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
) -> State:
    """Return the state before the first step: no selected atoms, and `w = 0`."""
    v, D, c = b.shape
    rows = -(-max_atoms // _rows_in_block(max_atoms)) * _rows_in_block(max_atoms)
    start = norm(b)
    return State(
        images=jnp.zeros((v, rows, D), b.dtype),
        residual=b,
        remaining=diagonal,
        along=jnp.zeros((v, rows, c), b.dtype),
        support=jnp.full((v, rows), -1, jnp.int32),
        free=jnp.ones((v, D), bool),
        residual_norm=jnp.broadcast_to(start[:, None], (v, max_atoms + 1)),
        size=jnp.zeros(v, jnp.int32),
        step=jnp.zeros((), jnp.int32),
        status=residual_status(start, start, tolerance),
    )


def step(
    state: State,
    columns: Columns,
    rounded: Float[Array, "v D"],
    initial: Int[Array, " i"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
    rule: Rule = "residual",
) -> State:
    """Select one atom in each system, and move `w` along the atom's conjugate direction.

    The paper stores the directions P and finds a new one from `B p = 0` by backward substitution
    (eq. 16-18). This function stores the images `t_j = A p_j` instead, scaled to `p_j'A p_j = 1`.
    Then `B_ij = p_i'a_s(j)` is `t_i[s_j]`, and a new direction is `p = e_s - sum_j t_j[s] p_j`,
    because `p_j'A e_s = t_j[s]`. The residual needs only the image of the new direction, `t = a_s -
    sum_j t_j[s] t_j`: one column of A and one product of `k x D`. At the end, one triangular
    inverse gives the directions. The method is a Cholesky factorisation of A with pivots by
    Southwell's rule. Like Cholesky it is backward stable: the condition number of A, not the
    recurrence, limits the precision of the coefficients in float32.
    """
    running = state.status == RUNNING
    # An atom adds only noise if, up to the rounding of sums over rows, the selected atoms span it.
    eps = epsilon(rounded.dtype)
    noise = NOISE * eps * rounded
    free = state.free & (state.remaining > noise)
    score = jnp.sum(jnp.square(state.residual), axis=2)
    if rule == "gain":
        score = score / jnp.where(free, state.remaining, 1)
    atom = best_free_atom(free, score)
    if initial.shape[0] > 0:
        # Take the first initial atom that is neither selected nor spanned by the selected atoms.
        usable = free[:, initial]
        first_usable = initial[jnp.argmax(usable, axis=1)]
        atom = jnp.where(jnp.any(usable, axis=1), first_usable, atom)
    any_left = jnp.any(free, axis=1)
    is_free = _at(free, atom)

    weights = jnp.take_along_axis(state.images, atom[:, None, None], axis=2)[:, :, 0]
    image = columns(atom) - _combine(state.images, weights, state.step)
    pivot = jnp.maximum(_at(image, atom), _at(noise, atom))
    # A Schur complement of a positive semi-definite matrix has a non-negative diagonal. Rounding
    # makes it negative by less than the root of epsilon; below this, A is indefinite.
    negative = state.remaining < -float(np.sqrt(eps)) * jnp.abs(rounded)
    indefinite = running & jnp.any(negative, axis=1)
    adds = running & is_free & ~indefinite
    root = jnp.sqrt(jnp.where(adds, pivot, 1))
    image = jnp.where(adds[:, None], image / root[:, None], 0)
    along = jnp.take_along_axis(state.residual, atom[:, None, None], axis=1)[:, 0] / root[:, None]
    along = jnp.where(adds[:, None], along, 0)
    residual = state.residual - image[:, :, None] * along[:, None, :]
    new_norm = norm(residual)
    size = state.size + adds.astype(jnp.int32)

    status = residual_status(new_norm, state.residual_norm[:, 0], tolerance)
    status = jnp.where((status == RUNNING) & (size >= max_atoms), COMPLETED, status)
    # If the selected atoms span all others, the least-squares solution is reached.
    status = jnp.where((status < NOT_FINITE) & ~any_left, CONVERGED, status)
    status = jnp.where(indefinite, INDEFINITE, status)
    finite = jnp.isfinite(new_norm) & jnp.isfinite(jnp.sum(state.remaining, axis=1))
    status = jnp.where(finite & jnp.isfinite(pivot), status, NOT_FINITE)
    atoms = jnp.arange(state.free.shape[1], dtype=jnp.int32)[None, :]
    selected = adds[:, None] & (atoms == atom[:, None])
    after = jnp.arange(state.residual_norm.shape[1], dtype=jnp.int32)[None, :] > state.size[:, None]
    row = state.step
    return State(
        images=_put(state.images, image, row),
        residual=residual,
        remaining=state.remaining - jnp.square(image),
        along=_put(state.along, along, row),
        support=_put(state.support, jnp.where(adds, atom, -1), row),
        free=state.free & ~selected,
        residual_norm=jnp.where(adds[:, None] & after, new_norm[:, None], state.residual_norm),
        size=size,
        step=row + 1,
        status=jnp.where(running, status.astype(jnp.int32), state.status),
    )


@functools.partial(compiled, static_argnames=("max_atoms", "rule"))
def pursue(
    columns: Columns,
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    rounded: Float[Array, "v D"],
    initial: Int[Array, " i"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
    rule: Rule = "residual",
) -> Path:
    """Return the paths of a batch of systems `A w = b`; see `scdp`.

    On a CPU, large systems are solved one after another. Otherwise the systems step together.

    `columns` gives columns of A. The diagonal of A has a rounding error of about `eps rounded`: if
    A is the difference of two matrices, as after centring, `rounded` is the diagonal of the first
    matrix; otherwise it is `diagonal`. `initial` holds the atoms to select first.
    """
    options = {"max_atoms": max_atoms, "rule": rule}
    v, D = diagonal.shape
    if v > 1 and D >= _MANY_ATOMS and on_cpu():

        def pursue_one(i: Int[Array, ""]) -> Path:
            arrays = (a[i][None] for a in (b, diagonal, rounded))
            path = pursue(columns.of_system(i, v), *arrays, initial, tolerance, **options)
            return jax.tree.map(lambda a: a[0], path)

        return jax.lax.map(pursue_one, jnp.arange(v, dtype=jnp.int32))
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.status == RUNNING),
        lambda state: step(state, columns, rounded, initial, tolerance, **options),
        init(b, diagonal, tolerance, max_atoms=max_atoms),
    )
    support, along = state.support[:, :max_atoms], state.along[:, :max_atoms]
    dependent = state.free & (state.remaining <= NOISE * epsilon(b.dtype) * rounded)
    explained = jnp.sum(jnp.square(along), axis=(1, 2))
    atoms = jnp.maximum(support, 0)
    factor = jnp.take_along_axis(state.images[:, :max_atoms], atoms[:, None, :], axis=2)
    return assemble(
        support,
        directions_of(factor, state.size),
        along,
        jnp.take_along_axis(diagonal, atoms, axis=1),
        state.residual_norm,
        state.size,
        truncation_status(state.status, dependent, state.residual, b, rounded, explained),
    )


def scdp(
    A: Float[ArrayLike, "..."] | Column,
    b: Float[ArrayLike, "..."],
    *,
    max_atoms: int,
    tolerance: ScalarLike = 0.0,
    initial: Sequence[int] | ArrayLike | None = None,
    diagonal: ArrayLike | None = None,
    rule: Rule = "residual",
) -> Path:
    """Return sparse approximate solutions of `A w = b`, atom by atom (Karsmakers 2011, Alg. 3).

    Each step selects the atom of the largest residual, `argmax |(b - A w)_i|` (eq. 19), and
    minimises `1/2 w'A w - b'w` over the atoms selected. For `A = X'X`, `b = X'y` it is orthogonal
    matching pursuit. A step costs one column of A and one product of `k x D`.

    Args:
        A: symmetric, positive semi-definite, shape `D D`; or `v D D` for a batch; or a function
            from the number of an atom (an int32 scalar) to its column, shape `D`; then A is not
            formed. A function that holds arrays should be an `equinox.Module` or
            `jax.tree_util.Partial`, which compile once.
        b: shape `D`, or `D c` for several right-hand sides, after the axis `v` of a batch. Several
            right-hand sides select together, by the Euclidean norm of their residuals.
        max_atoms: length of the path (static).
        tolerance: end when `|b - A w| <= tolerance |b|`, or when the residual is rounding error.
        initial: atoms to select first, in this order (static); by default none. An atom in the
            span of earlier atoms is skipped.
        diagonal: the diagonal of A, shape `D`, if A is given by columns.
        rule: "residual" as above, or "gain": select the atom that decreases the objective most, as
            in orthogonal least squares (Chen et al. 1989). Both rules cost equally much.

    Returns:
        `Path`. Its status is `CONVERGED` by the tolerance, or if the selected atoms span all
        others; `COMPLETED` at `max_atoms`; `TRUNCATED` if atoms were skipped that a higher
        precision could tell from the selected atoms; `INDEFINITE` if A is not positive
        semi-definite (the path ends before); `NOT_FINITE`; or `PRECISION_LOST` if by `condition`
        the relative error of the last coefficients may exceed 1e-3.

    Works under `jit` and `vmap`, but a batch is faster than `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, `max_atoms` outside 1 to D, `initial` atoms that do
            not exist or repeat, a negative tolerance, or an unknown rule.

    Example:
        >>> import jax.numpy as jnp
        >>> A = jnp.array([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 3.0]])
        >>> path = scdp(A, A @ jnp.array([0.0, 5.0, 1.0]), max_atoms=2)
        >>> path.support.tolist(), path.dense(3).round(3).tolist()
        ([1, 2], [0.0, 5.0, 1.0])
    """
    systems = scaled_systems(A, b, diagonal)
    D = systems.b.shape[1]
    max_atoms = check_atoms(max_atoms, D)
    check_nonnegative("tolerance", tolerance)
    if rule not in ("residual", "gain"):
        raise ValueError(f"rule: expected 'residual' or 'gain', got {rule!r}")
    initial_atoms = check_initial(initial, D, max_atoms)
    tolerance = jnp.asarray(tolerance, systems.b.dtype)
    matrices = systems.columns, systems.b, systems.diagonal, systems.diagonal
    path = pursue(*matrices, initial_atoms, tolerance, max_atoms=max_atoms, rule=rule)
    return systems.in_caller_units(path)


def _rows_in_block(max_atoms: int) -> int:
    return min(_ROWS, max_atoms) if on_cpu() else max_atoms


def _combine(
    images: Float[Array, "v K D"], weights: Float[Array, "v K"], filled: Int[Array, ""]
) -> Float[Array, "v D"]:
    """Return `sum_j weights_j images_j`; only the first `filled` rows of `images` are not zero."""
    rows = _rows_in_block(images.shape[1])

    def block(i: Int[Array, ""], total: Float[Array, "v D"]) -> Float[Array, "v D"]:
        part = jax.lax.dynamic_slice_in_dim(images, i * rows, rows, axis=1)
        w = jax.lax.dynamic_slice_in_dim(weights, i * rows, rows, axis=1)
        return total + dot(w[:, None, :], part)[:, 0]

    return jax.lax.fori_loop(0, -(-filled // rows), block, jnp.zeros_like(images[:, 0]))


def _put(rows: Array, row: Array, index: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(rows, row[:, None], index, axis=1)


def _at(values: Array, atom: Int[Array, " v"]) -> Array:
    """Return `values[i, atom[i]]` for each system i."""
    return jnp.take_along_axis(values, atom[:, None], axis=1)[:, 0]
