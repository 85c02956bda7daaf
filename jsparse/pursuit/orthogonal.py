"""Orthogonal matching pursuit on the rows of a dictionary, atom by atom or in stages."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._arguments import whole_number
from .._numerics import dot, epsilon, exponents, times_power
from .._programs import compiled
from .._repr import short_repr
from .._runtime import check_runtime
from .._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import ScalarLike
from .path import Path, assemble, best_free_atom, directions_of, norm, residual_status, unbatched
from .system import check_atoms, check_nonnegative, dictionary_system, rescaled


class State(NamedTuple):
    """A batch of pursuits that step together; pursuits that have ended are frozen."""

    basis: Float[Array, "v k n"]  # orthonormal basis of the span of the selected atoms
    factor: Float[Array, "v k k"]  # R of X_S = basis' R
    residual: Float[Array, "v n c"]  # y - X w
    correlation: Float[Array, "v D c"]  # X'(y - X w) when last computed
    along: Float[Array, "v k c"]  # basis @ y
    square: Float[Array, "v k"]  # |x_s|^2 of the selected atoms
    support: Int[Array, "v k"]  # in the order of selection, -1 for none
    free: Bool[Array, "v D"]  # atoms neither selected nor dependent on the selected ones
    pending: Bool[Array, "v D"]  # atoms of the current stage that are not yet selected
    residual_norm: Float[Array, "v e"]  # |y - X w| with 0, 1, .. k atoms
    size: Int[Array, " v"]
    stage: Int[Array, " v"]
    status: Int[Array, " v"]

    __repr__ = short_repr


def init(
    X: Float[Array, "v n D"],
    y: Float[Array, "v n c"],
    tolerance: Float[Array, ""],
    *,
    max_atoms: int,
) -> State:
    """Return the state before the first step: no selected atoms, and `w = 0`."""
    v, n, D = X.shape
    k, c, start = max_atoms, y.shape[2], norm(y)
    return State(
        basis=jnp.zeros((v, k, n), X.dtype),
        factor=jnp.zeros((v, k, k), X.dtype),
        residual=y,
        correlation=jnp.zeros((v, D, c), X.dtype),
        along=jnp.zeros((v, k, c), X.dtype),
        square=jnp.ones((v, k), X.dtype),
        support=jnp.full((v, k), -1, jnp.int32),
        free=jnp.ones((v, D), bool),
        pending=jnp.zeros((v, D), bool),
        residual_norm=jnp.broadcast_to(start[:, None], (v, k + 1)),
        size=jnp.zeros(v, jnp.int32),
        stage=jnp.zeros(v, jnp.int32),
        status=residual_status(start, start, tolerance),
    )


def step(
    state: State,
    X: Float[Array, "v n D"],
    tolerance: Float[Array, ""],
    threshold: Float[Array, " v"] | None,
    max_stages: int,
) -> State:
    """Select one atom in each system, and orthogonalise it by Gram-Schmidt with one repetition.

    With a threshold, a new stage begins when all atoms of the stage are selected. The correlations
    are then computed again, and atoms above `threshold |residual| / sqrt(n)` form the new stage. If
    `threshold` is None, every step computes the correlations.
    """
    running = state.status == RUNNING
    correlation, pending, stage = state.correlation, state.pending, state.stage
    if threshold is None:
        correlation, pending = _correlate(X, state.residual), state.free
    else:
        begins = running & ~jnp.any(pending & state.free, axis=1)
        fresh = jax.lax.cond(
            jnp.any(begins), lambda: _correlate(X, state.residual), lambda: state.correlation
        )
        correlation = jnp.where(begins[:, None, None], fresh, correlation)
        # The threshold is stated for unscaled columns of length 1.
        level = threshold * norm(state.residual) / np.sqrt(X.shape[1])
        above = jnp.sum(jnp.square(correlation), axis=2) > jnp.square(level)[:, None]
        pending = jnp.where(begins[:, None], above, pending)
        stage = stage + begins.astype(jnp.int32)
    pending = pending & state.free
    too_many_stages = stage > max_stages
    has_atom = jnp.any(pending, axis=1) & ~too_many_stages
    atom = best_free_atom(pending, jnp.sum(jnp.square(correlation), axis=2))

    lane = jnp.arange(X.shape[0], dtype=jnp.int32)
    x = X[lane, :, atom]
    first = _project(state.basis, x)
    remainder = x - _combine(state.basis, first)
    second = _project(state.basis, remainder)
    remainder = remainder - _combine(state.basis, second)
    length = jnp.sqrt(jnp.sum(jnp.square(remainder), axis=1))
    square = jnp.sum(jnp.square(x), axis=1)
    # Skip the atom if, up to rounding, the selected atoms span it.
    independent = length > 16 * epsilon(x.dtype) * jnp.sqrt(square)
    adds = running & has_atom & independent
    unit = jnp.where(adds[:, None], remainder / jnp.where(independent, length, 1)[:, None], 0)
    along = jnp.sum(unit[:, :, None] * state.residual, axis=1)
    residual = state.residual - unit[:, :, None] * along[:, None, :]
    new_norm, size = norm(residual), state.size + adds.astype(jnp.int32)

    k, D = state.support.shape[1], state.free.shape[1]
    atoms = jnp.arange(D, dtype=jnp.int32)[None, :]
    examined = (running & has_atom)[:, None] & (atoms == atom[:, None])
    slot = jnp.where(adds, state.size, k)  # k is dropped
    on_diagonal = jnp.arange(k, dtype=jnp.int32)[None, :] == slot[:, None]
    column = jnp.where(on_diagonal, length[:, None], first + second)
    after = jnp.arange(k + 1, dtype=jnp.int32)[None, :] > state.size[:, None]
    status = residual_status(new_norm, state.residual_norm[:, 0], tolerance)
    limit_status = jnp.where(too_many_stages & jnp.any(pending, axis=1), EXHAUSTED, status)
    limit_status = jnp.where(size >= k, COMPLETED, limit_status)
    status = jnp.where(status == RUNNING, limit_status, status)
    status = jnp.where((status == RUNNING) & ~has_atom, CONVERGED, status)
    finite = jnp.isfinite(length) & jnp.isfinite(jnp.sum(correlation, (1, 2)))
    status = jnp.where(finite, status, NOT_FINITE)
    return State(
        basis=state.basis.at[lane, slot].set(unit, mode="drop"),
        factor=state.factor.at[lane, :, slot].set(column, mode="drop"),
        residual=residual,
        correlation=correlation,
        along=state.along.at[lane, slot].set(along, mode="drop"),
        square=state.square.at[lane, slot].set(square, mode="drop"),
        support=state.support.at[lane, slot].set(atom, mode="drop"),
        free=state.free & ~examined,
        pending=pending,
        residual_norm=jnp.where(adds[:, None] & after, new_norm[:, None], state.residual_norm),
        size=size,
        stage=stage,
        status=jnp.where(running, status.astype(jnp.int32), state.status),
    )


def omp(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    *,
    max_atoms: int,
    tolerance: ScalarLike = 0.0,
) -> Path:
    """Solve `X w = y` by orthogonal matching pursuit (Pati et al. 1993; Karsmakers 2011, 2.1).

    Each step selects the atom most correlated with the residual, `argmax |x_i'(y - X w)|`, and
    fits all selected atoms by least squares. It selects the atoms that `scdp(X'X, X'y)` selects,
    but computes the coefficients from the rows. Their errors grow with the condition number of the
    atoms, not with its square, which matters in float32. A step costs a product with X and a
    product with the selected atoms. Atoms in the span of the selected atoms are skipped.

    Args:
        X: dictionary, one atom per column, shape `n D`, or `v n D` for a batch.
        y: shape `n`, or `n c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        max_atoms: length of the path, at most n and D (static).
        tolerance: end when `|y - X w| <= tolerance |y|`.

    Returns:
        `Path`, with residual norms `|y - X w|`. The status is `CONVERGED` by the tolerance or if
        the selected atoms span all others, `COMPLETED` at `max_atoms`, `NOT_FINITE`, or
        `PRECISION_LOST` as in `scdp`.

    Works under `jit` and `vmap`, but a batch is faster than `vmap`. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, a `max_atoms` beyond n or D, or a negative
            tolerance.
    """
    return _pursue(X, y, max_atoms, tolerance, None, 1)


def stagewise_omp(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    *,
    max_atoms: int,
    threshold: ScalarLike = 2.5,
    max_stages: int = 10,
    tolerance: ScalarLike = 0.0,
) -> Path:
    """Solve `X w = y` by stagewise OMP (Donoho et al. 2006; Karsmakers 2011, Section 2.1).

    A stage selects all atoms with `|x_i'r| > threshold |r| / sqrt(n)`, for columns of unit length,
    and then fits all of them. Within a stage atoms are selected in the order of their correlation,
    and the path has a solution for each atom. The pursuit ends when no atom is above the threshold.
    It needs far fewer products with X than `omp`.

    Args:
        X: dictionary, one atom per column, shape `n D`, or `v n D` for a batch.
        y: shape `n`, or `n c` for several right-hand sides; after the axis `v` of a batch.
        max_atoms: length of the path, at most n and D (static).
        threshold: least correlation of a selected atom, in units of `|r| / sqrt(n)`, the standard
            deviation of the correlation with noise of length `|r|`. The source recommends 2 to 3.
        max_stages: largest number of stages (static).
        tolerance: end when `|y - X w| <= tolerance |y|`.

    Returns:
        `Path`, see `omp`. The status is also `CONVERGED` if no atom is above the threshold. If
        `n < threshold^2`, no atom can be above it, because `|x_i'r| <= |r|`. The status is
        `EXHAUSTED` if the limit of stages ends the pursuit.

    Raises:
        ValueError: for shapes that do not fit, a `max_atoms` beyond n or D, less than one stage,
            or a negative threshold or tolerance.
    """
    check_nonnegative("threshold", threshold)
    return _pursue(X, y, max_atoms, tolerance, threshold, whole_number("max_stages", max_stages, 1))


def _pursue(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    max_atoms: int,
    tolerance: ScalarLike,
    threshold: ScalarLike | None,
    max_stages: int,
) -> Path:
    """Check the arguments of `omp` (no threshold) or `stagewise_omp`, and return the path."""
    check_runtime()
    X, y = dictionary_system(X, y)
    max_atoms = check_atoms(max_atoms, min(X.shape[-2:]), what="rows or atoms")
    check_nonnegative("tolerance", tolerance)
    tolerance = jnp.asarray(tolerance, X.dtype)
    threshold = None if threshold is None else jnp.asarray(threshold, X.dtype)
    return _path(X, y, tolerance, threshold, max_atoms=max_atoms, max_stages=max_stages)


@functools.partial(compiled, static_argnames=("max_atoms", "max_stages"))
def _path(
    X: Float[Array, "..."],
    y: Float[Array, "..."],
    tolerance: Float[Array, ""],
    threshold: Float[Array, ""] | None,
    *,
    max_atoms: int,
    max_stages: int,
) -> Path:
    """Return the path of a batch or of one system; scale by powers of two within one program."""
    batched, several = X.ndim == 3, y.ndim == X.ndim
    y = y if several else y[..., None]
    X, y = (X, y) if batched else (X[None], y[None])
    X_exponent, y_exponent = exponents(X), exponents(y)
    X, y = times_power(X, -X_exponent), times_power(y, -y_exponent)
    if threshold is not None:
        threshold = times_power(jnp.broadcast_to(threshold, X_exponent.shape), -X_exponent)
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.status == RUNNING),
        lambda state: step(state, X, tolerance, threshold, max_stages),
        init(X, y, tolerance, max_atoms=max_atoms),
    )
    path = assemble(
        state.support,
        directions_of(state.factor, state.size),
        state.along,
        state.square,
        state.residual_norm,
        state.size,
        state.status,
        on_rows=True,
    )
    path = rescaled(path, y_exponent - X_exponent, y_exponent, 2 * y_exponent)
    return unbatched(path, batched, several)


def _correlate(X: Float[Array, "v n D"], residual: Float[Array, "v n c"]) -> Float[Array, "v D c"]:
    return dot(jnp.swapaxes(X, 1, 2), residual)


def _project(basis: Float[Array, "v k n"], x: Float[Array, "v n"]) -> Float[Array, "v k"]:
    return dot(basis, x[:, :, None])[:, :, 0]


def _combine(basis: Float[Array, "v k n"], weights: Float[Array, "v k"]) -> Float[Array, "v n"]:
    return dot(weights[:, None, :], basis)[:, 0]
