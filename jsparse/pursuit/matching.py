"""Matching pursuit and forward stagewise regression (Karsmakers 2011, Algorithm 1)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arguments import whole_number
from .._numerics import epsilon, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, INDEFINITE, NOT_FINITE, RUNNING, TRUNCATED
from .._types import Key, ScalarLike
from .path import Path, norm, residual_status
from .system import Column, Columns, check_atoms, check_nonnegative, scaled_systems


class State(NamedTuple):
    """A batch of pursuits that step together; pursuits that have ended are frozen."""

    residual: Float[Array, "v D c"]  # b - A w, the paper's -c
    weights: Float[Array, "v k c"]  # weights of the selected atoms
    path: Float[Array, "v k k c"]  # row i: weights just before atom i + 1 was selected
    slot: Int[Array, "v D"]  # index of an atom in the support, k if it is not selected
    support: Int[Array, "v k"]  # in the order of selection, -1 for none
    residual_norm: Float[Array, "v e"]  # |b - A w| with 0, 1, .. k atoms, just before the next atom
    explained: Float[Array, "v e"]  # 2 b'w - w'A w, just before the next atom
    size: Int[Array, " v"]
    step: Int[Array, ""]
    status: Int[Array, " v"]

    __repr__ = short_repr


def init(b: Float[Array, "v D c"], tolerance: Float[Array, ""], *, max_atoms: int) -> State:
    """Return the state before the first step: no selected atoms, and `w = 0`."""
    v, D, c = b.shape
    k, start = max_atoms, norm(b)
    return State(
        residual=b,
        weights=jnp.zeros((v, k, c), b.dtype),
        path=jnp.zeros((v, k, k, c), b.dtype),
        slot=jnp.full((v, D), k, jnp.int32),
        support=jnp.full((v, k), -1, jnp.int32),
        residual_norm=jnp.broadcast_to(start[:, None], (v, k + 1)),
        explained=jnp.zeros((v, k + 1), b.dtype),
        size=jnp.zeros(v, jnp.int32),
        step=jnp.zeros((), jnp.int32),
        status=residual_status(start, start, tolerance),
    )


def step(
    state: State,
    columns: Columns,
    diagonal: Float[Array, "v D"],
    shrinkage: Float[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: int,
    key: Key | None = None,
    subset: int | None = None,
) -> State:
    """Change the coefficient of each system's atom with the largest residual, to shrink it.

    With `key` and `subset` only a random subset of the atoms is examined.
    """
    running = state.status == RUNNING
    v, k = state.support.shape
    lane, D = jnp.arange(v, dtype=jnp.int32), state.slot.shape[1]
    score = jnp.sum(jnp.square(state.residual), axis=2)
    score = jnp.where(diagonal > 0, score, 0)
    if key is not None and subset is not None:
        order = jax.random.uniform(jax.random.fold_in(key, state.step), (D,), jnp.float32)
        _, examined = jax.lax.top_k(order, subset)
        score = jnp.where(jnp.zeros(D, bool).at[examined].set(True)[None, :], score, 0)
    atom = jnp.argmax(score, axis=1).astype(jnp.int32)
    has_atom = score[lane, atom] > 0
    index = jnp.minimum(state.slot[lane, atom], state.size)
    full = index >= k  # one atom more than the path can hold
    moves = running & ~full & has_atom
    column, square = columns(atom), diagonal[lane, atom]
    atom_residual = state.residual[lane, atom]
    beta = shrinkage * atom_residual / jnp.where(square > 0, square, 1)[:, None]
    beta = jnp.where(moves[:, None], beta, 0)
    residual = state.residual - column[:, :, None] * beta[:, None, :]
    new_norm = norm(residual)
    slot = jnp.where(moves, index, k)
    weights = state.weights.at[lane, slot].add(beta, mode="drop")
    size = jnp.maximum(state.size, jnp.where(moves, index + 1, 0))
    count = jnp.arange(k + 1, dtype=jnp.int32)[None, :]
    reached = moves[:, None] & (count >= size[:, None])
    gain = jnp.sum(2 * beta * atom_residual, axis=1) - square * jnp.sum(jnp.square(beta), axis=1)
    explained = jnp.max(state.explained, axis=1) + gain

    status = residual_status(new_norm, state.residual_norm[:, 0], tolerance)
    limit_status = jnp.where(state.step + 1 >= max_iterations, EXHAUSTED, status)
    # The pursuit cannot go on if only atoms of length zero, in this precision, have a residual.
    usable_norm = norm(jnp.where((diagonal > 0)[:, :, None], residual, 0))
    stuck = residual_status(usable_norm, state.residual_norm[:, 0], tolerance) == CONVERGED
    limit_status = jnp.where(stuck, TRUNCATED, jnp.where(full, COMPLETED, limit_status))
    status = jnp.where(status == RUNNING, limit_status, status)
    # In a positive semi-definite matrix a_ij^2 <= a_ii a_jj.
    slack = 1 + float(np.sqrt(epsilon(new_norm.dtype)))
    violates = jnp.square(column) > slack * square[:, None] * diagonal
    indefinite = jnp.any(diagonal < 0, axis=1) | (moves & jnp.any(violates, axis=1))
    status = jnp.where((status < NOT_FINITE) & indefinite, INDEFINITE, status)
    status = jnp.where(jnp.isfinite(jnp.sum(diagonal, axis=1)), status, NOT_FINITE)
    return State(
        residual=residual,
        weights=weights,
        path=state.path.at[lane, size - 1].set(weights),
        slot=state.slot.at[lane, jnp.where(moves, atom, D)].set(index, mode="drop"),
        support=state.support.at[lane, slot].set(atom, mode="drop"),
        residual_norm=jnp.where(reached, new_norm[:, None], state.residual_norm),
        explained=jnp.where(reached, explained[:, None], state.explained),
        size=size,
        step=state.step + 1,
        status=jnp.where(running, status.astype(jnp.int32), state.status),
    )


@functools.partial(compiled, static_argnames=("max_atoms", "max_iterations", "subset"))
def run(
    columns: Columns,
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    shrinkage: Float[Array, ""],
    tolerance: Float[Array, ""],
    key: Key | None = None,
    *,
    max_atoms: int,
    max_iterations: int,
    subset: int | None = None,
) -> Path:
    """Step until every pursuit has ended, and return the paths."""
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.status == RUNNING),
        lambda state: step(
            state, columns, diagonal, shrinkage, tolerance, max_iterations, key, subset
        ),
        init(b, tolerance, max_atoms=max_atoms),
    )
    # Rows beyond the size that was reached repeat the last row.
    at = jnp.minimum(jnp.arange(max_atoms, dtype=jnp.int32)[None], state.size[:, None] - 1)
    rows = jnp.take_along_axis(state.path, jnp.maximum(at, 0)[:, :, None, None], axis=1)
    return Path(
        support=state.support,
        coefficients=rows,
        residual_norm=state.residual_norm,
        explained=state.explained,
        condition=jnp.ones(state.support.shape, b.dtype),
        size=state.size,
        status=state.status,
    )


def matching_pursuit(
    A: Float[ArrayLike, "..."] | Column,
    b: Float[ArrayLike, "..."],
    *,
    max_atoms: int,
    shrinkage: ScalarLike = 1.0,
    max_iterations: int | None = None,
    tolerance: ScalarLike = 0.0,
    diagonal: ArrayLike | None = None,
    key: Key | None = None,
    subset: int | None = None,
) -> Path:
    """Solve `A w = b` by matching pursuit (Mallat 1999; Karsmakers 2011, Algorithm 1).

    Each step takes the atom i with the largest residual `|(b - A w)_i|`, whether selected before or
    not, and changes its coefficient so that this residual is zero. Statisticians call the method
    forward stepwise regression. With a shrinkage below 1, a step makes only this fraction of the
    change: forward stagewise regression, which is slower and less greedy. A step costs one column
    of A.

    Args:
        A: symmetric, positive semi-definite, shape `D D` or `v D D`, or a function from the number
            of an atom to its column. For a dictionary X it is `GramColumns(X)`, with `b = X'y`.
        b: shape `D`, or `D c` for several right-hand sides that select together, after the axis `v`
            of a batch.
        max_atoms: largest number of different atoms (static).
        shrinkage: fraction of the step that is taken, in (0, 1].
        max_iterations: limit of steps; by default `20 max_atoms` (static).
        tolerance: end when `|b - A w| <= tolerance |b|`.
        diagonal: the diagonal of A, shape `D`, if A is given by columns.
        key: random key of the subsets; needed with `subset`, and only then.
        subset: number of random atoms examined in each step (static; Popovici et al. 2005,
            stochastic kernel matching pursuit). None examines all.

    Returns:
        `Path`, with the solution for each number of atoms just before one more was selected. It is
        not the least-squares solution, which `scdp` computes with these atoms as `initial` (the
        de-bias step). `explained` is `2 b'w - w'A w`; `condition` is not computed, and is 1. The
        status is `CONVERGED` by the tolerance, `COMPLETED` if more than `max_atoms` would be
        selected, `EXHAUSTED` at `max_iterations`, `TRUNCATED` if only atoms with a zero on A's
        diagonal have a residual, `INDEFINITE` if A is not positive semi-definite, or `NOT_FINITE`.

    Works under `jit` and `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, more atoms than exist, a shrinkage out of range, a
            negative tolerance, or only one of `key` and `subset`.
    """
    systems = scaled_systems(A, b, diagonal)
    max_atoms = check_atoms(max_atoms, systems.b.shape[1])
    check_nonnegative("tolerance", tolerance)
    if is_concrete(shrinkage) and not 0 < float(shrinkage) <= 1:
        raise ValueError(f"shrinkage: expected more than 0 and at most 1, got {shrinkage}")
    if (subset is None) != (key is None):
        raise ValueError("key, subset: expected both (random subsets) or none")
    if subset is not None:
        subset = check_atoms(subset, systems.b.shape[1], "subset")
    max_iterations = 20 * max_atoms if max_iterations is None else max_iterations
    dtype = systems.b.dtype
    path = run(
        systems.columns,
        systems.b,
        systems.diagonal,
        jnp.asarray(shrinkage, dtype),
        jnp.asarray(tolerance, dtype),
        key,
        max_atoms=max_atoms,
        max_iterations=whole_number("max_iterations", max_iterations, 1),
        subset=subset,
    )
    return systems.in_caller_units(path)
