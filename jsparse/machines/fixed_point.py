"""Reduced sets of Gaussian machines, prototype by prototype, by fixed points (Mika 1999)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot
from .._repr import short_repr
from .._types import Key
from ..kernels import Kernel
from ..solvers.definite import cholesky, inverse_of_lower
from .inner_problems import shifted_gram

_TRIES = 6  # number of starts for each prototype
_MAX_STEPS = 100


class State(NamedTuple):
    """Fixed-point iterations for one prototype, from `t` starts."""

    z: Float[Array, "t d"]
    fraction: Float[Array, " t"]  # fraction of the fixed-point step to try next
    value: Float[Array, " t"]  # squared projection of the residual on `phi(z)`
    steps: Int[Array, ""]
    running: Bool[Array, ""]  # whether to take another step

    __repr__ = short_repr


def fixed_points(
    key: Key, kernel: Kernel, X: Float[Array, "n d"], coefficients: Float[Array, " n *l"], m: int
) -> Float[Array, "m d"]:
    """Return `m` prototypes that approximate `w = sum_i coefficients_i phi(x_i)`.

    The prototypes are chosen one after another. Each prototype `z` maximises the projection on
    `phi(z)` of the residual `sum_i r_i phi(x_i)`: `w` less its projection on the earlier
    prototypes. The iteration is `z <- sum_i g_i x_i / sum_i g_i` with `g_i = k(z, x_i) r_i'p` and
    `p = sum_j r_j k(z, x_j)`. The points `x_i` of the residual include the earlier prototypes.

    Args:
        key: decides the starts.
        kernel: an `RBF`.
        X: the points of the machine, shape `n d`.
        coefficients: shape `n` or `n l`, scaled so that the largest is near 1.
        m: number of prototypes.
    """
    n, dtype = len(X), X.dtype
    A = coefficients.reshape(n, -1)
    numbers = jnp.arange(m, dtype=jnp.int32)
    # For each prototype, Gumbel scores draw starts without replacement, in proportion to squared
    # coefficients.
    log_mass = jnp.log(jnp.sum(jnp.square(A), axis=1) + float(jnp.finfo(dtype).tiny))
    scores = log_mass[None, :] + jax.random.gumbel(key, (m, n), dtype)

    def add_prototype(j: Int[Array, ""], reduced: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return prototypes and coefficients with prototype `j` added."""
        Z, beta = reduced
        starts = X[jax.lax.top_k(scores[j], min(_TRIES, n))[1]]
        residual = jnp.concatenate([X, Z]), jnp.concatenate([A, -beta])
        Z = Z.at[j].set(_fixed_point(kernel, *residual, starts))
        # Solve for all coefficients again (eq. 47); prototypes yet to be chosen get 0.
        present = numbers <= j
        both_present = present[:, None] & present[None, :]
        gram = jnp.where(both_present, shifted_gram(kernel, Z), jnp.eye(m, dtype=dtype))
        inverse = inverse_of_lower(cholesky(gram))
        values = jnp.where(present[:, None], dot(kernel.cross_gram(Z, X), A), 0)
        return Z, dot(inverse.T, dot(inverse, values))

    empty = jnp.broadcast_to(X[:1], (m, X.shape[1])), jnp.zeros((m, A.shape[1]), dtype)
    return jax.lax.fori_loop(0, m, add_prototype, empty)[0]


def _fixed_point(
    kernel: Kernel, X: Float[Array, "p d"], A: Float[Array, "p l"], starts: Float[Array, "t d"]
) -> Float[Array, " d"]:
    """Iterate from each start; return the fixed point with the largest squared projection.

    A step that lowers the squared projection is rejected and shortened. `X` and `A` are the points
    and coefficients of the residual.
    """

    def squared_projection(z: Float[Array, "t d"]) -> tuple[Array, Array]:
        """Return the squared projections, shape `t`, and the factors `g_i`, shape `t p`."""
        columns = kernel.cross_gram(z, X)
        inner = dot(columns, A)
        return jnp.sum(jnp.square(inner), axis=1), columns * dot(inner, A.T)

    def step(state: State) -> State:
        """Take one step from each point; reject a step that lowers its squared projection."""
        value, g = squared_projection(state.z)
        total = jnp.sum(g, axis=1)
        # `total` equals `value` up to rounding, so it is not negative.
        fixed_point = dot(g, X) / jnp.where(total > 0, total, 1)[:, None]
        z = state.z + state.fraction[:, None] * (fixed_point - state.z)
        after, _ = squared_projection(z)
        better = after > value
        gained = jnp.where(better, after - value, 0) > 1e-4 * value
        fraction = jnp.where(better, jnp.minimum(2 * state.fraction, 1), state.fraction / 4)
        running = jnp.any(gained | (~better & (fraction > 1e-3))) & (state.steps < _MAX_STEPS)
        z = jnp.where(better[:, None], z, state.z)
        return State(z, fraction, jnp.where(better, after, value), state.steps + 1, running)

    ones = jnp.ones(len(starts), X.dtype)
    first = State(starts, ones, 0 * ones, jnp.zeros((), jnp.int32), jnp.asarray(True))
    last = jax.lax.while_loop(lambda state: state.running, step, first)
    return last.z[jnp.argmax(last.value)]
