"""The squared hinge objective of the sparse SVM: exact line search and Newton steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, epsilon, like
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, PRECISION_LOST, RUNNING
from ..pursuit.path import LOST
from ..solvers.definite import factorise

_LINE_STEPS = 12  # limit of the Newton steps of a line search
_MOVED = 4  # units of epsilon: a line search ends with a step that moves by less


class Objective(NamedTuple):
    """The data-fit term `C/2 sum_i w_i max(0, 1 - y_i f_i)^2` of values `f`."""

    y: Float[Array, " n"]  # classes -1 and +1
    w: Float[Array, " n"]  # row weights
    C: Float[Array, ""]

    __repr__ = short_repr

    def inside(self, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the row weights, with 0 for rows beyond the margin."""
        return jnp.where(1 - self.y * values > 0, self.w, 0)

    def deficit(self, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the weighted margin deficits `w y max(0, 1 - y f)`."""
        return self.w * self.y * jnp.maximum(1 - self.y * values, 0)


class _Bracket(NamedTuple):
    """The state of the line searches along `r` directions."""

    t: Float[Array, " r"]  # current steps
    low: Float[Array, " r"]  # where the derivative is negative
    high: Float[Array, " r"]  # where the derivative is positive
    steps: Int[Array, ""]
    moved: Bool[Array, ""]  # whether the last step moved any `t` by more than rounding


def line_search(
    objective: Objective,
    values: Float[Array, " n"],
    changes: Float[Array, "r n"],
    square: Float[Array, " r"],
    slope: Float[Array, " r"],
    max_steps: int = _LINE_STEPS,
) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """Return the step `t` along each direction that minimises the objective, and its decrease.

    The machine's values become `values + t change`, and the penalty changes by
    `square t^2 / 2 + slope t`. The derivative in `t`, `square t + slope - C sum deficit change`, is
    increasing and piecewise linear. At most `max_steps` Newton steps, safeguarded by a bracket,
    find its root. They end once no `t` moves.
    """
    y, w, C = objective.y[None], objective.w[None], objective.C
    margins, along = 1 - y * values[None], y * changes  # of 1 - y (f + t change)
    weighted, ones = w * along, jnp.ones_like(values)
    least = _MOVED * epsilon(values.dtype)

    def newton(bracket: _Bracket) -> _Bracket:
        t, low, high, steps, _ = bracket
        # A product with ones sums rows two to three times as fast as `jnp.sum` on a CPU (measured
        # with jaxlib 0.10.1).
        deficits = jnp.maximum(margins - t[:, None] * along, 0)
        first = square * t + slope - C * dot(weighted * deficits, ones)
        curvatures = jnp.where(deficits > 0, weighted * along, 0)
        second = square + C * dot(curvatures, ones)
        low, high = jnp.where(first < 0, t, low), jnp.where(first < 0, high, t)
        newton_t = t - first / jnp.where(second > 0, second, 1)
        outside = (newton_t < low) | (newton_t > high)
        # Near the root rounding alone may put a step outside a bracket with an open end.
        middle = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), (low + high) / 2, t)
        new = jnp.where(outside, middle, newton_t)
        moved = jnp.any(jnp.abs(new - t) > least * jnp.abs(new))
        return _Bracket(new, low, high, steps + 1, moved)

    zero = jnp.zeros_like(slope)
    start = _Bracket(
        zero, zero - jnp.inf, zero + jnp.inf, jnp.zeros((), jnp.int32), jnp.array(True)
    )
    t = jax.lax.while_loop(lambda b: b.moved & (b.steps < max_steps), newton, start).t

    # Subtract the squares row by row: rounding would spoil the difference of their sums.
    before, after = jnp.maximum(margins, 0), jnp.maximum(margins - t[:, None] * along, 0)
    decrease = dot(w * (before - after) * (before + after), ones)
    return t, C / 2 * decrease - square * t**2 / 2 - slope * t


class Newton(NamedTuple):
    """The state of Newton's method."""

    solution: Float[Array, " p"]  # coordinates and intercept, p = k + 1
    hessian: Float[Array, "p p"]  # at the solution before the last step
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def minimise(
    objective: Objective,
    features: Float[Array, "p n"],
    start: Float[Array, " p"],
    max_iterations: Int[Array, ""],
) -> Newton:
    """Minimise over coordinates and intercept by Newton steps with exact line search.

    The penalty is half the sum of squared coordinates. The last feature is 1, for the unpenalised
    intercept.
    """
    p, count = len(start), jnp.zeros((), jnp.int32)
    penalty = jnp.ones(p, start.dtype).at[p - 1].set(0)
    first = Newton(start, jnp.eye(p, dtype=start.dtype), count, count + RUNNING)
    return jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(state, objective, features, penalty, max_iterations),
        first,
    )


