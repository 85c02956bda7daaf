"""Solutions of all leading blocks of a linear system, from a nearly `A`-orthonormal basis."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._numerics import dot


def inverse_factor(R: Float[Array, "p p"], inside: Bool[Array, " p"]) -> Float[Array, "p p"]:
    """Return the inverse of the rows and columns `inside` of upper triangular `R`, 0 elsewhere."""
    used = inside[:, None] & inside[None, :]
    unit = jnp.eye(len(R), dtype=R.dtype)
    upper = jnp.where(used, jnp.triu(R), unit)
    return jnp.where(used, jax.scipy.linalg.solve_triangular(upper, unit, lower=False), 0)


def nested_solutions(
    gram: Float[Array, "p p"], cross: Float[Array, "p c"], basis: Float[Array, "p p"]
) -> Float[Array, "p p c"]:
    """Return the solutions of the systems of the first 1, 2, .. p unknowns, padded with zeros.

    Solution `[s - 1]` solves the leading `s s` block of `A x = b`, for the `c` columns of `b`.
    `basis` is upper triangular, and `basis' A basis` is close to the identity.

    Args:
        gram: `basis' A basis`.
        cross: `basis' b`.
        basis: shape `p p`. A column of zeros leaves its unknown at 0.
    """
    unused = jnp.all(basis == 0, axis=0)
    factor = jnp.linalg.cholesky(gram + jnp.diag(unused.astype(gram.dtype)))
    unit = jnp.eye(len(gram), dtype=gram.dtype)
    inverse = jax.scipy.linalg.solve_triangular(factor, unit, lower=True)
    directions, components = dot(basis, inverse.T), dot(inverse, cross)
    return jnp.cumsum(directions.T[:, :, None] * components[:, None, :], axis=0)
