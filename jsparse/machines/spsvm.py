"""Sparse SVM of growing size: greedy prototypes, squared hinge, Newton (Keerthi et al. 2006)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import as_float, dot, epsilon, like
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..pursuit.probabilistic import SUBSET
from ..pursuit.system import check_atoms
from ..solvers.definite import solve_definite
from .fixed_size import check_problem, in_one_dtype
from .scdp import SparsePath, check_candidates

# All coefficients are optimised again when there are so many times more of them; in between, only
# that of the newest (Section 3.3 of the source: the cost is then that of the last time).
GROWTH = 1.1
_NEWTON_STEPS = 20
_LINE_STEPS = 12


class State(NamedTuple):
    """All that the next prototype needs."""

    columns: Float[Array, "k n"]  # k(z_j, x) at the rows
    gram: Float[Array, "k k"]  # k(z_i, z_j), the identity where there is none
    outputs: Float[Array, " n"]  # f(x) of the rows
    coefficients: Float[Array, " k"]
    intercept: Float[Array, ""]
    path: Float[Array, "k k"]  # coefficients with 1, 2, .. prototypes
    intercepts: Float[Array, " k"]
    support: Int[Array, " k"]
    free: Bool[Array, " M"]
    optimised: Int[Array, ""]  # size at which all coefficients were optimised last
    size: Int[Array, ""]
    status: Int[Array, ""]


def fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: Key,
    max_prototypes: int,
    subset: int = SUBSET,
    growth: float = GROWTH,
) -> SparsePath:
    """Sparse support vector machines of 1, 2, .. prototypes (Keerthi et al. 2006, spSVM-2).

    Minimises `1/2 beta'K beta + C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2` over a growing set of
    prototypes. Each is the one, out of a random subset of the candidates, whose coefficient alone
    lowers the objective most. Now and then all coefficients are optimised again, by Newton steps
    whose systems are the normal equations of the rows within the margin.

    Args:
        kernel: kernel of two points.
        candidates: points to choose prototypes from, shape `M d`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the candidates.
        y: classes -1 and +1, shape `n`.
        weights: row weights, shape `n`, at least 0.
        key: decides the subsets.
        max_prototypes: length of the path, at most `M` (static).
        subset: candidates looked at for each prototype (static); 59 in the source.
        growth: of the number of prototypes until all are optimised again (static); 1 for always.

    Returns:
        `SparsePath`; its `condition` is not looked at, and 1.

    Raises:
        ValueError: for shapes that do not fit, values known to be out of range, or more prototypes
            than candidates.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, jnp.asarray(y), weights)
    check_problem(None, C, X, y, weights)
    check_candidates(candidates, X.shape[1])
    if y.ndim != 1:
        raise ValueError(f"y: expected shape (n,), got {y.shape}")
    max_prototypes = check_atoms(max_prototypes, len(candidates))
    if not 1 <= subset <= len(candidates):
        raise ValueError(f"subset: expected 1 to {len(candidates)}, the candidates; got {subset}")
    if growth < 1:
        raise ValueError(f"growth: expected at least 1, got {growth}")
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    sizes = {"max_prototypes": max_prototypes, "subset": int(subset), "growth": float(growth)}
    return _fit(kernel, candidates, like(C, X), X, y, w, key, **sizes)


@functools.partial(jax.jit, static_argnames=("max_prototypes", "subset", "growth"))
def _fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    key: Key,
    *,
    max_prototypes: int,
    subset: int,
    growth: float,
) -> SparsePath:
    k, n, dtype = max_prototypes, len(X), X.dtype

    def step(state: State) -> State:
        drawn = jax.random.uniform(jax.random.fold_in(key, state.size), state.free.shape)
        some = jax.lax.top_k(jnp.where(state.free, drawn, -1.0), subset)[1]
        Z = candidates[some]
        phi = kernel.cross_gram(Z, X)
        place = jnp.maximum(state.support, 0)
        among = kernel.cross_gram(Z, candidates[place])
        pull = dot(jnp.where(state.support >= 0, among, 0), state.coefficients)
        square = kernel.diagonal(Z)
        step_of, gain = jax.vmap(
            lambda phi, square, pull: _along(state.outputs, phi, y, w, C, square, pull)
        )(phi, square, pull)
        best = jnp.argmax(jnp.where(state.free[some], gain, -jnp.inf))
        at, atom = state.size, some[best]
        row = jnp.where(state.support >= 0, among[best], 0)
        gram = state.gram.at[at].set(row).at[:, at].set(row).at[at, at].set(square[best])
        columns = state.columns.at[at].set(phi[best])
        support = state.support.at[at].set(atom.astype(jnp.int32))
        size = at + 1
        grown = state._replace(
            columns=columns,
            gram=gram,
            outputs=state.outputs + step_of[best] * phi[best],
            coefficients=state.coefficients.at[at].set(step_of[best]),
            support=support,
            free=state.free.at[atom].set(False),
            size=size,
        )
        due = (size.astype(dtype) >= growth * state.optimised.astype(dtype)) | (size >= k)
        grown = jax.lax.cond(due, lambda s: _optimise(s, y, w, C), lambda s: s, grown)
        status = jnp.where(size >= k, EXHAUSTED, RUNNING)
        finite = jnp.all(jnp.isfinite(grown.coefficients)) & jnp.isfinite(grown.intercept)
        return grown._replace(
            path=state.path.at[at].set(grown.coefficients),
            intercepts=state.intercepts.at[at].set(grown.intercept),
            status=jnp.where(finite, status, NOT_FINITE).astype(jnp.int32),
        )

    first = State(
        columns=jnp.zeros((k, n), dtype),
        gram=jnp.eye(k, dtype=dtype),
        outputs=jnp.zeros(n, dtype),
        coefficients=jnp.zeros(k, dtype),
        intercept=jnp.zeros((), dtype),
        path=jnp.zeros((k, k), dtype),
        intercepts=jnp.zeros(k, dtype),
        support=jnp.full(k, -1, jnp.int32),
        free=jnp.ones(len(candidates), bool),
        optimised=jnp.zeros((), jnp.int32),
        size=jnp.zeros((), jnp.int32),
        status=jnp.full((), RUNNING, jnp.int32),
    )
    last = jax.lax.while_loop(lambda state: state.status == RUNNING, step, first)
    return SparsePath(
        kernel,
        candidates,
        last.support,
        last.path,
        last.intercepts,
        jnp.ones(k, dtype),
        jnp.zeros(k, dtype),
        last.size,
        last.status,
    )


