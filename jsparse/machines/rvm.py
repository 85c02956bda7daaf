"""Relevance vector machines by the fast sequential algorithm (Tipping and Faul 2003)."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import real, whole_number
from .._blocks import capacity, map_systems, padded
from .._numerics import (
    dot,
    dot_over_rows,
    each_alone,
    epsilon,
    exponents,
    present_rows,
    times_power,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code
from ..prototypes.choice import choose_rows
from ..solvers.definite import inverse_of_lower
from .method import Method, Points, Shape, Task, TrainingRows, each_problem, rows_at

Likelihood = Literal["normal", "logistic"]
TOLERANCE = 1e-3  # gain of the log evidence, in nats
MAX_STEPS = 1000
_ADDED = 1 - 1e-3
_NEWTON = 30  # steps towards the mode
_CUT_OFF = 100  # tolerances of a model that has as many functions as it may have
_FEW = 24  # functions that the model has room for to begin with
_NOISE = 0.1  # part of the targets' variance that is noise to begin with


class RelevanceFit(NamedTuple):
    """A machine on all candidates, the coefficients of most of which are 0.

    Where the dtype cannot hold squares of the targets, `noise` is 0 or infinite; the rest is sound.
    """

    expansion: KernelExpansion
    history: Float[Array, "*l s"]  # log evidence after 0, 1, .. steps; NaN for those not taken
    steps: Int[Array, "*l"]
    noise: Float[Array, "*l"]  # variance of the targets about the machine; of classes 1
    status: Int[Array, ""]

    __repr__ = short_repr


class Rows(NamedTuple):
    """What is given of one problem: `log p(y | weights) = sum_i w_i log p(y_i | Phi_i weights)`."""

    Phi: Float[Array, "n p"]  # columns of the kernel, and of ones
    y: Float[Array, " n"]
    w: Float[Array, " n"]

    __repr__ = short_repr


class Chosen(NamedTuple):
    """Functions in the model, each with the precision of its prior."""

    which: Int[Array, " k"]  # columns; of places not in use anything
    there: Bool[Array, " k"]
    alpha: Float[Array, " k"]
    beta: Float[Array, ""]  # precision of the noise; of classes 1

    __repr__ = short_repr


class Posterior(NamedTuple):
    """Of the weights of what is chosen, by Laplace's approximation where it is not normal."""

    mean: Float[Array, " k"]  # 0 in places not in use
    spread: Float[Array, "k k"]  # Sigma
    values: Float[Array, " n"]
    evidence: Float[Array, ""]

    __repr__ = short_repr


class State(NamedTuple):
    """A sequence of additions, deletions and estimates, none of which lowers the evidence."""

    chosen: Chosen
    posterior: Posterior
    tried: Bool[Array, " c"]  # what has been rejected since the last step
    history: Float[Array, " s+1"]
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


