"""The system of the LS-SVM in the dual, with row weights and an intercept to eliminate."""

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
    """Solve for multipliers and residuals, `K alpha + e = rhs` with `alpha = C W e`.

    This system is linear in the weights, so that derivatives at a weight of 0 say how the fit
    changes as the row comes in. With `D = W^(1/2)`, the system that is solved,
    `(D K D + I/C) g = D rhs`, is definite for weights of 0 too.

    Args:
        product: multiplies by `K`.
        inverse: solves with `D K D + I/C`, and returns diagnostics beside the solution.
        w: row weights.
        C: weight of the data-fit term.
        rhs: right-hand sides, one system for each column.

    Returns:
        `alpha`, `e`, and the residual of the system in `g` with the diagnostics of `inverse`.
    """
    fixed_w, fixed_C = jax.lax.stop_gradient((w, C))
    root = jnp.sqrt(fixed_w)
    present = root > 0

    def solve(_: object, b: Float[Array, "2 *s n k"]) -> tuple[Array, tuple[Array, T]]:
        r, q = b
        # q is 0 except in systems that derivatives solve.
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
    """Return `r -> (F F' + I/C)^(-1) r` with `F = W^(1/2) Phi(X)`, the landmarks' features.

    By Woodbury's identity it is `C (r - F (F'F + I/C)^(-1) F' r)`.
    """
    constant = jax.lax.stop_gradient
    phi = Nystroem(constant(kernel), constant(Z), center=False)
    F = constant(root * map_row_blocks(phi, X, block_rows))
    inner = dot_over_rows(F, F)
    # At least the rounding of the product F'F, so that the matrix is definite for any C.
    floor = epsilon(X.dtype) * jnp.trace(inner)
    shift = constant(jnp.maximum(1 / C, floor))
    factor = jnp.linalg.cholesky(inner + shift * jnp.eye(Z.shape[0], dtype=X.dtype))

    def precondition(r: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return (r - dot(F, jax.scipy.linalg.cho_solve((factor, True), dot(F.T, r)))) / shift

    return precondition


def right_sides(X: Float[Array, "n d"], y: Float[Array, "n *c"]) -> Float[Array, "n k"]:
    """Return `[1, y]`, the right-hand sides from which the intercept is eliminated."""
    n = X.shape[0]
    return jnp.concatenate([jnp.ones((n, 1), X.dtype), y.reshape(n, -1)], axis=1)


def intercept_of(alpha: Float[Array, "*s n k"]) -> Float[Array, "*s 1 c"]:
    """Return `b` with which the multipliers of `y - b` add up to 0, from those of `[1, y]`."""
    total = jnp.sum(alpha, axis=-2, keepdims=True)
    return total[..., 1:] / total[..., :1]


def without_intercept(
    solutions: Float[Array, "*s n k"], b: Float[Array, "*s 1 c"]
) -> Float[Array, "*s n c"]:
    """Return the solutions for `y - b` from the solutions for `[1, y]`."""
    return solutions[..., 1:] - solutions[..., :1] * b
