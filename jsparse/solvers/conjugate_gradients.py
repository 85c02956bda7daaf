"""Preconditioned conjugate gradients for several right-hand sides; `A` is given as a function."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import epsilon, exponents, is_concrete, times_power
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, INDEFINITE, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike

Operator = Callable[[Float[Array, "n k"]], Float[Array, "n k"]]

# Factor by which the true residual may exceed the tolerance that the recurrence has met. Rounding
# makes the two residuals differ: slightly if the tolerance is well above the rounding error,
# without limit if the tolerance is below it.
DRIFT = 2.0


class State(NamedTuple):
    """One conjugate gradient run per column; columns that have ended are frozen."""

    x: Float[Array, "n k"]  # iterate
    residual: Float[Array, "n k"]  # r = b - A x, by recurrence
    direction: Float[Array, "n k"]  # p, conjugate to all earlier directions
    product: Float[Array, " k"]  # r' M^(-1) r
    target: Float[Array, " k"]  # tolerance |b|
    steps: Int[Array, " k"]
    status: Int[Array, " k"]

    __repr__ = short_repr


def init(
    rhs: Float[Array, "n k"],
    tolerance: ScalarLike | Float[Array, " k"],
    preconditioner: Operator = lambda r: r,
) -> State:
    """Return the state at `x = 0`. A column whose right-hand side is 0 has converged.

    A column converges at a residual of `tolerance` times the norm of its right-hand side.
    """
    z = preconditioner(rhs)
    target = tolerance * jnp.linalg.norm(rhs, axis=0)
    return State(
        x=jnp.zeros_like(rhs),
        residual=rhs,
        direction=z,
        product=jnp.sum(rhs * z, axis=0),
        target=target,
        steps=jnp.zeros(rhs.shape[1], jnp.int32),
        status=_status(jnp.linalg.norm(rhs, axis=0), target),
    )


def step(
    state: State,
    matrix: Operator,
    max_iterations: int | Int[Array, ""],
    preconditioner: Operator = lambda r: r,
) -> State:
    """Make one step of every running column (Hestenes and Stiefel 1952)."""
    running = state.status == RUNNING
    image = matrix(state.direction)
    curvature = jnp.sum(state.direction * image, axis=0)
    # A curvature that is not positive shows that `A` is not positive definite in this precision.
    definite = curvature > 0
    bound = jnp.linalg.norm(state.direction, axis=0) * jnp.linalg.norm(image, axis=0)
    indefinite = curvature < -float(np.sqrt(epsilon(curvature.dtype))) * bound
    alpha = jnp.where(running & definite, state.product / jnp.where(definite, curvature, 1), 0)
    x = state.x + alpha[None, :] * state.direction
    residual = state.residual - alpha[None, :] * image
    z = preconditioner(residual)
    product = jnp.sum(residual * z, axis=0)
    beta = jnp.where(running, product / jnp.where(state.product > 0, state.product, 1), 0)
    steps = state.steps + running.astype(jnp.int32)
    status = _status(jnp.linalg.norm(residual, axis=0), state.target)
    status = jnp.where((status == RUNNING) & (steps >= max_iterations), EXHAUSTED, status)
    status = jnp.where(definite | jnp.isnan(curvature), status, PRECISION_LOST)
    status = jnp.where(indefinite | (product < 0), INDEFINITE, status)
    return State(
        x=x,
        residual=residual,
        direction=jnp.where(running[None, :], z + beta[None, :] * state.direction, 0),
        product=jnp.where(running, product, state.product),
        target=state.target,
        steps=steps,
        status=jnp.where(running, status, state.status),
    )


class Solved(NamedTuple):
    """Solutions of one system per column, with diagnostics."""

    x: Float[Array, "n k"]
    residual: Float[Array, "n k"]  # b - A x, computed from x
    steps: Int[Array, " k"]
    status: Int[Array, " k"]

    __repr__ = short_repr


def solve(
    matrix: Operator,
    rhs: Float[Array, "n k"],
    *,
    tolerance: ScalarLike,
    max_iterations: int | Int[Array, ""],
    preconditioner: Operator = lambda r: r,
) -> Solved:
    """Solve `A x = rhs` for a symmetric positive definite `A` given as a function.

    Args:
        matrix: `x -> A x`, linear, for the `k` columns of an `n k` array at once.
        rhs: one system per column, shape `n k`.
        tolerance: stop a column when `|b - A x| <= tolerance |b|` by the recurrence.
        max_iterations: limit of steps. Each costs a product with `A`; one more product checks the
            residual.
        preconditioner: `r -> M^(-1) r`, symmetric positive definite.

    Returns:
        `Solved`, with a status for each column. `CONVERGED`: the residual, computed from `x`, is at
        most `DRIFT` (2) times the tolerance. `EXHAUSTED`: the limit of steps was reached.
        `INDEFINITE`: `A` or the preconditioner is not positive definite. `PRECISION_LOST`: `A` is
        not positive definite in this precision, or the recurrence meets the tolerance but `x` does
        not. `NOT_FINITE`: the residual is not finite.

    `x` is differentiable, in both modes, in `rhs` and in the arrays that `matrix` closes over. A
    derivative solves a further system.

    Raises:
        ValueError: (outside `jit`) if `max_iterations` is below 1.
    """
    if is_concrete(max_iterations) and int(max_iterations) < 1:
        raise ValueError(f"max_iterations: expected at least 1, got {max_iterations}")

    def run(_: object, b: Float[Array, "n k"]) -> tuple[Array, tuple[Array, Array, Array]]:
        """Return the solution of `A x = b`, and its residual, steps and status."""
        scale = exponents(b.T)  # squares of tiny or huge numbers are out of range
        b = times_power(b.T, -scale).T
        final = jax.lax.while_loop(
            lambda state: jnp.any(state.status == RUNNING),
            lambda state: step(state, matrix, max_iterations, preconditioner),
            init(b, tolerance, preconditioner),
        )
        residual = b - matrix(final.x)
        x, unscaled_residual = (times_power(a.T, scale).T for a in (final.x, residual))
        return x, (unscaled_residual, final.steps, _verified(final, residual))

    x, diagnostics = jax.lax.custom_linear_solve(matrix, rhs, run, symmetric=True, has_aux=True)
    return Solved(x, *jax.lax.stop_gradient(diagnostics))


def _status(norm: Float[Array, " k"], target: Float[Array, " k"]) -> Int[Array, " k"]:
    status = jnp.where(norm <= target, CONVERGED, RUNNING)
    return jnp.where(jnp.isfinite(norm), status, NOT_FINITE).astype(jnp.int32)


def _verified(state: State, residual: Float[Array, "n k"]) -> Int[Array, " k"]:
    """Return the statuses; a converged column with a large true `residual` has lost precision."""
    norm = jnp.linalg.norm(residual, axis=0)
    drifted = (state.status == CONVERGED) & (norm > DRIFT * state.target)
    status = jnp.where(drifted, PRECISION_LOST, state.status)
    return jnp.where(jnp.isfinite(norm), status, NOT_FINITE).astype(jnp.int32)
