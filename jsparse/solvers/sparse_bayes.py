"""Sparse Bayesian learning by the fast sequential algorithm (Tipping and Faul 2003)."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, dot_over_rows, epsilon
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .definite import cholesky, inverse_of_lower

Likelihood = Literal["normal", "logistic"]
TOLERANCE = 1e-3  # smallest gain of the log evidence, in nats
MAX_ITERATIONS = 1000
_DISCOUNT = 1 - 1e-3  # factor of the gain of an addition; see `_gains`
_NEWTON_STEPS = 30  # Newton steps towards the mode
_FULL = 100  # factor of the tolerance for a model with the largest number of functions
_FIRST_CAPACITY = 24  # number of places of the first model
_NOISE = 0.1  # initial share of the noise in the variance of the targets


class Problem(NamedTuple):
    """Rows of one target: `log p(y | a) = sum_i w_i log p(y_i | Phi_i a)`, `a` the coefficients."""

    Phi: Float[Array, "p n"]  # functions at the rows; the last is constant
    y: Float[Array, " n"]
    w: Float[Array, " n"]  # row weights
    # For regression, sums of the weighted products of functions, and of functions and targets. With
    # them a step takes `p k^2` operations instead of `n p k`. None for classes, whose curvatures
    # change in every step.
    gram: Float[Array, "p p"] | None
    cross: Float[Array, " p"] | None

    __repr__ = short_repr


class Model(NamedTuple):
    """The functions in the model, each with the precision of its prior, in `k` places."""

    columns: Int[Array, " k"]  # column of `Phi`; arbitrary in an empty place
    filled: Bool[Array, " k"]  # False for an empty place
    alpha: Float[Array, " k"]  # precision of the prior
    beta: Float[Array, ""]  # precision of the noise; 1 for classes

    __repr__ = short_repr


class Posterior(NamedTuple):
    """The posterior of the model's coefficients; Laplace's approximation for classes."""

    mean: Float[Array, " k"]  # mu; 0 in an empty place
    covariance: Float[Array, "k k"]  # Sigma
    values: Float[Array, " n"]  # values at the rows
    evidence: Float[Array, ""]  # log evidence

    __repr__ = short_repr


class State(NamedTuple):
    """A sequence of changes of the model, none of which lowers the evidence.

    There are `c = p + 2 k` changes. The first `p` add a column, the next `k` estimate the precision
    of a place again, and the last `k` empty a place.
    """

    model: Model
    posterior: Posterior
    tried: Bool[Array, " c"]  # changes rejected since the last step
    history: Float[Array, " s+1"]  # log evidence after 0, 1, .. steps, then NaN
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


@functools.partial(compiled, static_argnames=("max_functions", "max_iterations", "likelihood"))
def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    *,
    max_functions: int,
    max_iterations: int,
    likelihood: Likelihood,
) -> State:
    """Maximise the evidence for one target (Tipping and Faul 2003, Section 4).

    Each step adds a column, deletes a column, or estimates the precision of a column again. It
    makes the change whose gain of log evidence is the largest by the formulas of the paper. In
    regression a new estimate of the noise follows. For a classifier the formulas are approximate,
    because they hold the mode fixed. A change is therefore kept only if the evidence rises.

    Args:
        Phi: functions of the rows, shape `n p`. The last is the constant 1, for the intercept.
        y: targets whose squares are in range; for the logistic likelihood -1 and +1.
        w: row weights. Rows of weight 0 are ignored.
        tolerance: stop when no change promises a larger gain, in nats. A model with the largest
            number of functions stops at 100 times the tolerance.
        max_functions: limit of functions in the model, including the constant (static).
        max_iterations: limit of changes; the length of the history (static).
        likelihood: "normal" for real targets, "logistic" for classes (static).

    Returns:
        `State`. The status is `CONVERGED`, `COMPLETED` if it stops with the largest number of
        functions, `EXHAUSTED` at the limit of changes, or `NOT_FINITE`.

    Pure; works under `jit` and `vmap`.
    """
    present = w > 0
    Phi, y = jnp.where(present[:, None], Phi, 0), jnp.where(present, y, 1)
    gram = cross = None
    if likelihood == "normal":
        gram, cross = dot_over_rows(w[:, None] * Phi, Phi), dot(w * y, Phi)
    # A step reads few functions at all rows, which are neighbours in memory.
    problem = Problem(Phi.T, y, w, gram, cross)
    state = init(problem, min(_FIRST_CAPACITY, max_functions), max_iterations, likelihood)
    # A step takes far less time in a model with few places.
    for capacity in sorted({min(_FIRST_CAPACITY, max_functions), max_functions}):
        state = _with_places(state, capacity)
        state = jax.lax.while_loop(
            lambda state, last=capacity == max_functions: (
                (state.status == RUNNING) & (last | ~jnp.all(state.model.filled))
            ),
            lambda state: step(problem, state, tolerance, max_iterations, likelihood),
            state,
        )
    return state


def init(problem: Problem, places: int, max_iterations: int, likelihood: Likelihood) -> State:
    """Return the model that holds only the constant."""
    Phi, y, w = problem.Phi, problem.y, problem.w
    p, zero = len(Phi), jnp.zeros((), jnp.int32)
    total = jnp.sum(w)
    total = jnp.where(total > 0, total, 1)
    mean = dot(w, y) / total
    variance = dot(w, jnp.square(y - mean)) / total
    # For constant targets, use the variance of rounding errors.
    variance = jnp.maximum(variance, jnp.square(64 * epsilon(Phi.dtype) * mean))
    variance = jnp.where(variance > 0, variance, 1)
    beta = 1 / (_NOISE * variance) if likelihood == "normal" else jnp.ones((), Phi.dtype)
    # The variance of the intercept, `variance / total`, keeps the size positive if the mean is 0.
    size = jnp.maximum(jnp.square(mean), variance / total)
    model = Model(
        columns=jnp.full(places, p - 1, jnp.int32),
        filled=jnp.arange(places) == 0,
        alpha=jnp.full(places, 1 / size if likelihood == "normal" else 1, Phi.dtype),
        beta=beta,
    )
    first = posterior(problem, model, jnp.zeros(places, Phi.dtype), likelihood)
    history = jnp.full(max_iterations + 1, jnp.nan, Phi.dtype).at[0].set(first.evidence)
    tried = jnp.zeros(p + 2 * places, bool)
    status = jnp.where(jnp.isfinite(first.evidence), RUNNING, NOT_FINITE).astype(jnp.int32)
    return State(model, first, tried, history, zero, status)


def step(
    problem: Problem,
    state: State,
    tolerance: Float[Array, ""],
    max_iterations: int,
    likelihood: Likelihood,
) -> State:
    """Make the change with the largest predicted gain; keep it if the evidence rises."""
    gains, alphas = _gains(problem, state, likelihood)
    gains = jnp.where(state.tried, 0, jnp.nan_to_num(gains))
    change = jnp.argmax(gains).astype(jnp.int32)
    model = _changed(state.model, change, alphas[change], len(problem.Phi))
    same = model.columns == state.model.columns
    start_mean = jnp.where(same, state.posterior.mean, 0)
    after = posterior(problem, model, start_mean, likelihood)
    if likelihood == "normal":
        model, after = _with_noise_estimated(problem, model, after)
    full = jnp.all(state.model.filled)
    # A full model cannot reach the optimum of the evidence, so it stops at a larger gain.
    ends = gains[change] <= jnp.where(full, _FULL * tolerance, tolerance)
    rise = after.evidence - state.posterior.evidence
    rises = ~ends & (rise > 0)
    steps = state.steps + rises.astype(jnp.int32)
    # A rise within the tolerance may be rounding. If it cleared `tried`, the loop might never end.
    tried = state.tried.at[change].set(True)
    accepted = State(
        model, after, tried & (rise <= tolerance), state.history.at[steps].set(after.evidence),
        steps, state.status,
    )  # fmt: skip
    rejected = state._replace(tried=tried)
    next_state = jax.tree.map(lambda a, b: jnp.where(rises, a, b), accepted, rejected)
    status = jnp.where(next_state.steps >= max_iterations, EXHAUSTED, RUNNING)
    status = jnp.where(ends, jnp.where(full, COMPLETED, CONVERGED), status)
    return next_state._replace(status=status.astype(jnp.int32))


def posterior(
    problem: Problem, model: Model, start: Float[Array, " k"], likelihood: Likelihood
) -> Posterior:
    """Find the mode by Newton's method, which halves steps that lower the density.

    For regression the precision of the coefficients does not depend on them: one factor serves all
    steps, of which the second corrects the rounding of the first.
    """
    Phi = jnp.where(model.filled[:, None], problem.Phi[model.columns], 0)
    alpha = jnp.where(model.filled, model.alpha, 1)

    def density(mean: Array, values: Array) -> Array:
        log_likelihood = _log_likelihood(problem, model, values, likelihood)
        return log_likelihood - dot(alpha, jnp.square(mean)) / 2

    def precision_factor(gram: Array) -> tuple[Array, Array, Array]:
        """Return the inverse Cholesky factor of the precision, its scaled factor, and the scale."""
        scale = 1 / jnp.sqrt(alpha + jnp.diagonal(gram))
        noise = 4 * epsilon(Phi.dtype) * len(alpha)
        scaled = gram * scale[:, None] * scale[None, :]
        lower = cholesky(scaled + jnp.diag(alpha * jnp.square(scale) + noise))
        return inverse_of_lower(lower) * scale[None, :], lower, scale

    if problem.gram is None:

        def factor_at(values: Array) -> tuple[Array, Array, Array]:
            curvatures = _curvatures(problem, model, values, likelihood)
            return precision_factor(dot(curvatures[None, :] * Phi, Phi.T))

    else:
        both = model.filled[:, None] & model.filled[None, :]
        products = problem.gram[model.columns[:, None], model.columns[None, :]]
        one_factor = precision_factor(jnp.where(both, model.beta * products, 0))

        def factor_at(values: Array) -> tuple[Array, Array, Array]:
            return one_factor

    def newton(state: tuple[Array, ...]) -> tuple[Array, ...]:
        mean, values, value, t, count = state
        factor, _, _ = factor_at(values)
        slope = dot(Phi, _slopes(problem, model, values, likelihood)) - alpha * mean
        trial = mean + t * dot(dot(factor, slope), factor)
        trial_values = dot(trial, Phi)
        trial_value = density(trial, trial_values)
        better = trial_value >= value
        progressed = better & (trial_value - value > 1e-2 * TOLERANCE)
        t = jnp.where(better, 1, t / 2)
        running = (progressed | ~better) & (t > 1e-3)
        count = jnp.where(running, count + 1, _NEWTON_STEPS)  # this count ends the loop
        new, old = (trial, trial_values, trial_value), (mean, values, value)
        return *(jnp.where(better, a, b) for a, b in zip(new, old, strict=True)), t, count

    start = jnp.where(model.filled, start, 0)
    values = dot(start, Phi)
    initial = start, values, density(start, values), jnp.ones((), Phi.dtype), jnp.int32(0)
    mean, values, value, *_ = jax.lax.while_loop(
        lambda state: state[-1] < _NEWTON_STEPS, newton, initial
    )
    factor, lower, scale = factor_at(values)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(lower)) - jnp.log(scale))
    evidence = value + (jnp.sum(jnp.log(alpha)) - log_determinant) / 2
    return Posterior(mean, dot(factor.T, factor), values, evidence)


def _curvatures(
    problem: Problem, model: Model, values: Float[Array, " n"], likelihood: Likelihood
) -> Float[Array, " n"]:
    """Return minus the second derivative of each row's log likelihood, in the row's value."""
    if likelihood == "normal":
        return model.beta * problem.w
    p = jax.nn.sigmoid(values)
    return problem.w * p * (1 - p)


def _slopes(
    problem: Problem, model: Model, values: Float[Array, " n"], likelihood: Likelihood
) -> Float[Array, " n"]:
    """Return the derivative of each row's log likelihood, in the row's value."""
    if likelihood == "normal":
        return model.beta * problem.w * (problem.y - values)
    return problem.w * problem.y * jax.nn.sigmoid(-problem.y * values)


def _log_likelihood(
    problem: Problem, model: Model, values: Float[Array, " n"], likelihood: Likelihood
) -> Float[Array, ""]:
    if likelihood == "normal":
        errors = dot(problem.w, jnp.square(problem.y - values))
        total = jnp.sum(problem.w)
        return (total * jnp.log(model.beta / (2 * jnp.pi)) - model.beta * errors) / 2
    return dot(problem.w, jax.nn.log_sigmoid(problem.y * values))


def _with_noise_estimated(
    problem: Problem, model: Model, before: Posterior
) -> tuple[Model, Posterior]:
    """Return the model with the noise estimated again, unless that lowers the evidence."""
    well_determined = 1 - model.alpha * jnp.diagonal(before.covariance)
    well_determined = jnp.where(model.filled, well_determined, 0)
    errors = dot(problem.w, jnp.square(problem.y - before.values))
    degrees_of_freedom = jnp.maximum(
        jnp.sum(problem.w) - jnp.sum(well_determined), epsilon(errors.dtype)
    )
    beta = degrees_of_freedom / jnp.maximum(errors, float(jnp.finfo(errors.dtype).tiny))
    with_new_noise = model._replace(beta=beta)
    after = posterior(problem, with_new_noise, before.mean, "normal")
    better = after.evidence > before.evidence
    select = functools.partial(jnp.where, better)
    return jax.tree.map(select, (with_new_noise, after), (model, before))


def _gains(
    problem: Problem, state: State, likelihood: Likelihood
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Return each change's gain and the precision it sets (Tipping and Faul, eq. 32-37)."""
    model, current = state.model, state.posterior
    k, p = len(model.columns), len(problem.Phi)
    if problem.gram is None:
        B = _curvatures(problem, model, current.values, likelihood)
        in_model = jnp.where(model.filled[:, None], problem.Phi[model.columns], 0)
        cross = dot(B[None, :] * in_model, problem.Phi.T)
        squares = dot(jnp.square(problem.Phi), B)
        Q = dot(problem.Phi, _slopes(problem, model, current.values, likelihood))
    else:
        assert problem.cross is not None
        cross = jnp.where(model.filled[:, None], model.beta * problem.gram[model.columns], 0)
        squares = model.beta * jnp.diagonal(problem.gram)
        Q = model.beta * problem.cross - dot(current.mean, cross)
    S = squares - jnp.sum(dot(current.covariance, cross) * cross, axis=0)
    # If S of a column is only rounding, the columns in the model already span it.
    absent = jnp.ones(p, bool).at[model.columns].min(~model.filled)
    independent = 64 * epsilon(S.dtype) * squares < S
    theta = jnp.square(Q) - S
    addable = absent & independent & (theta > 0) & ~jnp.all(model.filled)
    S, ratio = jnp.where(addable, S, 1), jnp.where(addable, jnp.square(Q) / S, 1)
    # Adding a copy of a column in the model gains as much as estimating its precision again. The
    # discount prefers the estimate.
    added = jnp.where(addable, _DISCOUNT * (ratio - 1 - jnp.log(ratio)) / 2, 0)
    alpha_added = S / jnp.where(addable, ratio - 1, 1)
    # Remove a column from its own factors: s = 1 / Sigma_ii - alpha, q = mu_i / Sigma_ii.
    alpha, variance = model.alpha, jnp.diagonal(current.covariance)
    s = jnp.maximum(1 / variance - alpha, 0)
    q = current.mean / variance
    worth = jnp.square(q) - s

    def evidence_part(alpha: Array) -> Array:
        """Return the part of the evidence that depends on one precision."""
        return (jnp.log(alpha) - jnp.log(alpha + s) + jnp.square(q) / (alpha + s)) / 2

    useful = model.filled & (worth > 0) & (s > 0)
    estimate = jnp.where(useful, jnp.square(s) / jnp.where(useful, worth, 1), 1)
    estimated = jnp.where(useful, evidence_part(estimate) - evidence_part(alpha), 0)
    several = jnp.sum(model.filled) > 1
    deleted = jnp.where(model.filled & several & (worth <= 0), -evidence_part(alpha), 0)
    gains = jnp.concatenate([added, estimated, deleted])
    return gains, jnp.concatenate([alpha_added, estimate, jnp.ones(k, S.dtype)])


