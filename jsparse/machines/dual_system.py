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


def weighted(
    product: Callable[[Array], Array],
    inverse: Callable[[Array], tuple[Array, T]],
    w: Float[Array, "... n 1"],
    C: Float[Array, "... 1 1"],
    rhs: Float[Array, "*s n k"],
) -> tuple[Float[Array, "*s n k"], Float[Array, "*s n k"], tuple[Float[Array, "*s n k"], T]]:
    """Multipliers and residuals: `K alpha + e = rhs`, `alpha = C W e`.

    Linear in the weights: derivatives at zero tell how the fit changes as the row comes in. What is
    solved is definite for weights of zero too, `(D K D + I/C) g = D rhs` with `D = W^(1/2)`.

    Args:
        product: with `K`.
        inverse: of `D K D + I/C`, and what there is to say of it.
        w: row weights.
        C: weight of the data-fit term.
        rhs: one system per column.

    Returns:
        `alpha`, `e`, and beside what `inverse` says the residual of what it solved.
    """
    seen, fixed_C = jax.lax.stop_gradient((w, C))
    root = jnp.sqrt(seen)
    kept = root > 0

    def solve(_: object, b: Float[Array, "2 *s n k"]) -> tuple[Array, tuple[Array, T]]:
        r, q = b
        # Zero but for derivatives.
        r = jax.lax.cond(jnp.any(q != 0), lambda: r - product(q), lambda: r)
        g, said = inverse(root * r)
        e = r - product(root * g)
        rest = root * e - g / fixed_C
        e = jnp.where(kept, g / (fixed_C * jnp.where(kept, root, 1)), e)
        return jnp.stack([q + root * g, e]), (rest, said)

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
    """`r -> (F F' + I/C)^(-1) r` with `F = W^(1/2) Phi(X)`, the features of the landmarks.

    By Woodbury, `C (r - F (F'F + I/C)^(-1) F' r)`.
    """
    constant = jax.lax.stop_gradient
    phi = Nystroem(constant(kernel), constant(Z), center=False)
    F = constant(root * map_row_blocks(phi, X, block_rows))
    inner = dot_over_rows(F, F)
    # The product's own rounding, so that Cholesky meets a definite matrix at any C.
    floor = epsilon(X.dtype) * jnp.trace(inner)
    shift = constant(jnp.maximum(1 / C, floor))
    factor = jnp.linalg.cholesky(inner + shift * jnp.eye(Z.shape[0], dtype=X.dtype))

    def precondition(r: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return (r - dot(F, jax.scipy.linalg.cho_solve((factor, True), dot(F.T, r)))) / shift

    return precondition


def right_sides(X: Float[Array, "n d"], y: Float[Array, "n *c"]) -> Float[Array, "n k"]:
    """`[1, y]`, which the intercept is eliminated from."""
    n = X.shape[0]
    return jnp.concatenate([jnp.ones((n, 1), X.dtype), y.reshape(n, -1)], axis=1)


def intercept_of(alpha: Float[Array, "*s n k"]) -> Float[Array, "*s 1 c"]:
    """The intercept, from the multipliers of `[1, y]`: with it, those of `y - b` add up to zero."""
    total = jnp.sum(alpha, axis=-2, keepdims=True)
    return total[..., 1:] / total[..., :1]


def less(both: Float[Array, "*s n k"], b: Float[Array, "*s 1 c"]) -> Float[Array, "*s n c"]:
    """What belongs to `y - b`, of what belongs to `[1, y]`."""
    return both[..., 1:] - both[..., :1] * b