def step(
    state: Newton,
    objective: Objective,
    features: Float[Array, "p n"],
    penalty: Float[Array, " p"],
    max_iterations: Int[Array, ""],
) -> Newton:
    """Move to the minimum of the objective along Newton's direction.

    `penalty` is 1 for each coordinate and 0 for the intercept.
    """
    solution, y, C = state.solution, objective.y, objective.C
    eps, last = epsilon(y.dtype), len(solution) - 1
    values = dot(solution, features)
    inside = objective.inside(values)
    # The Newton point solves the normal equations of the rows within the margin. Solving for the
    # direction, with the gradient on the right, lets later steps correct rounding errors.
    H = C * dot(features * inside[None], features.T) + jnp.diag(penalty)
    H = H.at[last, last].add(jnp.where(jnp.any(inside > 0), 0, 1).astype(H.dtype))
    downhill = C * dot(features, objective.deficit(values)) - penalty * solution
    scale = 1 / jnp.sqrt(jnp.diagonal(H))  # equilibrate rows and columns of very different size
    scaled = H * scale[:, None] * scale[None]
    factor = factorise(scaled, like(0, H))
    direction = factor.solve((scale * downhill)[:, None])[:, 0] * scale
    along, change = penalty * direction, dot(direction, features)
    squares = jnp.stack([dot(along, along)]), jnp.stack([dot(along, solution)])
    (t,), (gain,) = line_search(objective, values, change[None], *squares)
    better = gain > 0
    loss = dot(y - values, objective.deficit(values))  # y (y - f) = 1 - y f
    total = (C * loss + dot(solution, penalty * solution)) / 2
    small = gain <= 1e2 * eps * total
    # If no step decreases the objective, then either the slope is rounding noise, or rounding has
    # spoilt the system.
    spoilt = ~better & (dot(downhill, direction) > LOST * total)
    steps = state.steps + 1
    status = jnp.where(steps >= max_iterations, EXHAUSTED, RUNNING)
    status = jnp.where(small | ~better, CONVERGED, status)
    status = jnp.where(spoilt, PRECISION_LOST, status).astype(jnp.int32)
    return Newton(solution + jnp.where(better, t, 0) * direction, H, steps, status)


def precision(
    factor: Float[Array, "k k"], selected: Bool[Array, " k"], hessian: Float[Array, "p p"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the condition number of Newton's system, and the relative error of its solution.

    The condition number is `tr(A) tr(A^(-1))`. `A` is the system of coefficients and intercept,
    with its diagonal scaled to one. The error has two parts. Rounding of the rows is amplified only
    by the square root of the condition number: Newton's systems contain squares of the rows, but
    the gradients do not. Rounding of the kernel matrix `K = L L'`, a term of `A`, is amplified by
    `A^(-1)`.

    Args:
        factor: `L`; the identity where no prototype is selected.
        selected: whether each place holds a prototype.
        hessian: `A` in the coordinates of `spsvm_path.Machine`.
    """
    p, dtype = len(hessian), hessian.dtype
    L = jnp.eye(p, dtype=dtype).at[: p - 1, : p - 1].set(factor)
    used = jnp.append(selected, True).astype(dtype)
    scale = 1 / jnp.sqrt(jnp.diagonal(hessian))
    scaled = hessian * scale[:, None] * scale[None]
    noise = 4 * epsilon(dtype) * p * jnp.eye(p, dtype=dtype)
    inner = solve_triangular(L, jnp.eye(p, dtype=dtype), lower=True) * scale[:, None]
    root = solve_triangular(jnp.linalg.cholesky(scaled + noise), inner, lower=True)
    inverse = used * jnp.sum(jnp.square(root), axis=0)
    condition = jnp.sum(used) * dot(inverse, jnp.sum(dot(L, hessian) * L, axis=1))
    by_kernel = dot(inverse[:-1], jnp.sum(jnp.square(factor), axis=1))
    return condition, epsilon(dtype) * (jnp.sqrt(condition) + by_kernel)
