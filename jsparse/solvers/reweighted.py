"""Sparse solutions by iteratively reweighted ridge regression."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import capacities, of_capacity
from .._numerics import dot, epsilon, solved_with_border, unbatched_lapack
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING

Rule = Literal["relative", "paper"]
# Sizes of the systems for which code is compiled, in eighths of the number of coefficients.
EIGHTHS = (1, 2, 3, 4, 5, 6, 7, 8)
SMALLEST = 16  # smallest size; a smaller system would save no time
# A coefficient below this fraction of the smallest size that it can have at a minimum is set to 0.
ZERO = 1e-3
CHANGE, STEPS = 1e-5, 200  # tolerance and limit of steps of the relative rule
PAPER_CHANGE, PAPER_ZERO, PAPER_STEPS = 1e-4, 1e-6, 50


class Squares(NamedTuple):
    """The problem to minimise `1/2 u'A u - b'u + sum_j log |u_j|`; `C` and the diagonal of A are 1.

    At a minimum the second derivative along each coefficient is not negative, so every nonzero
    coefficient is at least 1 in size.
    """

    A: Float[Array, "q q"]
    b: Float[Array, "q c"]
    unit: Float[Array, " q"]  # units of the coefficients; 0 for a column of zeros

    __repr__ = short_repr

    def part(self, order: Int[Array, " r"]) -> "Squares":
        """Return the problem of the coefficients with the indices `order`; the others are 0."""
        return Squares(self.A[order[:, None], order[None, :]], self.b[order], self.unit[order])

    def solved(self, s: Float[Array, " q"]) -> tuple[Float[Array, "q c"], Bool[Array, ""]]:
        """Return `(S A S + I)^(-1) S b`, with `S = diag(s)`, and whether rounding decides it."""
        p, c = self.b.shape
        # The diagonal of A is 1, so max(s) sum(s) bounds the largest eigenvalue of S A S. A shift
        # above 1 does no harm if all of the matrix is far above 1.
        noise = 4 * epsilon(s.dtype) * jnp.max(s) * jnp.sum(s)
        shift = jnp.maximum(1, noise)
        b = s[:, None] * self.b
        system = shift * jnp.eye(p, dtype=s.dtype) + s[:, None] * self.A * s[None, :]
        corner = 1 + 2 * jnp.sum(jnp.square(b))
        border = jnp.pad(corner * jnp.eye(c, dtype=s.dtype), ((0, 0), (p, 0)))
        bordered = jnp.concatenate([jnp.concatenate([system, b], axis=1), border])
        v, pivots = solved_with_border(c)(bordered)
        return v, (noise > 1) & (jnp.min(jnp.square(pivots)) < 32 * shift)

    def negative_gradient(self, u: Float[Array, "q c"]) -> Float[Array, "q c"]:
        """Return minus the gradient of `u'A u / 2 - b'u`."""
        return self.b - dot(self.A, u)


class Rows(NamedTuple):
    """The problem of `Squares` for `A = F'F` and `b = F'g`, which are not formed."""

    F: Float[Array, "r q"]
    g: Float[Array, "r c"]
    unit: Float[Array, " q"]

    __repr__ = short_repr

    def part(self, order: Int[Array, " r"]) -> "Rows":
        """Return the problem of the coefficients with the indices `order`; the others are 0."""
        return Rows(self.F[:, order], self.g, self.unit[order])

    def solved(self, s: Float[Array, " q"]) -> tuple[Float[Array, "q c"], Bool[Array, ""]]:
        """Minimise `|F S v - g|^2 + |v|^2`; return `v` and whether rounding decides it."""
        q = self.F.shape[1]
        top = jnp.concatenate([self.F * s[None, :], self.g], axis=1)
        R = _triangular_factor(jnp.concatenate([top, jnp.eye(q, top.shape[1], dtype=s.dtype)]))
        v = _solve_joined(R[:q])
        # The rounding of a column of length s is relative to s; the ridge of 1 damps its effect.
        return v, epsilon(s.dtype) * jnp.max(s) * q**0.5 > 1

    def negative_gradient(self, u: Float[Array, "q c"]) -> Float[Array, "q c"]:
        """Return minus the gradient of `|g - F u|^2 / 2`."""
        return dot(self.F.T, self.g - dot(self.F, u))


System = Squares | Rows


class State(NamedTuple):
    """The last solution, and the ridge penalties `lambda` of the next system, given by `size`."""

    coefficients: Float[Array, "q c"]  # u
    size: Float[Array, " q"]  # lambda_j^(-1/2): |u_j| over the outputs; 0 if u_j has vanished
    lost: Bool[Array, ""]  # whether rounding decided the last solution
    steps: Int[Array, ""]  # t
    status: Int[Array, ""]

    __repr__ = short_repr


class Reweighted(NamedTuple):
    """Sparse coefficients, with diagnostics."""

    coefficients: Float[Array, " p *c"]
    count: Int[Array, ""]  # number of coefficients that are not 0 in some output
    # largest |C beta_j'(b - A beta)_j - 1| over the nonzero coefficients
    stationarity: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def reweighted(
    A: Float[Array, "p p"],
    b: Float[Array, " p *c"],
    C: Float[Array, ""],
    first: Float[Array, " p"],
    *,
    rule: Rule = "relative",
) -> Reweighted:
    """Solve reweighted ridge systems (Mall and Suykens 2015, eq. 10 and 13, Algorithms 3 and 4).

    Solve `(A + diag(lambda) / C) beta = b`, first for the `lambda` that `first` gives, then
    repeatedly for `lambda_j = 1 / |beta_j|^2`. A fixed point is a local minimum of `sum_j log
    |beta_j| + C/2 (beta'A beta - 2 b'beta)` over the nonzero coefficients. The sum of logarithms
    replaces the number of nonzero coefficients. With several outputs `|beta_j|` is the length of a
    row, so a coefficient vanishes in all outputs or in none.

    The systems are solved for `v` in `beta_j = v_j / lambda_j^(1/2)`, `(S A S + 1/C) v = S b` with
    `S = diag(lambda^(-1/2))`. In these equations a coefficient near 0 is a small number, and a
    coefficient of 0 stays 0. As coefficients vanish, the systems become smaller.

    Args:
        A: symmetric and positive semi-definite, shape `p p`, after elimination of the intercept.
        b: shape `p` or `p c`.
        C: weight of the data-fit term, positive.
        first: `lambda^(-1/2)` of the first system, shape `p`, at least 0. A column with 0 is left
            out.
        rule: the stopping rule (static). "relative": stop after 200 steps, or when two conditions
            hold. First, the coefficients change by at most 1e-5 (or the root of the machine
            epsilon, if that is larger) of their length, in units in which the diagonal of A is 1.
            Second, every nonzero coefficient has at least the smallest size that a local minimum
            allows. A coefficient below a thousandth of the smallest size is set to 0 if the step
            has halved it. "paper": stop when `|change| / p < 1e-4` or after 50 steps, and set
            coefficients up to 1e-6 to 0, whatever their units.

    Returns:
        `Reweighted`. The status is `NOT_FINITE` for NaN, infinity, or a `C` that is not positive.
        At the limit of steps it is `EXHAUSTED`, or `COMPLETED` with the rule "paper", as the paper
        counts the limit as convergence. It is `PRECISION_LOST` if rounding, not the data,
        decides the last solution. If `C` is small, all coefficients may be 0.

    Pure; works under `jit` and `vmap`, and nothing compiles again when values change. Not
    differentiable in reverse mode, because the number of iterations is unknown.
    """
    unit, first = _units(jnp.sqrt(jnp.diagonal(A)), C, first)
    targets = jnp.sqrt(C) * unit[:, None] * b.reshape(len(b), -1)
    system = Squares(unit[:, None] * A * unit[None, :], targets, unit / jnp.sqrt(C))
    return _solve(system, first, C, rule, b.shape[1:])


def reweighted_rows(
    F: Float[Array, "r p"],
    g: Float[Array, " r *c"],
    C: Float[Array, ""],
    first: Float[Array, " p"],
    *,
    rule: Rule = "relative",
) -> Reweighted:
    """Return the result of `reweighted` for `A = F'F` and `b = F'g` without forming them.

    The systems are least-squares problems, solved by QR. Rounding is amplified by the condition
    number of F, not by its square, so float32 suffices where `reweighted` needs float64. It takes
    about five times as long as `reweighted`.

    `F` has shape `r p` and `g` shape `r` or `r c`; the other arguments are as for `reweighted`.
    """
    length = jnp.sqrt(jnp.sum(jnp.square(F), axis=0))
    unit, first = _units(length, C, first)
    targets = jnp.sqrt(C) * g.reshape(len(g), -1)
    system = Rows(F * unit[None, :], targets, unit / jnp.sqrt(C))
    return _solve(system, first, C, rule, g.shape[1:])


def _units(
    length: Float[Array, " p"], C: Float[Array, ""], first: Float[Array, " p"]
) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
    """Return `1 / length`, 0 if it is infinite, and `first` in units with C and all lengths 1."""
    nonzero = length > 0
    unit = jnp.where(nonzero, 1 / jnp.where(nonzero, length, 1), 0)
    # NaN must not pass for a column of zeros.
    unit = jnp.where(jnp.isnan(length), length, unit)
    size = jnp.sqrt(C) * jnp.abs(first) / jnp.where(nonzero, unit, 1)
    return unit, jnp.where(nonzero, size, unit)


def init(scale: Float[Array, " q"], outputs: int) -> State:
    """Return the state before the first system, whose penalties are `lambda = scale^(-2)`."""
    return State(
        coefficients=jnp.zeros((len(scale), outputs), scale.dtype),
        size=scale,
        lost=jnp.zeros((), bool),
        steps=jnp.zeros((), jnp.int32),
        # With infinite penalties all coefficients are 0.
        status=jnp.where(jnp.all(scale == 0), CONVERGED, RUNNING).astype(jnp.int32),
    )


def step(system: System, state: State, rule: Rule) -> State:
    """Solve one system; its solution gives the penalties of the next system."""
    s, p = state.size, len(state.size)
    nonzero = s > 0
    order = jnp.sort(jnp.where(nonzero, jnp.arange(p, dtype=jnp.int32), p))

    def solution(q: int) -> tuple[Float[Array, "p c"], Bool[Array, ""]]:
        if q == p:
            return system.solved(s)
        # Places beyond the nonzero coefficients repeat the last column, with `s` 0.
        used, columns = order[:q] < p, jnp.minimum(order[:q], p - 1)
        v, lost = system.part(columns).solved(jnp.where(used, s[columns], 0))
        return jnp.zeros((p, v.shape[1]), v.dtype).at[order[:q]].set(v, mode="drop"), lost

    count = jnp.sum(nonzero, dtype=jnp.int32)
    v, lost = of_capacity(count, capacities(p, EIGHTHS, SMALLEST), solution)
    u = s[:, None] * v
    size = jnp.sqrt(jnp.sum(jnp.square(u), axis=1))
    after_first = state.steps > 0  # the first `s` is not the size of coefficients
    unit = system.unit
    changes = jnp.sqrt(jnp.sum(jnp.square(u - state.coefficients), axis=1))
    zero_size = PAPER_ZERO if rule == "paper" else ZERO
    small = unit * size <= zero_size if rule == "paper" else size <= zero_size
    size = jnp.where(after_first & small & (size <= 0.5 * s), 0, size)
    if rule == "paper":
        converged = jnp.sqrt(jnp.sum(jnp.square(unit * changes))) / p < PAPER_CHANGE
    else:
        change, total = (jnp.sqrt(jnp.sum(jnp.square(a))) for a in (changes, size))
        tolerance = max(CHANGE, epsilon(s.dtype) ** 0.5)
        converged = (change <= tolerance * total) & jnp.all((size == 0) | (size >= 1))
    steps = state.steps + 1
    limit, status_at_limit = (PAPER_STEPS, COMPLETED) if rule == "paper" else (STEPS, EXHAUSTED)
    status = jnp.where(steps >= limit, status_at_limit, RUNNING)
    # An iteration whose systems are decided by rounding may never converge.
    status = jnp.where(lost & (steps >= PAPER_STEPS), status_at_limit, status)
    status = jnp.where(after_first & converged | jnp.all(size == 0), CONVERGED, status)
    status = jnp.where(jnp.all(jnp.isfinite(u)), status, NOT_FINITE).astype(jnp.int32)
    return State(jnp.where(size[:, None] > 0, u, 0), size, lost, steps, status)


@unbatched_lapack
def _triangular_factor(rows: Float[Array, "n q"]) -> Float[Array, "p q"]:
    return jnp.linalg.qr(rows, mode="r")


@unbatched_lapack
def _solve_joined(joined: Float[Array, "q r"]) -> Float[Array, "q c"]:
    """Return `M^(-1) B` given `[M B]` with `M` upper triangular."""
    q = len(joined)
    return jax.scipy.linalg.solve_triangular(joined[:, :q], joined[:, q:])


def _solve(
    system: System,
    first: Float[Array, " p"],
    C: Float[Array, ""],
    rule: Rule,
    outputs: tuple[int, ...],
) -> Reweighted:
    """Iterate until the rule stops; return the coefficients in the caller's units."""
    state = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(system, state, rule),
        init(first, system[1].shape[1]),
    )
    u, size = state.coefficients, state.size
    if rule == "paper":
        size = jnp.where(system.unit * size > PAPER_ZERO, size, 0)
        u = jnp.where(size[:, None] > 0, u, 0)
    slope = jnp.sum(u * system.negative_gradient(u), axis=1)
    status = jnp.where(
        state.lost & (state.status < PRECISION_LOST), jnp.int32(PRECISION_LOST), state.status
    )
    usable = jnp.isfinite(C) & (C > 0) & jnp.all(jnp.isfinite(system[1]))
    return Reweighted(
        coefficients=(system.unit[:, None] * u).reshape(len(u), *outputs),
        count=jnp.sum(size > 0, dtype=jnp.int32),
        stationarity=jnp.max(jnp.where(size > 0, jnp.abs(slope - 1), 0), initial=0),
        steps=state.steps,
        status=jnp.where(usable, status, jnp.int32(NOT_FINITE)),
    )
