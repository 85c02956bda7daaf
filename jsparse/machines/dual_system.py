"""The linear system of the LS-SVM in the dual: row weights, and elimination of the intercept."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._blocks import map_row_blocks
from .._numerics import dot, dot_over_rows, epsilon
from ..features import Nystroem
from ..kernels import Kernel
from ..solvers import conjugate_gradients

T = TypeVar("T")


def solve_weighted(
    product: Callable[[Array], Array],
    inverse: Callable[[Array], tuple[Array, T]],
    w: Float[Array, "... n 1"],
    C: Float[Array, "... 1 1"],
    rhs: Float[Array, "*s n k"],
) -> tuple[Float[Array, "*s n k"], Float[Array, "*s n k"], tuple[Float[Array, "*s n k"], T]]:
    """Solve `K alpha + e = rhs`, `alpha = C W e` for multipliers `alpha` and residuals `e`.

    These equations are linear in the weights, so that derivatives are right at weights of 0. The
    solution comes from `(D K D + I/C) g = D rhs` with `D = W^(1/2)`. The matrix of this system is
    positive definite even if some weights are 0.

    Args:
        product: returns `K v` for a table `v`.
        inverse: returns `(D K D + I/C)^(-1) v` for a table `v`, and diagnostics.
        w: row weights, in a column.
        C: weight of the data-fit term.
        rhs: `k` right-hand sides, one in each column.

    Returns:
        `alpha`, `e`, and a pair: the residual of the system for `g`, and what `inverse` returned as
        diagnostics.
    """
    fixed_w, fixed_C = jax.lax.stop_gradient((w, C))
    root = jnp.sqrt(fixed_w)
    present = root > 0

    def solve(_: object, b: Float[Array, "2 *s n k"]) -> tuple[Array, tuple[Array, T]]:
        """Solve with right-hand sides `r` of the first equation and `q` of the second."""
        r, q = b
        # q is 0 except when a derivative is computed.
        r = jax.lax.cond(jnp.any(q != 0), lambda: r - product(q), lambda: r)
        g, diagnostics = inverse(root * r)
        e = r - product(root * g)
        residual = root * e - g / fixed_C
        e = jnp.where(present, g / (fixed_C * jnp.where(present, root, 1)), e)
        return jnp.stack([q + root * g, e]), (residual, diagnostics)

    (alpha, e), aux = jax.lax.custom_linear_solve(
        lambda x: jnp.stack([product(x[0]) + x[1], x[0] - C * w * x[1]]),
        jnp.stack([rhs, jnp.zeros_like(rhs)]),
        solve,
        symmetric=True,
        has_aux=True,
    )
    return alpha, e, aux


def nystroem_preconditioner(
    kernel: Kernel,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    root: Float[Array, "n 1"],
    block_rows: int,
) -> conjugate_gradients.Operator:
    """Return the preconditioner `r -> (F F' + I/C)^(-1) r = C (r - F (F'F + I/C)^(-1) F' r)`.

    `F` is `W^(1/2) Phi(X)`, with the Nystroem features `Phi` of the landmarks `Z`; `root` is
    `W^(1/2)`.
    """
    constant = jax.lax.stop_gradient
    phi = Nystroem(constant(kernel), constant(Z), center=False)
    F = constant(root * map_row_blocks(phi, X, block_rows))
    inner = dot_over_rows(F, F)
    # A shift of at least the rounding of F'F keeps the matrix positive definite for any C.
    floor = epsilon(X.dtype) * jnp.trace(inner)
    shift = constant(jnp.maximum(1 / C, floor))
    factor = jnp.linalg.cholesky(inner + shift * jnp.eye(Z.shape[0], dtype=X.dtype))

    def precondition(r: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return (r - dot(F, jax.scipy.linalg.cho_solve((factor, True), dot(F.T, r)))) / shift

    return precondition


def right_sides(X: Float[Array, "n d"], y: Float[Array, " n *c"]) -> Float[Array, "n k"]:
    """Return the right-hand sides `[1, y]`, whose solutions give the intercept: `intercept_of`."""
    n = X.shape[0]
    return jnp.concatenate([jnp.ones((n, 1), X.dtype), y.reshape(n, -1)], axis=1)


def intercept_of(alpha: Float[Array, "*s n k"]) -> Float[Array, "*s 1 c"]:
    """Return the intercept `b` for which the multipliers of `y - b` add up to 0.

    `alpha` holds the multipliers for the right-hand sides `[1, y]`.
    """
    total = jnp.sum(alpha, axis=-2, keepdims=True)
    return total[..., 1:] / total[..., :1]


def without_intercept(
    solutions: Float[Array, "*s n k"], b: Float[Array, "*s 1 c"]
) -> Float[Array, "*s n c"]:
    """Return the solutions for right-hand sides `y - b`, given the solutions for `[1, y]`."""
    return solutions[..., 1:] - solutions[..., :1] * b
