"""Sparse SVM of growing size: greedy prototypes, squared hinge, Newton (Keerthi et al. 2006)."""

import dataclasses
import functools
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from .._arguments import as_key, real, whole_number
from .._numerics import (
    as_array,
    as_float,
    dot,
    epsilon,
    is_concrete,
    like,
    present_rows,
    present_targets,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import (
    COMPLETED,
    CONVERGED,
    EXHAUSTED,
    INDEFINITE,
    NOT_FINITE,
    PRECISION_LOST,
    RUNNING,
    TRUNCATED,
)
from .._types import Key, KeyLike, ScalarLike
from ..kernels import Kernel
from ..multiclass import Code
from ..pursuit.conjugate import NOISE
from ..pursuit.path import LOST
from ..pursuit.probabilistic import SUBSET
from ..pursuit.system import check_atoms
from ..solvers.definite import factorise
from .candidates import Candidates
from .checks import check_problem, in_one_dtype
from .method import Method, Task, stacked
from .scdp import SCDP, check_candidates
from .sparse_path import SparsePath

# All coefficients are optimised again when there are so many times more of them; in between, only
# that of the newest (Section 3.3 of the source: the cost is then that of the last time).
GROWTH = 1.1
_LINE_STEPS = 12


@dataclasses.dataclass(frozen=True)
class SpSVM(Candidates):
    """Sparse support vector machines of growing size (Keerthi et al. 2006).

    More than two classes are problems of two, each with prototypes of its own. The kernel is tuned
    for the least-squares machine of the same candidates, as a path of this one for every kernel,
    `C` and fold takes a hundred times longer; `C` and the size are its own.

    Args:
        max_prototypes: see `Candidates`, as are all others but these.
        candidates: their number, "all", or points in raw units.
        candidate_method: how they are chosen.
        subset: candidates looked at for each prototype; None for 59.
        size_tolerance: of the size chosen.
        growth: see `fit`.
    """

    name: ClassVar[str] = "spsvm"
    title: ClassVar[str] = "sparse SVM"
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.geomspace(0.1, 1000, 5)

    growth: float = GROWTH

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        real("growth", self.growth, 1.0, finite=False)

    def surrogate(self) -> Method:
        """The least-squares machine of the same candidates."""
        return SCDP(
            max_prototypes=self.max_prototypes,
            candidates=self.candidates,
            candidate_method=self.candidate_method,
            size_tolerance=self.size_tolerance,
        )

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> SparsePath:
        """See `fit`; of several problems, each on its own."""
        assert points is not None
        assert key is not None
        options = {"max_prototypes": self.longest, "subset": self.subset, "growth": self.growth}
        if code is None:
            return fit(kernel, points, cast(ScalarLike, C), X, y, weights, key=key, **options)
        targets = jnp.asarray(code.matrix, X.dtype)[y]
        w = jnp.ones(len(X), X.dtype) if weights is None else weights
        each = jnp.broadcast_to(jnp.asarray(C, X.dtype), targets.shape[1:])
        paths = [
            fit(
                kernel, points, each[j], X, jnp.where(targets[:, j] > 0, 1, -1).astype(X.dtype),
                w * jnp.abs(targets[:, j]), key=key, **options,
            )
            for j in range(targets.shape[1])
        ]  # fmt: skip
        return stacked(paths)._replace(kernel=kernel, candidates=points)


class Problem(NamedTuple):
    """What is given: rows without weight are others' copies."""

    kernel: Kernel
    candidates: Float[Array, "M d"]
    C: Float[Array, ""]
    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    w: Float[Array, " n"]

    __repr__ = short_repr


class State(NamedTuple):
    """All that the next prototype needs.

    With `K = L L'` of the prototypes, `f = coordinates' features + b` and `beta = L^(-T)
    coordinates`: in these coordinates the penalty is the identity, and Newton's systems have none
    of the condition of the kernel matrix, which float32 does not survive.
    """

    features: Float[Array, "k n"]  # L^(-1) k(z_j, x) at the rows
    factor: Float[Array, "k k"]  # L, the identity where there is no prototype
    outputs: Float[Array, " n"]  # f(x) of the rows
    coordinates: Float[Array, " k"]
    intercept: Float[Array, ""]
    condition: Float[Array, ""]  # of the system of the coefficients, optimised last
    error: Float[Array, ""]  # of its solution by rounding, relative
    ended: Int[Array, ""]  # how Newton's steps to it did
    path: Float[Array, "k k"]  # coordinates with 1, 2, .. prototypes
    intercepts: Float[Array, " k"]
    conditions: Float[Array, " k"]
    errors: Float[Array, " k"]
    ends: Int[Array, " k"]
    support: Int[Array, " k"]
    free: Bool[Array, " M"]  # candidates neither selected nor found to depend on those
    truncated: Bool[Array, ""]  # whether one of the latter would have been of use
    optimised: Int[Array, ""]  # size at which all coefficients were optimised last
    size: Int[Array, ""]
    step: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike,
    max_prototypes: int,
    subset: int | None = None,
    growth: float = GROWTH,
    max_steps: int = 50,
) -> SparsePath:
    """Sparse support vector machines of 1, 2, .. prototypes (Keerthi et al. 2006, spSVM-2).

    Minimises `1/2 beta'K beta + C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2` over a growing set of
    prototypes. Each is the one, out of a random subset of the candidates, whose coefficient alone
    lowers the objective most. Now and then all coefficients are optimised again, by Newton steps
    whose systems are the normal equations of the rows within the margin.

    Candidates that in this precision cannot be told from functions of those selected are passed
    over; where no others are left the path ends.

    Args:
        kernel: kernel of two points.
        candidates: points to choose prototypes from, shape `M d`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the candidates.
        y: classes -1 and +1, shape `n`.
        weights: row weights, shape `n`, at least 0.
        key: decides the subsets.
        max_prototypes: length of the path, at most `M` (static).
        subset: candidates looked at for each prototype (static); None for the source's 59, or as
            many as there are.
        growth: of the number of prototypes until all are optimised again (static); 1 for always.
        max_steps: cap on Newton's steps each time (static).

    Returns:
        `SparsePath`; what a machine's `condition`, `coefficient_error` and `coefficient_status` say
        is of the last time when all its coefficients were optimised: `EXHAUSTED` at `max_steps`.

    Raises:
        ValueError: for shapes that do not fit, values known to be out of range, or more prototypes
            than candidates.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, C, X, y, weights)
    check_candidates(candidates, X.shape[1])
    if y.ndim != 1:
        raise ValueError(f"y: expected shape (n,), got {y.shape}")
    _check_classes(y, weights)
    M = len(candidates)
    max_prototypes = check_atoms(max_prototypes, M, "max_prototypes", "candidates")
    subset = min(SUBSET, M) if subset is None else check_atoms(subset, M, "subset", "candidates")
    if not growth >= 1:
        raise ValueError(f"growth: expected at least 1, got {growth}")
    max_steps = whole_number("max_steps", max_steps, 1)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    sizes = {"max_prototypes": max_prototypes, "subset": subset, "growth": float(growth)}
    return _fit(kernel, candidates, like(C, X), X, y, w, as_key(key), **sizes, max_steps=max_steps)


def _check_classes(y: Float[Array, " n"], weights: Float[Array, " n"] | None) -> None:
    """Raise unless all rows that count are of -1 or +1, as far as they can be looked at."""
    if is_concrete(y) and (weights is None or is_concrete(weights)):
        found = np.unique(np.asarray(y) if weights is None else np.asarray(y)[weights > 0])
        if not np.isin(found, [-1, 1]).all():
            raise ValueError(f"y: expected -1 and +1, got {np.array2string(found, threshold=6)}")


@functools.partial(compiled, static_argnames=("max_prototypes", "subset", "growth", "max_steps"))
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
    max_steps: int,
) -> SparsePath:
    X = present_rows(X, w, apart=True)
    problem = Problem(kernel, candidates, C, X, present_targets(y, w), w)
    k, n, M, dtype = max_prototypes, len(X), len(candidates), X.dtype
    zero, count, many = jnp.zeros((), dtype), jnp.zeros((), jnp.int32), jnp.zeros(k, dtype)
    first = State(
        features=jnp.zeros((k, n), dtype),
        factor=jnp.eye(k, dtype=dtype),
        outputs=jnp.zeros(n, dtype),
        coordinates=many,
        intercept=zero,
        condition=zero + 1,
        error=zero,
        ended=count + RUNNING,
        path=jnp.zeros((k, k), dtype),
        intercepts=many,
        conditions=many,
        errors=many,
        ends=jnp.full(k, RUNNING, jnp.int32),
        support=jnp.full(k, -1, jnp.int32),
        free=jnp.ones(M, bool),
        truncated=jnp.zeros((), bool),
        optimised=count,
        size=count,
        step=count,
        status=count + RUNNING,
    )
    sizes = {"subset": subset, "growth": growth, "max_steps": max_steps}
    last = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: _step(problem, state, key, **sizes),
        first,
    )
    # What comes after the end of a path repeats its last machine.
    at = jnp.minimum(jnp.arange(k, dtype=jnp.int32), jnp.maximum(last.size - 1, 0))
    return SparsePath(
        kernel,
        candidates,
        last.support,
        solve_triangular(last.factor, last.path[at].T, trans=1, lower=True).T,
        last.intercepts[at],
        last.conditions[at],
        last.errors[at],
        last.ends[at],
        last.size,
        last.status,
    )


def _step(
    problem: Problem, state: State, key: Key, *, subset: int, growth: float, max_steps: int
) -> State:
    """One prototype more, or none where all that were looked at depend on those selected."""
    kernel, candidates, C, X, y, w = problem
    (M, k), dtype = (len(candidates), len(state.support)), X.dtype
    eps, least = epsilon(dtype), float(jnp.finfo(dtype).tiny)
    # In one precision, so that all look at the same sets.
    order = jax.random.uniform(jax.random.fold_in(key, state.step), (M,), jnp.float32)
    drawn, some = jax.lax.top_k(jnp.where(state.free, order, -1.0), subset)
    Z, here = candidates[some], drawn >= 0
    phi = kernel.cross_gram(X, Z).T  # about the candidates: a row without weight may be far
    among = kernel.cross_gram(Z, candidates[jnp.maximum(state.support, 0)])
    among = jnp.where(state.support >= 0, among, 0)
    shares = solve_triangular(state.factor, among.T, lower=True).T
    square = kernel.diagonal(Z)
    pivot = square - jnp.sum(jnp.square(shares), axis=1)  # Schur complements
    noise = NOISE * eps * square + least  # a candidate of norm 0 is none
    step_of, gain = jax.vmap(
        lambda phi, square, pull: _along(state.outputs, phi, y, w, C, square, pull)
    )(phi, square, dot(shares, state.coordinates))
    independent, dependent = here & (pivot > noise), here & (pivot <= noise)
    best = jnp.argmax(jnp.where(independent, gain, -jnp.inf))
    rest = jnp.argmax(jnp.where(dependent, pivot, -jnp.inf))
    both = jnp.stack([best, rest])
    left = phi[both] - dot(shares[both], state.features)
    # Whether the direction passed over, had it been resolved, would have been used by half.
    inside = jnp.where(1 - y * state.outputs > 0, w, 0)
    used = C * dot(inside, jnp.square(left[1])) > jnp.maximum(pivot, noise)[rest]

    adds, at = jnp.any(independent), state.size
    slot = jnp.where(adds, at, k)  # k: nowhere
    root = jnp.sqrt(jnp.where(adds, pivot[best], 1))
    row = shares[best].at[at].set(root)
    t = jnp.where(adds, step_of[best], 0)
    gone = dependent.at[best].set(dependent[best] | adds)
    grown = state._replace(
        features=state.features.at[slot].set(left[0] / root, mode="drop"),
        factor=state.factor.at[slot].set(row, mode="drop"),
        outputs=state.outputs + t * phi[best],
        coordinates=state.coordinates + t * row,
        support=state.support.at[slot].set(some[best].astype(jnp.int32), mode="drop"),
        free=state.free.at[jnp.where(gone, some, M)].set(False, mode="drop"),
        truncated=state.truncated | (dependent[rest] & used),
        size=at + adds.astype(jnp.int32),
        step=state.step + 1,
    )
    ended = jnp.where(grown.truncated, TRUNCATED, CONVERGED)
    status = jnp.where(jnp.any(grown.free), RUNNING, ended)
    status = jnp.where(grown.size >= k, COMPLETED, status)
    due = grown.size.astype(dtype) >= growth * state.optimised.astype(dtype)
    due = (adds & due) | (status != RUNNING)
    grown = jax.lax.cond(due, lambda s: _optimise(s, y, w, C, max_steps), lambda s: s, grown)
    indefinite = jnp.any(here & (pivot < -jnp.sqrt(eps) * jnp.abs(square)))
    finite = jnp.all(jnp.isfinite(grown.coordinates)) & jnp.isfinite(grown.intercept)
    finite &= jnp.all(jnp.isfinite(pivot) | ~here)
    status = jnp.where(indefinite, INDEFINITE, jnp.where(finite, status, NOT_FINITE))
    return _noted(grown)._replace(status=status.astype(jnp.int32))


def _noted(state: State) -> State:
    """With its machine as the last on the path."""
    last = jnp.maximum(state.size - 1, 0)
    return state._replace(
        path=state.path.at[last].set(state.coordinates),
        intercepts=state.intercepts.at[last].set(state.intercept),
        conditions=state.conditions.at[last].set(state.condition),
        errors=state.errors.at[last].set(state.error),
        ends=state.ends.at[last].set(state.ended),
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
        # Near the root rounding alone may call a step one out of a bracket with an open end.
        middle = jnp.where(jnp.isfinite(low) & jnp.isfinite(high), (low + high) / 2, t)
        return jnp.where(outside, middle, fresh), low, high

    zero = jnp.zeros_like(pull)
    t, _, _ = jax.lax.fori_loop(0, _LINE_STEPS, newton, (zero, zero - jnp.inf, zero + jnp.inf))

    # The difference of the squares, row by row: that of their sums would be lost in rounding.
    before, after = (jnp.maximum(1 - y * f, 0) for f in (outputs, outputs + t * phi))
    lost = dot(w, (before - after) * (before + after))
    return t, C / 2 * lost - square * t**2 / 2 - pull * t


class _Newton(NamedTuple):
    solution: Float[Array, " p"]  # coordinates and intercept, p = k + 1
    hessian: Float[Array, "p p"]  # at the step before
    steps: Int[Array, ""]
    status: Int[Array, ""]


def _optimise(
    state: State,
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    max_steps: int,
) -> State:
    """All coefficients and the intercept, by Newton steps with exact line search."""
    k, eps = len(state.support), epsilon(y.dtype)
    extended = jnp.concatenate([state.features, jnp.ones_like(y)[None]])
    penalty = jnp.ones(k + 1, y.dtype).at[k].set(0)

    def step(of: _Newton) -> _Newton:
        now = of.solution
        outputs = dot(now, extended)
        inside = jnp.where(1 - y * outputs > 0, w, 0)
        # The Newton point is least squares on the rows within the margin: their normal equations.
        # The way there is of the gradient, so that what rounding does to them is mended by steps.
        H = C * dot(extended * inside[None], extended.T) + jnp.diag(penalty)
        H = H.at[k, k].add(jnp.where(jnp.any(inside > 0), 0, 1).astype(H.dtype))
        downhill = C * dot(extended, _margin(outputs, y, w)) - penalty * now
        scale = 1 / jnp.sqrt(jnp.diagonal(H))  # rows and columns of very different size
        scaled = H * scale[:, None] * scale[None]
        factor = factorise(scaled, like(0, H))
        direction = factor.solve((scale * downhill)[:, None])[:, 0] * scale
        along, phi = penalty * direction, dot(direction, extended)
        t, gain = _along(outputs, phi, y, w, C, dot(along, along), dot(along, now))
        better = gain > 0
        loss = dot(y - outputs, _margin(outputs, y, w))  # y (y - f) = 1 - y f
        objective = (C * loss + dot(now, penalty * now)) / 2
        small = gain <= 1e2 * eps * objective
        # No step gains where rounding is all that is left of the slope, or has spoilt the system.
        spoilt = ~better & (dot(downhill, direction) > LOST * objective)
        steps = of.steps + 1
        status = jnp.where(steps >= max_steps, EXHAUSTED, RUNNING)
        status = jnp.where(small | ~better, CONVERGED, status)
        status = jnp.where(spoilt, PRECISION_LOST, status).astype(jnp.int32)
        return _Newton(now + jnp.where(better, t, 0) * direction, H, steps, status)

    first = _Newton(
        jnp.append(state.coordinates, state.intercept),
        jnp.eye(k + 1, dtype=y.dtype),
        jnp.zeros((), jnp.int32),
        jnp.full((), RUNNING, jnp.int32),
    )
    last = jax.lax.while_loop(lambda of: of.status == RUNNING, step, first)
    condition, error = _precision(state, last.hessian)
    return state._replace(
        coordinates=last.solution[:k],
        intercept=last.solution[k],
        outputs=dot(last.solution, extended),
        condition=condition,
        # Where rounding has spoilt Newton's systems there is no telling.
        error=jnp.where(last.status == PRECISION_LOST, jnp.inf, error),
        ended=last.status,
        optimised=state.size,
    )


def _precision(
    state: State, hessian: Float[Array, "p p"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Condition of the system `A` of coefficients and intercept, and their relative error.

    The condition is `tr(A) tr(A^(-1))` with the diagonal of A scaled to one, as of other paths.
    What the rows' rounding does goes by its root: they are squared for the steps of Newton only.
    What that of `K` does, which is a part of A, goes by `A^(-1)`.
    """
    p = len(hessian)
    L = jnp.eye(p, dtype=hessian.dtype).at[: p - 1, : p - 1].set(state.factor)
    there = jnp.append(state.support >= 0, True).astype(L.dtype)
    scale = 1 / jnp.sqrt(jnp.diagonal(hessian))
    scaled = hessian * scale[:, None] * scale[None]
    noise = 4 * epsilon(L.dtype) * p * jnp.eye(p, dtype=L.dtype)
    inner = solve_triangular(L, jnp.eye(p, dtype=L.dtype), lower=True) * scale[:, None]
    root = solve_triangular(jnp.linalg.cholesky(scaled + noise), inner, lower=True)
    inverse = there * jnp.sum(jnp.square(root), axis=0)
    condition = jnp.sum(there) * dot(inverse, jnp.sum(dot(L, hessian) * L, axis=1))
    by_kernel = dot(inverse[:-1], jnp.sum(jnp.square(state.factor), axis=1))
    return condition, epsilon(L.dtype) * (jnp.sqrt(condition) + by_kernel)
