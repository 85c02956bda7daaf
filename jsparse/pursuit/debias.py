"""Least squares on the atoms of a path (the de-bias step; Karsmakers 2011, Remark 1)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._numerics import dot, epsilon, is_concrete
from .._programs import compiled
from .._status import INDEFINITE, NOT_FINITE
from .least_angle import AnglePath, factored, single_system
from .path import LOST, precision_status
from .system import Column, Columns, check_atoms


def debiased(
    path: AnglePath,
    A: Float[ArrayLike, "D D"] | Column,
    b: Float[ArrayLike, " D"],
    *,
    max_atoms: int | None = None,
    diagonal: ArrayLike | None = None,
) -> AnglePath:
    """Refit the nonzero coefficients of each corner by least squares (Karsmakers 2011, Remark 1).

    Args:
        path: a result of `lars` or `lasso` for this system.
        A: shape `D D`, or a function from the number of an atom to its column.
        b: shape `D`.
        max_atoms: largest number of nonzeros of a corner (static). By default it is read from the
            path; under `jit` it is the largest possible number.
        diagonal: the diagonal of A, shape `D`, if A is given by columns.

    Returns:
        The path with new `coefficients`, `residual_norm`, `explained` and `condition`; `penalty` is
        unchanged. The status is the status of the path or, if worse, `PRECISION_LOST` if by
        `condition` a relative error may exceed 1e-3, `INDEFINITE` if A among the atoms of a corner
        is not positive definite, or `NOT_FINITE` for NaN. Under `jit` a corner with more nonzeros
        than `max_atoms` becomes NaN.

    Works under `jit` and `vmap`. Differentiable in both modes with respect to A and b, with the
    atoms of the corners held fixed.

    Raises:
        ValueError: for shapes that do not fit, more nonzeros than `max_atoms`, or a `max_atoms`
            that is not a whole number from 1 to D.
    """
    systems = single_system(A, b, diagonal)
    D = systems.b.shape[1]
    if path.coefficients.ndim != 2 or path.coefficients.shape[1] != D:
        raise ValueError(
            f"path: expected coefficients of shape (steps + 1, {D}), got {path.coefficients.shape}"
        )
    largest_count = min(D, path.coefficients.shape[0] - 1)
    if is_concrete(path.coefficients):
        largest_count = max(1, int(np.max(np.count_nonzero(np.asarray(path.coefficients), axis=1))))
    size = check_atoms(largest_count if max_atoms is None else max_atoms, D)
    if size < largest_count and is_concrete(path.coefficients):
        raise ValueError(
            f"max_atoms: expected at least {largest_count}, the nonzeros; got {max_atoms}"
        )
    fitted = _debias(path, systems.columns, systems.b[0, :, 0], max_atoms=size)
    return systems.scale.unscaled_single(fitted)


@functools.partial(compiled, static_argnames="max_atoms")
def _debias(
    path: AnglePath, columns: Columns, b: Float[Array, " D"], *, max_atoms: int
) -> AnglePath:
    """Return the path refitted to the system `columns`, `b`, which `Scale` has scaled."""
    D = b.shape[0]

    def refit(w: Float[Array, " D"]) -> tuple[Array, Array, Array, Array, Array]:
        atoms = jnp.nonzero(w, size=max_atoms, fill_value=D)[0].astype(jnp.int32)
        filled, slots = atoms < D, jnp.minimum(atoms, D - 1)
        rows = jnp.where(filled[:, None], columns(slots), 0)
        fits = jnp.count_nonzero(w) <= max_atoms
        finite = fits & jnp.all(jnp.isfinite(rows)) & jnp.all(jnp.isfinite(b))
        factor, inverse = factored(rows[:, slots], filled)
        weights = jax.scipy.linalg.cho_solve((factor, True), jnp.where(filled, b[slots], 0))
        weights = jnp.where(fits, weights, jnp.nan)
        residual = b - dot(weights, rows)
        square = jnp.sum(jnp.square(residual))
        norm = jnp.sqrt(jnp.where(square == 0, 1, square))  # 0 has no finite gradient
        dense = jnp.zeros(D, b.dtype).at[atoms].add(weights, mode="drop")
        condition = jnp.maximum(jnp.sum(filled).astype(b.dtype) * inverse, 1)
        status = precision_status(epsilon(b.dtype) * condition > LOST)
        status = jnp.where(jnp.isfinite(square), status, jnp.where(finite, INDEFINITE, NOT_FINITE))
        return dense, jnp.where(square == 0, 0, norm), dot(b + residual, dense), condition, status

    dense, norm, explained, condition, status = jax.lax.map(refit, path.coefficients)
    return path._replace(
        coefficients=dense,
        residual_norm=norm,
        explained=explained,
        condition=condition,
        status=jnp.maximum(path.status, jnp.max(status)).astype(jnp.int32),
    )
