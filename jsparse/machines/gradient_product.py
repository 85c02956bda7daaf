"""The average gradient outer product of a machine: which directions of its inputs matter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import check_finite
from .._blocks import rows_in_block, sum_row_blocks
from .._numerics import as_float, dot, dot_over_rows, present_rows
from .._programs import compiled
from ..expansion import KernelExpansion
from ..kernels.mixed import categorical_columns


def agop(
    expansion: KernelExpansion,
    X: Float[Array, "n d"] | Float[np.ndarray, "n d"],
    weights: Float[Array, " n"] | Float[np.ndarray, " n"] | None = None,
    *,
    diagonal: bool = False,
    block_rows: int | None = None,
) -> Float[Array, " d *d"]:
    """Return the average gradient outer product of a machine over some rows.

    It is `M = sum_i w_i sum_c df_c(x_i)/dx df_c(x_i)/dx' / sum_i w_i`, over the `c` outputs. A
    kernel with the metric `M` measures distances along the directions in which the machine varies;
    recursive feature machines alternate between fitting and this metric (Radhakrishnan et al. 2024,
    Algorithm 1).

    A column of codes, which a `Mixed` kernel compares, has no derivative. Its diagonal entry is
    half the mean squared change of the machine's values when an unseen category replaces the row's
    category; the squared distance of two indicator vectors is 2. Its other entries are 0.

    Args:
        expansion: the machine.
        X: inputs of the expansion, shape `n d`.
        weights: row weights, shape `n`, at least 0. A row of weight 0 is absent.
        diagonal: return only the diagonal, shape `d` (static).
        block_rows: rows in memory at a time (static); the default depends on the device.

    Returns:
        Shape `d d`, or `d`, in units of squared outputs over products of the columns' units.

    Pure; works under `jit` and `vmap`. Differentiable once, in both modes, in the expansion, `X`
    and `weights`, where the kernel has second derivatives.

    Raises:
        ValueError: for shapes that do not fit, or (outside `jit`) values that are not finite.

    Example:
        >>> import jax.numpy as jnp
        >>> from jsparse.kernels import RBF
        >>> from jsparse.machines import fixed_size
        >>> grid = jnp.linspace(-1.0, 1.0, 8)
        >>> X = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(64, 2)
        >>> machine = fixed_size.fit(RBF(1.0), X, 1e4, X, 3 * X[:, 0]).expansion
        >>> agop(machine, X, diagonal=True).round().astype(int).tolist()  # slope 3, squared
        [9, 0]
    """
    rows, dtype = as_float(X), expansion.prototypes.dtype
    check_finite("X", rows)
    d = expansion.prototypes.shape[1]
    if rows.ndim != 2 or rows.shape[1] != d or len(rows) == 0:
        raise ValueError(f"X: expected shape (n, {d}) with at least one row, got {rows.shape}")
    w = jnp.ones(len(rows), dtype) if weights is None else as_float(weights).astype(dtype)
    if w.shape != rows.shape[:1]:
        raise ValueError(f"weights: expected shape ({len(rows)},), got {w.shape}")
    block = rows_in_block(block_rows)
    return _agop(expansion, rows.astype(dtype), w, diagonal=diagonal, block_rows=block)


@functools.partial(compiled, static_argnames=("diagonal", "block_rows"))
def _agop(
    expansion: KernelExpansion,
    X: Float[Array, "n d"],
    w: Float[Array, " n"],
    *,
    diagonal: bool,
    block_rows: int,
) -> Float[Array, " d *d"]:
    codes = categorical_columns(expansion.kernel)
    d = X.shape[1]

    def of_block(X: Float[Array, "r d"], w: Float[Array, " r"]) -> Float[Array, "d *d"]:
        """Return the weighted sum over a block of rows, not yet divided by the sum of weights."""
        values, pull_back = jax.vjp(lambda X: expansion(X).reshape(len(X), -1), X)
        identity = jnp.eye(values.shape[1], dtype=X.dtype)
        (slopes,) = jax.vmap(lambda c: pull_back(jnp.broadcast_to(c, values.shape)))(identity)
        squares = dot(w[None, :], jnp.sum(jnp.square(slopes), axis=0))[0]
        for c in codes:
            change = values - expansion(X.at[:, c].set(-2)).reshape(values.shape)
            squares = squares.at[c].set(jnp.sum(w * jnp.sum(jnp.square(change), axis=1)) / 2)
        if diagonal:
            return squares
        rows = (jnp.sqrt(w)[None, :, None] * slopes).reshape(-1, d)  # slopes have shape `c r d`
        product = dot_over_rows(rows, rows)
        return product.at[jnp.diag_indices(d)].set(squares)

    zero = jnp.zeros((d,) if diagonal else (d, d), X.dtype)
    total = sum_row_blocks(of_block, (present_rows(X, w), w), zero, block_rows)
    return total / jnp.sum(w)
