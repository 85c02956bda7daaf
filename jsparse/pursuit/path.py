"""The result of a pursuit: solutions with 1, 2, .. atoms."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._numerics import epsilon, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, NOT_FINITE, PRECISION_LOST, RUNNING, TRUNCATED

# Estimated relative error above which coefficients count as lost.
LOST = 1e-3
# Relative residual that rounding may leave, in units of epsilon.
_ROUNDING = 64


class Path(NamedTuple):
    """Sparse solutions of a system, each with one more atom than the previous solution.

    Shapes are for one system with one right-hand side. A batch of systems adds a leading axis to
    every field. Several right-hand sides add a trailing axis to `coefficients`.
    """

    support: Int[Array, "..."]  # atoms as selected, then -1 from `size` on; shape `k`
    coefficients: Float[Array, "..."]  # row i: coefficients of the first i + 1 atoms; shape `k k`
    residual_norm: Float[Array, "..."]  # |b - A w| or |y - X w| with 0, 1, .. k atoms; shape `k+1`
    # b'w with 0, 1, .. k atoms, the explained part of |y|^2; shape `k+1`
    explained: Float[Array, "..."]
    # estimated condition number of A among the first atoms, scaled to unit diagonal; shape `k`
    condition: Float[Array, "..."]
    size: Int[Array, "..."]  # number of selected atoms, at most k; later entries repeat the last
    status: Int[Array, "..."]

    __repr__ = short_repr

    def dense(self, n_atoms: int, size: int | None = None) -> Float[Array, "..."]:
        """Return the coefficients of all atoms, including zeros, shape `n_atoms`.

        Args:
            n_atoms: number of atoms (static).
            size: use the solution with the first `size` selected atoms; by default the last one.

        Raises:
            ValueError: if the path is shorter than `size`, or has atoms beyond `n_atoms`.
        """
        k = self.support.shape[-1]
        size = k if size is None else size
        if not 0 <= size <= k:
            raise ValueError(f"size: expected 0 to {k}, the length of the path; got {size}")
        n_atoms, size = atoms_for(self.support, n_atoms), operator.index(size)
        return _dense_of_size(self.support, self.coefficients, n_atoms, size)


def atoms_for(support: Int[Array, "..."], n_atoms: int) -> int:
    """Return `n_atoms` as an int; raise ValueError if a known support has atoms beyond it."""
    if is_concrete(support) and n_atoms <= (last := int(np.max(support, initial=-1))):
        raise ValueError(
            f"n_atoms: expected at least {last + 1}, as atom {last} is selected; got {n_atoms}"
        )
    return operator.index(n_atoms)


@functools.partial(compiled, static_argnames=("n_atoms", "size"))
def _dense_of_size(
    support: Int[Array, "*v k"], coefficients: Float[Array, "..."], n_atoms: int, size: int
) -> Float[Array, "..."]:
    row, axis = max(size - 1, 0), support.ndim - 1
    weights = jax.lax.index_in_dim(coefficients, row, axis, keepdims=False)
    return scattered(support, weights if size > 0 else jnp.zeros_like(weights), n_atoms)


@functools.partial(compiled, static_argnames="n_atoms")
def scattered(
    support: Int[Array, "*v k"], weights: Float[Array, "..."], n_atoms: int
) -> Float[Array, "..."]:
    """Return the coefficients of all atoms: `weights` at `support` (-1 is no atom), 0 elsewhere."""

    def scatter(support: Int[Array, " k"], weights: Float[Array, " k *c"]) -> Float[Array, " D *c"]:
        dense = jnp.zeros((n_atoms, *weights.shape[1:]), weights.dtype)
        return dense.at[jnp.where(support < 0, n_atoms, support)].add(weights, mode="drop")

    for _ in range(support.ndim - 1):
        scatter = jax.vmap(scatter)
    return scatter(support, weights)


def directions_of(factor: Float[Array, "v k k"], size: Int[Array, " v"]) -> Float[Array, "v k k"]:
    """Return the conjugate directions of the selected atoms S: row j is column j of `R^(-1)`.

    `factor` is the upper triangular R with `A_SS = R'R`. Its entries beyond the number of atoms,
    `size`, are ignored; there the directions are unit vectors.
    """
    k = factor.shape[1]
    inside = jnp.arange(k, dtype=jnp.int32)[None, :] < size[:, None]
    unit = jnp.eye(k, dtype=factor.dtype)
    upper = jnp.where(inside[:, :, None] & inside[:, None, :], jnp.triu(factor), unit)
    # Column j of R^(-1) is the direction p_j, in the order of the support.
    return jax.lax.map(lambda R: jax.scipy.linalg.solve_triangular(R, unit, lower=False).T, upper)


def assemble(
    support: Int[Array, "v k"],
    directions: Float[Array, "v k k"],
    along: Float[Array, "v k c"],
    diagonal: Float[Array, "v k"],
    residual_norm: Float[Array, "v e"],
    size: Int[Array, " v"],
    status: Int[Array, " v"],
    on_rows: bool = False,
) -> Path:
    """Return the path, with the solution and the condition number of each size.

    Args:
        support: selected atoms, -1 from `size` on.
        directions: row j is `p_j`, over the first j + 1 atoms, with `p_i'A p_j = (i == j)`.
        along: `p_j'b`, the coefficient of direction j in the solution.
        diagonal: the diagonal of `A` at the support.
        residual_norm: norms of the residual with 0 to k atoms.
        size: number of selected atoms.
        status: stop code of the pursuit, before the check whether the coefficients are lost.
        on_rows: whether the directions come from X, not from `A = X'X`. The errors of the
            coefficients then grow with the root of the condition number of A.
    """
    k = support.shape[1]
    inside = jnp.arange(k, dtype=jnp.int32)[None, :] < size[:, None]
    directions = jnp.where(inside[:, :, None], directions, 0)
    along = jnp.where(inside[:, :, None], along, 0)
    steps = directions[:, :, :, None] * along[:, :, None, :]
    # With the diagonal of A scaled to one, tr(A_SS) tr(A_SS^(-1)) bounds the condition number. The
    # bound is at most k^2 times too large, in practice a few times.
    inverse = jnp.cumsum(jnp.sum(jnp.square(directions) * diagonal[:, None, :], axis=2), axis=1)
    count = jnp.minimum(jnp.arange(1, k + 1, dtype=jnp.int32)[None], size[:, None])
    condition = inverse * count.astype(inverse.dtype)
    condition = jnp.where(size[:, None] > 0, condition, 1)
    error = epsilon(directions.dtype) * (jnp.sqrt(condition) if on_rows else condition)
    lost = precision_status(jnp.max(error, axis=1) > LOST)
    explained = jnp.cumsum(jnp.sum(jnp.square(along), axis=2), axis=1)
    return Path(
        support=support,
        coefficients=jnp.cumsum(steps, axis=1),
        residual_norm=residual_norm,
        explained=jnp.pad(explained, ((0, 0), (1, 0))),
        condition=condition,
        size=size,
        status=jnp.maximum(status, lost),
    )


def precision_status(lost: Bool[Array, "*v"]) -> Int[Array, "*v"]:
    """Return `PRECISION_LOST` where `lost`, else 0."""
    return jnp.where(lost, PRECISION_LOST, 0).astype(jnp.int32)


def unbatched(result: Any, batched: bool, several: bool) -> Any:
    """Drop the axis of systems unless `batched`, and of right-hand sides unless `several`."""
    if not several:
        result = result._replace(coefficients=result.coefficients[..., 0])
    return result if batched else type(result)(*(a[0] for a in result))


def norm(residual: Float[Array, "v r c"]) -> Float[Array, " v"]:
    """Return the Euclidean norm of each system's residual, over all right-hand sides together."""
    return jnp.sqrt(jnp.sum(jnp.square(residual), axis=(1, 2)))


