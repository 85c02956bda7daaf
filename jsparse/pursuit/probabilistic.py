"""Sparse conjugate directions pursuit with random subsets (Karsmakers 2011, Section 3.5.2)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._numerics import dot, epsilon
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import Key
from .conjugate import NOISE
from .path import Path, assemble, norm, residual_status, truncation_status
from .system import Columns, check_atoms, scaled_systems

# With probability 0.95, the best of 59 random atoms is among the best 5 % of all atoms.
SUBSET = 59


class State(NamedTuple):
    """A batch of pursuits that step together; pursuits that have ended are frozen."""

    directions: Float[Array, "v k k"]  # rows p_j, over the atoms of `support`; p_j'A p_j = 1
    weights: Float[Array, "v k c"]  # coefficients of the atoms of `support`
    along: Float[Array, "v k c"]  # eta_j = p_j'b, the coefficient of direction j
    square: Float[Array, "v k"]  # diagonal of A at the selected atoms
    support: Int[Array, "v k"]  # in the order of selection, -1 for none
    free: Bool[Array, "v D"]  # atoms neither selected nor dependent on the selected ones
    size: Int[Array, " v"]
    step: Int[Array, ""]
    status: Int[Array, " v"]

    __repr__ = short_repr


def init(b: Float[Array, "v D c"], diagonal: Float[Array, "v D"], *, max_atoms: int) -> State:
    """Return the state before the first step, `w = 0`, of pursuits of `v` systems `A w = b`.

    `diagonal` is the diagonal of each `A`. A system whose diagonal is not finite ends at once.
    """
    v, D, c = b.shape
    start = norm(b)
    status = residual_status(start, start, jnp.zeros((), b.dtype))
    finite = jnp.all(jnp.isfinite(diagonal), axis=1)
    return State(
        directions=jnp.zeros((v, max_atoms, max_atoms), b.dtype),
        weights=jnp.zeros((v, max_atoms, c), b.dtype),
        along=jnp.zeros((v, max_atoms, c), b.dtype),
        square=jnp.ones((v, max_atoms), b.dtype),
        support=jnp.full((v, max_atoms), -1, jnp.int32),
        free=jnp.ones((v, D), bool),
        size=jnp.zeros(v, jnp.int32),
        step=jnp.zeros((), jnp.int32),
        status=jnp.where(finite, status, NOT_FINITE).astype(jnp.int32),
    )


def step(
    state: State,
    columns: Columns,
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    rounded: Float[Array, "v D"],
    key: Key,
    *,
    subset: int,
) -> State:
    """Select the atom with the largest residual in a random subset, and move along its direction.

    Only the residuals of the subset are computed, from `subset x k` entries of A; the direction
    costs `k^2` operations. Only the cost of the random draw grows with D.
    """
    pursuits = jnp.arange(b.shape[0], dtype=jnp.int32)
    inside = jnp.maximum(state.support, 0)
    priorities, atoms = draw(state, key, subset=subset)
    residual = b[pursuits[:, None], atoms] - dot(columns.entries(atoms, inside), state.weights)
    choice = choose(priorities, atoms, residual)
    at_support = columns.entries(inside, choice.atom[:, None])[:, :, 0]
    at_support = jnp.where(state.support >= 0, at_support, 0)
    shares = dot(state.directions, at_support[:, :, None])[:, :, 0]
    square, magnitude = diagonal[pursuits, choice.atom], rounded[pursuits, choice.atom]
    return advance(state, choice, shares, square, magnitude)


def draw(state: State, key: Key, *, subset: int) -> tuple[Float[Array, "v r"], Int[Array, "v r"]]:
    """Draw `subset` random atoms out of the free atoms; return their priorities and their numbers.

    Every free atom has a random priority of at least 0, and the atoms with the largest priorities
    are drawn. If fewer than `subset` atoms are free, other atoms fill the draw, with priority -1.

    The priorities depend only on the key and the step. All systems of a batch (folds, or values of
    the hyper-parameters) therefore draw equal subsets as long as they have equal free atoms
    (Karsmakers 2011, Remark 8).
    """
    key_of_step = jax.random.fold_in(key, state.step)
    uniform = jax.random.uniform(key_of_step, state.free.shape[1:], jnp.float32)
    priorities, atoms = jax.lax.top_k(jnp.where(state.free, uniform[None, :], -1.0), subset)
    return priorities, atoms


class Choice(NamedTuple):
    """The best of the drawn atoms, for each system."""

    place: Int[Array, " v"]  # index of the atom among the drawn atoms
    atom: Int[Array, " v"]
    has_atom: Bool[Array, " v"]  # whether any drawn atom was free
    residual: Float[Array, "v c"]  # residual of the atom
    finite: Bool[Array, " v"]  # whether all computed residuals were finite

    __repr__ = short_repr


def choose(
    priorities: Float[Array, "v r"], atoms: Int[Array, "v r"], residual: Float[Array, "v r c"]
) -> Choice:
    """Return the free atom with the largest `residual`, given the two results of `draw`."""
    scores = jnp.where(priorities >= 0, jnp.sum(jnp.square(residual), axis=2), -jnp.inf)
    place = jnp.argmax(scores, axis=1).astype(jnp.int32)
    pursuits = jnp.arange(len(place), dtype=jnp.int32)
    return Choice(
        place=place,
        atom=atoms[pursuits, place],
        has_atom=priorities[pursuits, place] >= 0,
        residual=residual[pursuits, place],
        finite=jnp.all(jnp.isfinite(residual), axis=(1, 2)),
    )


def advance(
    state: State,
    choice: Choice,
    shares: Float[Array, "v k"],
    square: Float[Array, " v"],
    rounded: Float[Array, " v"],
) -> State:
    """Return the next state: add the atom s of `choice`, and move `w` along its direction.

    `shares` are `p_j'A e_s` for the directions `p_j` so far, then 0. `square` is `a_ss`, which has
    a rounding error of about `eps rounded`.
    """
    running = state.status == RUNNING
    v, k = state.support.shape
    pursuits, dtype = jnp.arange(v, dtype=jnp.int32), shares.dtype
    atom, has_atom = choice.atom, choice.has_atom
    pivot = square - jnp.sum(jnp.square(shares), axis=1)
    independent = pivot > NOISE * epsilon(dtype) * rounded
    adds = running & has_atom & independent
    slot = jnp.where(adds, state.size, k)  # k is dropped
    at_slot = jnp.arange(k, dtype=jnp.int32)[None, :] == slot[:, None]
    root = jnp.sqrt(jnp.where(adds, pivot, 1))[:, None]
    direction = (at_slot.astype(dtype) - dot(shares[:, None, :], state.directions)[:, 0]) / root
    direction = jnp.where(adds[:, None], direction, 0)
    along = jnp.where(adds[:, None], choice.residual / root, 0)
    size = state.size + adds.astype(jnp.int32)
    atoms = jnp.arange(state.free.shape[1], dtype=jnp.int32)
    examined = (running & has_atom)[:, None] & (atoms[None, :] == atom[:, None])

    status = jnp.where(size >= k, COMPLETED, RUNNING)
    status = jnp.where(~has_atom, CONVERGED, status)
    indefinite = has_atom & (pivot < -float(np.sqrt(epsilon(dtype))) * jnp.abs(rounded))
    status = jnp.where(indefinite, INDEFINITE, status)
    finite = choice.finite & jnp.all(jnp.isfinite(along), axis=1) & jnp.isfinite(pivot)
    status = jnp.where(finite, status, NOT_FINITE)
    return State(
        directions=state.directions.at[pursuits, slot].set(direction, mode="drop"),
        weights=state.weights + direction[:, :, None] * along[:, None, :],
        along=state.along.at[pursuits, slot].set(along, mode="drop"),
        square=state.square.at[pursuits, slot].set(square, mode="drop"),
        support=state.support.at[pursuits, slot].set(atom, mode="drop"),
        free=state.free & ~examined,
        size=size,
        step=state.step + 1,
        status=jnp.where(running, status.astype(jnp.int32), state.status),
    )


@functools.partial(compiled, static_argnames=("max_atoms", "subset"))
def run(
    columns: Columns,
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    rounded: Float[Array, "v D"],
    key: Key,
    *,
    max_atoms: int,
    subset: int,
) -> Path:
    """Return the paths of a batch of systems `A w = b`, which step together.

    Each step computes the residuals of `subset` random atoms. The other arguments are as for
    `conjugate.pursue`.
    """
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.status == RUNNING),
        lambda state: step(state, columns, b, diagonal, rounded, key, subset=subset),
        init(b, diagonal, max_atoms=max_atoms),
    )
    no_norms = jnp.zeros((b.shape[0], max_atoms + 1), b.dtype)
    path = assemble(
        state.support,
        state.directions,
        state.along,
        diagonal=state.square,
        residual_norm=no_norms,
        size=state.size,
        status=state.status,
    )
    # A step computes the residuals of its subset only. Compute all residuals at every size here.
    atoms = jnp.maximum(state.support, 0)
    residuals_of = jax.vmap(lambda b, rows, w: b[None] - _images(rows, w))
    rows = jax.lax.map(columns, atoms.T)  # k v D
    residual = residuals_of(b, jnp.moveaxis(rows, 1, 0), path.coefficients)
    norms = jnp.concatenate([norm(b)[:, None], jax.vmap(norm)(residual)], axis=1)
    pursuits = jnp.arange(b.shape[0], dtype=jnp.int32)[:, None]
    selected = jnp.where(state.support < 0, b.shape[1], state.support)
    # An atom that is neither free nor selected was found to be in the span of selected atoms.
    dependent = (~state.free).at[pursuits, selected].set(False, mode="drop")
    status = truncation_status(
        path.status, dependent, residual[:, -1], b, rounded, path.explained[:, -1]
    )
    return path._replace(residual_norm=norms, status=status)


def scdpp(
    A: Float[ArrayLike, "..."],
    b: Float[ArrayLike, "..."],
    *,
    key: Key,
    max_atoms: int,
    subset: int | None = None,
) -> Path:
    """Solve `A w = b` by SCDP, choosing each atom from a random subset of the free atoms.

    This is SCDPP (Karsmakers 2011, Section 3.5.2). A step costs less than in `scdp`, but the path
    depends on the key. "It is advised to use this with care": a path may be much worse (Section
    5.2).

    Args:
        A: symmetric, positive semi-definite, shape `D D` or `v D D`.
        b: shape `D`, or `D c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        key: random key of the subsets, which all systems of a batch share.
        max_atoms: length of the path (static).
        subset: number of atoms examined in each step, rho (static). By default 59, or all atoms if
            there are fewer.

    Returns:
        `Path`, with a status as explained at `scdp`.

    Raises:
        ValueError: for shapes that do not fit, or more atoms than there are.
        TypeError: if A is a function.
    """
    if callable(A):
        raise TypeError("A: expected a matrix, got a function; the steps read single entries of A")
    systems = scaled_systems(A, b, None)
    D = systems.b.shape[1]
    sizes = {
        "max_atoms": check_atoms(max_atoms, D),
        "subset": min(SUBSET, D) if subset is None else check_atoms(subset, D, "subset"),
    }
    matrices = systems.columns, systems.b, systems.diagonal, systems.diagonal
    return systems.in_caller_units(run(*matrices, key, **sizes))


def _images(rows: Float[Array, "k D"], weights: Float[Array, "k k c"]) -> Float[Array, "k D c"]:
    return jnp.moveaxis(dot(jnp.moveaxis(weights, 2, 0), rows), 0, 2)