@each_alone
def _cholesky(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    return jnp.linalg.cholesky(matrix)


def _curved(
    given: Rows, chosen: Chosen, values: Float[Array, " n"], likelihood: Likelihood
) -> Array:
    """Second derivatives of the rows' log likelihood, with the sign changed."""
    if likelihood == "normal":
        return chosen.beta * given.w
    p = jax.nn.sigmoid(values)
    return given.w * p * (1 - p)


def _pull(given: Rows, chosen: Chosen, values: Float[Array, " n"], likelihood: Likelihood) -> Array:
    """First derivatives of the rows' log likelihood."""
    if likelihood == "normal":
        return chosen.beta * given.w * (given.y - values)
    return given.w * given.y * jax.nn.sigmoid(-given.y * values)


def _likelihood(
    given: Rows, chosen: Chosen, values: Float[Array, " n"], likelihood: Likelihood
) -> Array:
    if likelihood == "normal":
        errors = dot(given.w, jnp.square(given.y - values))
        total = jnp.sum(given.w)
        return (total * jnp.log(chosen.beta / (2 * jnp.pi)) - chosen.beta * errors) / 2
    return dot(given.w, jax.nn.log_sigmoid(given.y * values))


def posterior(
    given: Rows, chosen: Chosen, mean: Float[Array, " k"], likelihood: Likelihood
) -> Posterior:
    """By Newton's steps from a mean, each halved until it does not lower the density."""
    there = chosen.there
    Phi = jnp.where(there[None, :], given.Phi[:, chosen.which], 0)
    alpha = jnp.where(there, chosen.alpha, 1)

    def density(mean: Array) -> Array:
        return (
            _likelihood(given, chosen, dot(Phi, mean), likelihood)
            - dot(alpha, jnp.square(mean)) / 2
        )

    def inverse(values: Array) -> tuple[Array, Array, Array]:
        """Of the square root of the precision, with the scale taken out."""
        gram = dot_over_rows(_curved(given, chosen, values, likelihood)[:, None] * Phi, Phi)
        scale = 1 / jnp.sqrt(alpha + jnp.diagonal(gram))
        noise = 4 * epsilon(Phi.dtype) * len(alpha)
        scaled = gram * scale[:, None] * scale[None, :]
        lower = _cholesky(scaled + jnp.diag(alpha * jnp.square(scale) + noise))
        return inverse_of_lower(lower) * scale[None, :], lower, scale

    def step(of: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        mean, value, t, count = of
        root, _, _ = inverse(dot(Phi, mean))
        values = dot(Phi, mean)
        slope = dot(_pull(given, chosen, values, likelihood), Phi) - alpha * mean
        move = dot(dot(root, slope), root)
        after = mean + t * move
        then = density(after)
        better = then >= value
        gained = better & (then - value > 1e-2 * TOLERANCE)
        t = jnp.where(better, 1, t / 2)
        going = (gained | ~better) & (t > 1e-3)
        count = jnp.where(going, count + 1, _NEWTON)
        return jnp.where(better, after, mean), jnp.where(better, then, value), t, count

    mean = jnp.where(there, mean, 0)
    one, none = jnp.ones((), Phi.dtype), jnp.zeros((), jnp.int32)
    first = mean, density(mean), one, none
    mean, value, _, _ = jax.lax.while_loop(lambda of: of[3] < _NEWTON, step, first)
    values = dot(Phi, mean)
    root, lower, scale = inverse(values)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(lower)) - jnp.log(scale))
    evidence = value + (jnp.sum(jnp.log(alpha)) - log_determinant) / 2
    return Posterior(mean, dot(root.T, root), values, evidence)