def _changed(model: Model, change: Int[Array, ""], alpha: Float[Array, ""], p: int) -> Model:
    """Return the model after one change; `State` explains the numbers of changes."""
    k = len(model.columns)
    adds, deletes = change < p, change >= p + k
    place = jnp.where(adds, jnp.argmin(model.filled).astype(jnp.int32), (change - p) % k)
    columns = model.columns.at[place].set(jnp.where(adds, change, model.columns[place]))
    filled = model.filled.at[place].set(~deletes)
    return model._replace(columns=columns, filled=filled, alpha=model.alpha.at[place].set(alpha))


def _with_places(state: State, k: int) -> State:
    """Return the state with `k` places; the new places are empty."""
    model, current = state.model, state.posterior
    added = k - len(model.columns)
    p = len(state.tried) - 2 * len(model.columns)
    tried_of_places = jnp.pad(state.tried[p:].reshape(2, -1), ((0, 0), (0, added)))
    # The precision of an empty place is 1.
    empty = jnp.diag((jnp.arange(k) >= k - added).astype(current.covariance.dtype))
    return state._replace(
        model=model._replace(
            columns=jnp.pad(model.columns, (0, added), constant_values=p - 1),
            filled=jnp.pad(model.filled, (0, added)),
            alpha=jnp.pad(model.alpha, (0, added), constant_values=1),
        ),
        posterior=current._replace(
            mean=jnp.pad(current.mean, (0, added)),
            covariance=jnp.pad(current.covariance, (0, added)) + empty,
        ),
        tried=jnp.concatenate([state.tried[:p], tried_of_places.reshape(-1)]),
    )