def residual_status(
    norm: Float[Array, " v"], start: Float[Array, " v"], tolerance: Float[Array, ""]
) -> Int[Array, " v"]:
    """Return `CONVERGED` if `norm <= tolerance start` or is rounding, else `RUNNING`.

    `norm` and `start` are norms of the residual now and at the start. If one of them is NaN or
    infinite, the status is `NOT_FINITE`.
    """
    # Rounding leaves a residual of a few epsilon.
    target = jnp.maximum(tolerance, 4 * epsilon(norm.dtype)) * start
    status = jnp.where(norm <= target, CONVERGED, RUNNING)
    finite = jnp.isfinite(norm) & jnp.isfinite(start)
    return jnp.where(finite, status, NOT_FINITE).astype(jnp.int32)


def truncation_status(
    status: Int[Array, " v"],
    dependent: Bool[Array, "v D"],
    residual: Float[Array, "v D c"],
    b: Float[Array, "v D c"],
    diagonal: Float[Array, "v D"],
    explained: Float[Array, " v"],
) -> Int[Array, " v"]:
    """Return `TRUNCATED` if atoms that look dependent in this precision still have a residual.

    Otherwise, and if `status` is worse, return `status`. In exact arithmetic an atom in the span of
    the selected atoms has no residual. `residual` is `b - A w`, `diagonal` is of A, and `explained`
    is `b'w`.
    """
    # The rounding error of `b_i - a_i'w` is relative to the sizes of its two terms.
    squared_size = jnp.sum(jnp.square(b), axis=2) + diagonal * explained[:, None]
    squared_error = (_ROUNDING * epsilon(b.dtype)) ** 2 * squared_size
    significant = jnp.sum(jnp.square(residual), axis=2) > squared_error
    truncated = jnp.any(dependent & significant, axis=1) & (status < TRUNCATED)
    return jnp.where(truncated, TRUNCATED, status).astype(jnp.int32)


def best_free_atom(free: Bool[Array, "v D"], score: Float[Array, "v D"]) -> Int[Array, " v"]:
    """Return each system's free atom with the largest score, the first if several are equal."""
    return jnp.argmax(jnp.where(free, score, -jnp.inf), axis=1).astype(jnp.int32)