def _gains(
    given: Rows, state: State, likelihood: Likelihood
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """What each change would gain, and the precision it would set (Tipping and Faul, eq. 32-37).

    Changes are to add each column, to estimate the precision of each place again, and to delete it.
    """
    chosen, now = state.chosen, state.posterior
    k, p = len(chosen.which), given.Phi.shape[1]
    B = _curved(given, chosen, now.values, likelihood)
    own = jnp.where(chosen.there[None, :], given.Phi[:, chosen.which], 0)
    cross = dot_over_rows(given.Phi, B[:, None] * own)
    S = dot(B, jnp.square(given.Phi)) - jnp.sum(dot(cross, now.spread) * cross, axis=1)
    Q = dot(_pull(given, chosen, now.values, likelihood), given.Phi)
    # No more of a column is left than rounding of what was subtracted: it is as good as there.
    absent = jnp.ones(p, bool).at[chosen.which].min(~chosen.there)
    left = 64 * epsilon(S.dtype) * dot(B, jnp.square(given.Phi)) < S
    theta = jnp.square(Q) - S
    addable = absent & left & (theta > 0) & ~jnp.all(chosen.there)
    S, ratio = jnp.where(addable, S, 1), jnp.where(addable, jnp.square(Q) / S, 1)
    # A copy of what is there would gain as much as its precision estimated again, which is better.
    added = jnp.where(addable, _ADDED * (ratio - 1 - jnp.log(ratio)) / 2, 0)
    to_add = S / jnp.where(addable, ratio - 1, 1)
    # Of what is there, without itself: s = 1 / Sigma_ii - alpha, q = mean_i / Sigma_ii.
    alpha, variance = chosen.alpha, jnp.diagonal(now.spread)
    s = jnp.maximum(1 / variance - alpha, 0)
    q = now.mean / variance
    worth = jnp.square(q) - s

    def share(alpha: Array) -> Array:
        """Of the evidence, what depends on one precision."""
        return (jnp.log(alpha) - jnp.log(alpha + s) + jnp.square(q) / (alpha + s)) / 2

    useful = chosen.there & (worth > 0) & (s > 0)
    again = jnp.where(useful, jnp.square(s) / jnp.where(useful, worth, 1), 1)
    estimated = jnp.where(useful, share(again) - share(alpha), 0)
    several = jnp.sum(chosen.there) > 1
    deleted = jnp.where(chosen.there & several & (worth <= 0), -share(alpha), 0)
    gains = jnp.concatenate([added, estimated, deleted])
    return gains, jnp.concatenate([to_add, again, jnp.ones(k, S.dtype)])


def _changed(chosen: Chosen, change: Int[Array, ""], alpha: Float[Array, ""], p: int) -> Chosen:
    """With that change."""
    k = len(chosen.which)
    adds, deletes = change < p, change >= p + k
    place = jnp.where(adds, jnp.argmin(chosen.there).astype(jnp.int32), (change - p) % k)
    which = chosen.which.at[place].set(jnp.where(adds, change, chosen.which[place]))
    there = chosen.there.at[place].set(~deletes)
    return chosen._replace(which=which, there=there, alpha=chosen.alpha.at[place].set(alpha))


def init(given: Rows, most: int, max_steps: int, likelihood: Likelihood) -> State:
    """With the intercept alone, whose column is the last."""
    Phi, y, w = given
    p, none = Phi.shape[1], jnp.zeros((), jnp.int32)
    total = jnp.sum(w)
    total = jnp.where(total > 0, total, 1)
    mean = dot(w, y) / total
    variance = dot(w, jnp.square(y - mean)) / total
    # Of constant targets, as large as they are.
    variance = jnp.where(variance > 0, variance, jnp.where(mean == 0, 1, jnp.square(mean)))
    beta = 1 / (_NOISE * variance) if likelihood == "normal" else jnp.ones((), Phi.dtype)
    size = jnp.where(mean == 0, variance, jnp.square(mean))
    chosen = Chosen(
        which=jnp.full(most, p - 1, jnp.int32),
        there=jnp.arange(most) == 0,
        alpha=jnp.full(most, 1 / size if likelihood == "normal" else 1, Phi.dtype),
        beta=beta,
    )
    found = posterior(given, chosen, jnp.zeros(most, Phi.dtype), likelihood)
    history = jnp.full(max_steps + 1, jnp.nan, Phi.dtype).at[0].set(found.evidence)
    tried = jnp.zeros(p + 2 * most, bool)
    good = jnp.isfinite(found.evidence)
    status = jnp.where(good, RUNNING, NOT_FINITE).astype(jnp.int32)
    return State(chosen, found, tried, history, none, status)


def step(
    given: Rows,
    state: State,
    tolerance: Float[Array, ""],
    max_steps: int,
    likelihood: Likelihood,
) -> State:
    """The change that promises most; kept if it does not lower the evidence."""
    gains, alphas = _gains(given, state, likelihood)
    gains = jnp.where(state.tried, 0, jnp.nan_to_num(gains))
    change = jnp.argmax(gains).astype(jnp.int32)
    chosen = _changed(state.chosen, change, alphas[change], given.Phi.shape[1])
    same = chosen.which == state.chosen.which
    found = posterior(given, chosen, jnp.where(same, state.posterior.mean, 0), likelihood)
    if likelihood == "normal":  # the noise after each change, if that is no loss
        settled = 1 - chosen.alpha * jnp.diagonal(found.spread)
        settled = jnp.where(chosen.there, settled, 0)
        errors = dot(given.w, jnp.square(given.y - found.values))
        free = jnp.maximum(jnp.sum(given.w) - jnp.sum(settled), epsilon(errors.dtype))
        other = chosen._replace(
            beta=free / jnp.maximum(errors, float(jnp.finfo(errors.dtype).tiny))
        )
        quieter = posterior(given, other, found.mean, likelihood)
        better = quieter.evidence > found.evidence
        pick = functools.partial(jnp.where, better)
        chosen, found = jax.tree.map(pick, (other, quieter), (chosen, found))
    full = jnp.all(state.chosen.there)
    # A model that is cut off is not at its optimum, however near the precisions come to theirs.
    over = gains[change] <= jnp.where(full, _CUT_OFF * tolerance, tolerance)
    rise = found.evidence - state.posterior.evidence
    rises = ~over & (rise > 0)
    steps = state.steps + rises.astype(jnp.int32)
    # After a rise that is rounding what was rejected would be tried again for ever.
    tried = state.tried.at[change].set(True)
    taken = State(
        chosen, found, tried & (rise <= tolerance), state.history.at[steps].set(found.evidence),
        steps, state.status,
    )  # fmt: skip
    refused = state._replace(tried=tried)
    after = jax.tree.map(lambda a, b: jnp.where(rises, a, b), taken, refused)
    status = jnp.where(after.steps >= max_steps, EXHAUSTED, RUNNING)
    status = jnp.where(over, jnp.where(full, COMPLETED, CONVERGED), status)
    return after._replace(status=status.astype(jnp.int32))


@functools.partial(compiled, static_argnames=("most", "max_steps", "likelihood"))
def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    *,
    most: int,
    max_steps: int,
    likelihood: Likelihood,
) -> State:
    """Tipping and Faul 2003, Section 4, for one target.

    Each step makes the change that by their formulas raises the log evidence most: a column is
    added, its precision estimated again, or it is deleted; with the noise of regression after it.
    The formulas hold the mode of a classifier fixed, so the evidence itself decides whether it is
    kept, and never falls.

    Args:
        Phi: functions of the rows, shape `n p`; the last is the intercept's, of ones.
        y: targets, whose squares must be in range; of classes -1 and +1.
        w: row weights; 0 is as if absent.
        tolerance: it has converged when no change promises more, in nats; a model with as many
            functions as it may have ends at 100 times that.
        most: functions that the model may have (static).
        max_steps: cap on changes (static).
        likelihood: "normal" for real targets, "logistic" for classes (static).

    Returns:
        `State`, with the status `CONVERGED`, `COMPLETED` with as many functions as it may have,
        `EXHAUSTED` at the cap, or `NOT_FINITE`.
    """
    here = w > 0
    given = Rows(jnp.where(here[:, None], Phi, 0), jnp.where(here, y, 1), w)
    state = init(given, min(_FEW, most), max_steps, likelihood)
    # In a model with room for few functions a step takes a part of the time.
    for room in sorted({min(_FEW, most), most}):
        state = _with_room(state, room)
        state = jax.lax.while_loop(
            lambda state, last=room == most: (
                (state.status == RUNNING) & (last | ~jnp.all(state.chosen.there))
            ),
            lambda state: step(given, state, tolerance, max_steps, likelihood),
            state,
        )
    return state