def _margin(outputs: Array, y: Array, w: Array) -> Float[Array, " n"]:
    """Weighted shortfall `w y max(0, 1 - y f)`, the pull of each row."""
    return w * y * jnp.maximum(1 - y * outputs, 0)


def _along(
    outputs: Float[Array, " n"],
    phi: Float[Array, " n"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    square: Float[Array, ""],
    pull: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The step `t` along `phi` that minimises the objective, and by how much it lowers it.

    The objective's slope in t, `square t + pull - C sum pull of rows`, is increasing and piecewise
    linear: Newton steps, kept inside a bracket of its root.
    """

    def slope(t: Array) -> tuple[Array, Array]:
        f = outputs + t * phi
        inside = jnp.where(1 - y * f > 0, w, 0)
        return (
            square * t + pull - C * dot(phi, _margin(f, y, w)),
            square + C * dot(inside, jnp.square(phi)),
        )

    def newton(_: Array, of: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        t, low, high = of
        d, dd = slope(t)
        low, high = jnp.where(d < 0, t, low), jnp.where(d < 0, high, t)
        fresh = t - d / jnp.where(dd > 0, dd, 1)
        outside = (fresh < low) | (fresh > high)
        return jnp.where(outside, (low + high) / 2, fresh), low, high

    zero = jnp.zeros_like(pull)
    t, _, _ = jax.lax.fori_loop(0, _LINE_STEPS, newton, (zero, zero - jnp.inf, zero + jnp.inf))

    def value(t: Array) -> Array:
        short = jnp.maximum(1 - y * (outputs + t * phi), 0)
        return square * t**2 / 2 + pull * t + C / 2 * dot(w, jnp.square(short))

    return t, value(zero) - value(t)


class _Newton(NamedTuple):
    coefficients: Float[Array, " k"]
    intercept: Float[Array, ""]
    outputs: Float[Array, " n"]
    steps: Int[Array, ""]
    status: Int[Array, ""]


def _optimise(
    state: State, y: Float[Array, " n"], w: Float[Array, " n"], C: Float[Array, ""]
) -> State:
    """All coefficients and the intercept, by Newton steps with exact line search."""
    there = (state.support >= 0).astype(y.dtype)
    columns, k = state.columns * there[:, None], state.support.shape[0]
    extended = jnp.concatenate([columns, jnp.ones_like(y)[None]])
    R = jnp.zeros((k + 1, k + 1), y.dtype).at[:k, :k].set(state.gram)

    def step(of: _Newton) -> _Newton:
        inside = jnp.where(1 - y * of.outputs > 0, w, 0)
        # The Newton point is least squares on the rows within the margin: their normal equations.
        rows = extended * inside[None, :]
        A = C * dot(rows, extended.T) + R
        A = A.at[k, k].add(jnp.where(jnp.any(inside > 0), 0, 1).astype(A.dtype))
        rhs = C * dot(rows, y)
        scale = 1 / jnp.sqrt(jnp.diagonal(A))  # rows and columns of very different size
        scaled = A * scale[:, None] * scale[None]
        target = solve_definite(scaled, (scale * rhs)[:, None], like(0, A)).x[:, 0] * scale
        now = jnp.append(of.coefficients, of.intercept)
        direction = target - now
        phi = dot(direction, extended)
        square = dot(direction, dot(R, direction))
        t, gain = _along(of.outputs, phi, y, w, C, square, dot(direction, dot(R, now)))
        better = gain > 0
        t = jnp.where(better, t, 0)
        now, outputs = now + t * direction, of.outputs + t * phi
        loss = C / 2 * dot(w, jnp.square(jnp.maximum(1 - y * outputs, 0)))
        steps = of.steps + 1
        status = jnp.where(steps >= _NEWTON_STEPS, EXHAUSTED, RUNNING)
        small = gain <= 1e2 * epsilon(y.dtype) * loss
        status = jnp.where(small | ~better, CONVERGED, status).astype(jnp.int32)
        return _Newton(now[:k], now[k], outputs, steps, status)

    first = _Newton(
        state.coefficients,
        state.intercept,
        state.outputs,
        jnp.zeros((), jnp.int32),
        jnp.full((), RUNNING, jnp.int32),
    )
    last = jax.lax.while_loop(lambda of: of.status == RUNNING, step, first)
    return state._replace(
        coefficients=last.coefficients * there,
        intercept=last.intercept,
        outputs=last.outputs,
        optimised=state.size,
    )