def _with_room(state: State, k: int) -> State:
    """With places for `k` functions; those more are not in use."""
    more = k - len(state.chosen.which)
    chosen, now = state.chosen, state.posterior
    p = len(state.tried) - 2 * len(chosen.which)
    each = jnp.pad(state.tried[p:].reshape(2, -1), ((0, 0), (0, more)))
    return state._replace(
        chosen=chosen._replace(
            which=jnp.pad(chosen.which, (0, more), constant_values=p - 1),
            there=jnp.pad(chosen.there, (0, more)),
            alpha=jnp.pad(chosen.alpha, (0, more), constant_values=1),
        ),
        posterior=now._replace(
            mean=jnp.pad(now.mean, (0, more)),
            # As in places not in use, whose precision is 1.
            spread=jnp.pad(now.spread, (0, more))
            + jnp.diag((jnp.arange(k) >= k - more).astype(now.spread.dtype)),
        ),
        tried=jnp.concatenate([state.tried[:p], each.reshape(-1)]),
    )


@dataclasses.dataclass(frozen=True)
class RVM(Method):
    """The relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    Every coefficient has a normal prior of its own, whose precision is where the evidence is
    largest; most are infinite, and their prototypes vanish. The evidence takes the place of `C`,
    and cross-validation tunes the kernel alone.

    Args:
        max_prototypes: of a problem, that the machine may have.
        candidates: rows, at random, that may be prototypes; None for all.
        tolerance: of the log evidence, in nats; 100 times that of a machine that has as many
            prototypes as it may have.
        max_steps: cap on changes of the model.
        likelihood: "normal" for real targets, "logistic" for classes -1 and +1; "auto" for that of
            the task, and in a fit of one's own for "logistic" if there is a code.
    """

    name: ClassVar[str] = "rvm"
    title: ClassVar[str] = "relevance vector machine"
    has_C: ClassVar[bool] = False
    most_rows: ClassVar[int | None] = 1000

    max_prototypes: int = 100
    candidates: int | None = None
    tolerance: float = TOLERANCE
    max_steps: int = MAX_STEPS
    likelihood: Literal["auto", "normal", "logistic"] = "auto"

    @property
    def memory(self) -> Literal["all"]:
        """See `Method.memory`."""
        return "all"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        whole_number("max_prototypes", self.max_prototypes, 1, 10**6, "a million")
        whole_number("max_steps", self.max_steps, 1, 10**6, "a million")
        real("tolerance", self.tolerance, 0.0)
        if self.likelihood not in ("auto", "normal", "logistic"):
            raise ValueError(
                f"likelihood: expected 'auto', 'normal' or 'logistic', got {self.likelihood!r}"
            )
        if self.candidates is not None:
            whole_number("candidates", self.candidates, 1, 2**31 - 1, "the largest number")

    def settled(self, shape: Shape) -> "RVM":
        """See `Method.settled`."""
        most = shape.present
        count = most if self.candidates is None else min(self.candidates, most)
        likelihood = self.likelihood
        if likelihood == "auto":
            likelihood = "normal" if shape.classes is None else "logistic"
        most = min(self.max_prototypes, count)
        return dataclasses.replace(
            self, candidates=count, max_prototypes=most, likelihood=likelihood
        )

    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Rows, each once."""
        there = np.flatnonzero(rows.weights)
        first = np.unique(np.asarray(rows.X)[there], axis=0, return_index=True)[1]
        chosen = np.sort(there[first])
        assert self.candidates is not None
        if self.candidates < len(chosen):
            weights = np.zeros_like(rows.weights)
            weights[chosen] = rows.weights[chosen]
            drawn = choose_rows(
                key, "uniform", rows.X, self.candidates, rows.labels, weights, rows.n
            )
            chosen = np.asarray(drawn[0])
        # A copy of what is in the model promises nothing.
        return Points(rows_at(rows.X, padded(chosen, capacity(len(chosen)))), None)

    def kept(self, fitted: Any) -> Int[np.ndarray, " k"]:
        """The relevance vectors, or one that is not if there is none."""
        coefficients = np.asarray(fitted.expansion.coefficients)
        used = np.flatnonzero(np.any(coefficients.reshape(len(coefficients), -1) != 0, axis=1))
        return used if len(used) else np.zeros(1, int)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> RelevanceFit:
        """See `Method.fit`; `C` does not matter."""
        assert points is not None
        return _fit(self, kernel, points, X, y, weights, code)


@functools.partial(compiled, static_argnames="method")
def _fit(
    method: RVM,
    kernel: Kernel,
    points: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> RelevanceFit:
    targets, w = each_problem(y, weights, code, X.dtype)
    w = jnp.ones(len(X), X.dtype) if w is None else w
    columns = targets.reshape(len(X), -1)
    w = jnp.broadcast_to(w if w.ndim == 2 else w[:, None], columns.shape)
    inputs = present_rows(X, jnp.max(w, axis=1))
    Phi = kernel.cross_gram(inputs, points)
    Phi = jnp.concatenate([Phi, jnp.ones((len(X), 1), X.dtype)], axis=1)
    likelihood = method.likelihood
    if likelihood == "auto":
        likelihood = "normal" if code is None else "logistic"
    most = min(method.max_prototypes, len(points)) + 1  # and the intercept
    tolerance = jnp.asarray(method.tolerance, X.dtype)

    def one(of: tuple[Array, Array]) -> tuple[Array, ...]:
        target, seen = of
        # In units in which squares of the targets are in range; classes are of size one.
        target = jnp.where(seen > 0, target, 0)
        exponent = exponents(target[None])
        exponent = exponent if likelihood == "normal" else 0 * exponent
        target = times_power(target[None], -exponent)[0]
        last = solve(
            Phi, target, seen, tolerance, most=most, max_steps=method.max_steps,
            likelihood=likelihood,
        )  # fmt: skip
        chosen = last.chosen
        every = jnp.zeros(Phi.shape[1], X.dtype).at[chosen.which].add(last.posterior.mean)
        every = times_power(every[None], exponent)[0]
        noise = times_power(1 / chosen.beta[None], 2 * exponent)[0]
        # A density of the targets in their own units.
        nats = math.log(2) * jnp.sum(seen) * exponent[0].astype(X.dtype)
        return every, last.history - nats, last.steps, noise, last.status

    every, history, steps, noise, status = map_systems(one, (columns.T, w.T))
    outputs = targets.shape[1:]
    expansion = KernelExpansion(
        kernel, points, every[:, :-1].T.reshape(-1, *outputs), every[:, -1].reshape(outputs)
    )
    steps, noise = steps.reshape(outputs), noise.reshape(outputs)
    return RelevanceFit(expansion, history.reshape(*outputs, -1), steps, noise, jnp.max(status))
