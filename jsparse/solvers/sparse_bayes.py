"""Sparse Bayesian learning by the fast sequential algorithm (Tipping and Faul 2003)."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, epsilon
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .definite import inverse_of_lower

Likelihood = Literal["normal", "logistic"]
TOLERANCE = 1e-3  # smallest gain of the log evidence, in nats
MAX_ITERATIONS = 200
_DISCOUNT = 1 - 1e-3  # factor of the gain of an addition; see `_gains`
_NEWTON_STEPS = 30  # Newton steps towards the mode
# The most steps towards the mode before Newton's method, with the factor of a nearby model. Unlike
# a Newton step they factorise nothing.
_CHEAP_STEPS = 30
_SUM_ROUNDING = 16  # bound of the rounding error of a log density, in epsilons of its size
_NOISE = 0.1  # initial share of the noise in the variance of the targets
# Changes of the model in one step. With fewer a fit takes more steps; with more the curvatures of
# the expansion are out of date. Which optimum of the evidence a fit finds depends on the number.
_MOST_CHANGES = 64
_PATIENCE = 10  # the fit has converged once `State.tried` holds this many changes
# A rise of the evidence by more than this many tolerances clears `State.tried`. With 1, one fit to
# 2,400 rows took three times as long, as it tried the same changes again after every small rise.
_SMALL_RISE = 100
# Changes after which the covariance is factorised again, to remove rounding; also the number of
# rows of `Quadratic.recent`. In float32, 16 changes lose no more digits than 8 on 14 tables of
# classes; on a regression the largest relative error of a variance rises from 0.04 to 0.96.
_CHANGES_IN_BLOCK = {"normal": 8, "logistic": 16}
# A basis spans a function if the rest of the function is below this many epsilons of its length.
_SPANNED = 64


class Model(NamedTuple):
    """The functions in the model, with the precisions of their priors, in `k` array places."""

    columns: Int[Array, " k"]  # column of `Phi`; arbitrary in an empty place
    filled: Bool[Array, " k"]  # False for an empty place
    alpha: Float[Array, " k"]  # precision of the prior
    beta: Float[Array, ""]  # precision of the noise; 1 for classes

    __repr__ = short_repr


class Problem(NamedTuple):
    """Rows of one target: `log p(y | a) = sum_i w_i log p(y_i | Phi_i a)`, `a` the coefficients."""

    Phi: Float[Array, "p n"]  # functions at the rows; the last is constant
    y: Float[Array, " n"]
    w: Float[Array, " n"]  # row weights
    likelihood: Likelihood

    __repr__ = short_repr

    def log_likelihood(self, model: Model, values: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the log likelihood of the targets, given the values at the rows."""
        if self.likelihood == "normal":
            errors = dot(self.w, jnp.square(self.y - values))
            total = jnp.sum(self.w)
            return (total * jnp.log(model.beta / (2 * jnp.pi)) - model.beta * errors) / 2
        return dot(self.w, jax.nn.log_sigmoid(self.y * values))

    def slopes(self, model: Model, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the derivative of each row's log likelihood, in the row's value."""
        if self.likelihood == "normal":
            return model.beta * self.w * (self.y - values)
        return self.w * self.y * jax.nn.sigmoid(-self.y * values)

    def curvatures(self, model: Model, values: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return minus the second derivative of each row's log likelihood, in the row's value."""
        if self.likelihood == "normal":
            return model.beta * self.w
        p = jax.nn.sigmoid(values)
        return self.w * p * (1 - p)


class Iterate(NamedTuple):
    """Coefficients on the way to the mode, with the step that follows from some factor."""

    mean: Float[Array, " k"]
    values: Float[Array, " n"]  # values at the rows
    value: Float[Array, ""]  # log density of the posterior, up to a constant
    step: Float[Array, " k"]
    gain: Float[Array, ""]  # predicted rise of the log density by the step

    __repr__ = short_repr


class Mode(NamedTuple):
    """An iterate of Newton's method for the mode of the posterior, with its Newton step."""

    mean: Float[Array, " k"]
    values: Float[Array, " n"]  # values at the rows
    value: Float[Array, ""]  # log density of the posterior, up to a constant
    factor: Float[Array, "k k"]  # F with F'F the inverse of the precision
    log_determinant: Float[Array, ""]  # of the precision
    step: Float[Array, " k"]
    gain: Float[Array, ""]  # predicted rise of the log density by the step

    __repr__ = short_repr


class Posterior(NamedTuple):
    """The posterior of the model's coefficients; Laplace's approximation for classes."""

    mean: Float[Array, " k"]  # mu; 0 in an empty place
    factor: Float[Array, "k k"]  # F with F'F the covariance, which is 1 in an empty place
    values: Float[Array, " n"]  # values at the rows
    evidence: Float[Array, ""]  # log evidence

    __repr__ = short_repr


class Quadratic(NamedTuple):
    """A model whose log likelihood is quadratic: the expansion about the mode of another model.

    For regression the log likelihood is quadratic if the noise is fixed. Each function is
    multiplied by `root`. It is stored as coordinates in an orthonormal basis: inner products of
    functions would lose half of the digits. The basis has `b` vectors and spans the functions of
    the model.
    """

    root: Float[Array, " n"]  # square root of the log likelihood's curvature at each row
    squares: Float[Array, " p"]  # squared norm of each function times `root`
    model: Model
    mean: Float[Array, " k"]  # of the posterior; 0 in an empty place
    # F with F'F the posterior covariance; in an empty place the covariance is 1.
    factor: Float[Array, "k k"]
    # The terms S and Q of Tipping and Faul, eq. 24-25. The first is the part of each function's
    # square that the model leaves unexplained, given the prior.
    unexplained: Float[Array, " p"]
    slopes: Float[Array, " p"]  # derivative of the log likelihood along each function, at the mean
    basis: Float[Array, "b n"]  # orthonormal, but for rows of 0
    in_model: Float[Array, "b k"]  # coordinates of the model's functions; 0 in an empty place
    coordinates: Float[Array, "b p"]  # of all functions; 0 along the vectors of the current block
    recent: Float[Array, "r p"]  # of all functions, along the basis vectors of the current block
    first_recent: Int[Array, ""]  # index of the first of these basis vectors
    changes: Int[Array, ""]  # number of changes since the expansion

    __repr__ = short_repr

    def products(self, vectors: Float[Array, "*v b"]) -> Float[Array, "*v p"]:
        """Return the inner products of every function with vectors given by coordinates."""
        recent = jax.lax.dynamic_slice_in_dim(vectors, self.first_recent, len(self.recent), -1)
        return dot(vectors, self.coordinates) + dot(recent, self.recent)

    def coordinates_of(self, number: Int[Array, ""]) -> Float[Array, " b"]:
        """Return the coordinates of one function."""
        older, recent = self.coordinates[:, number], self.recent[:, number]
        return jax.lax.dynamic_update_slice_in_dim(older, recent, self.first_recent, 0)

    def with_recent_merged(self) -> "Quadratic":
        """Copy `recent` into `coordinates`, and clear it for the next block of changes."""
        coordinates = jax.lax.dynamic_update_slice_in_dim(
            self.coordinates, self.recent, self.first_recent, 0
        )
        none, first = jnp.zeros_like(self.recent), len(self.mean) + self.changes
        return self._replace(coordinates=coordinates, recent=none, first_recent=first)


class Tolerance(NamedTuple):
    """The gain of the log evidence, in nats, that a change must exceed."""

    usual: Float[Array, ""]  # `step` also judges rises of the evidence by it
    when_full: Float[Array, ""]  # for a model with the largest number of functions

    __repr__ = short_repr


class Change(NamedTuple):
    """The change of a model that promises the largest gain."""

    number: Int[Array, ""]  # index of the change, as numbered in `State`
    alpha: Float[Array, ""]  # the precision that it sets
    gain: Float[Array, ""]  # of log evidence; 0 if it does not exceed the tolerance

    __repr__ = short_repr


class State(NamedTuple):
    """The model after some steps, each of several changes. No step lowers the evidence.

    There are `c = p + 2 k` possible changes. The first `p` add a column, the next `k` estimate the
    precision of a place again, and the last `k` empty a place.
    """

    model: Model
    posterior: Posterior
    # The expansion about the mode, for the normal likelihood. None for the logistic one, whose
    # curvatures change with the mode, so that each step computes its expansion anew.
    expansion: Quadratic | None
    most_changes: Int[Array, ""]  # limit of the changes of the next step
    # Changes not to try again: each single change that did not raise the evidence by more than the
    # tolerance, since the last step that raised it by more than 100 tolerances (`usual`).
    tried: Bool[Array, " c"]
    history: Float[Array, " s+1"]  # log evidence after 0, 1, .. steps, then NaN
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


@functools.partial(compiled, static_argnames=("max_functions", "max_iterations", "likelihood"))
def solve(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    tolerance: Tolerance,
    *,
    max_functions: int,
    max_iterations: int,
    likelihood: Likelihood,
) -> State:
    """Maximise the evidence for one target (Tipping and Faul 2003, Section 4).

    A change adds a column, deletes a column, or estimates the precision of a column again. The
    paper's formulas give its gain of log evidence, if the log likelihood is quadratic and the noise
    is known. A step expands the log likelihood about the mode to second order and makes up to 64
    changes, each with the largest gain. Then it finds the new mode, and for regression the noise.

    A step that does not raise the evidence is taken back, and the next step makes a quarter of its
    changes. A single change that is taken back is not tried again before a step has raised the
    evidence by more than 100 times the tolerance; after ten such changes the fit has converged. The
    evidence has several optima, and the fit ends at one of them.

    Args:
        Phi: functions of the rows, shape `n p`. The last is the constant 1, for the intercept.
        y: targets whose squares are in range; for the logistic likelihood -1 and +1.
        w: row weights. Rows of weight 0 are ignored.
        tolerance: stop when no change promises a larger gain, or ten have failed.
        max_functions: limit of functions in the model, including the constant (static).
        max_iterations: limit of steps; the length of the history (static).
        likelihood: "normal" for real targets, "logistic" for classes (static).

    Returns:
        `State`. The status is `CONVERGED`, `COMPLETED` if it stops with the largest number of
        functions, `EXHAUSTED` at the limit of steps, or `NOT_FINITE`.

    Pure; works under `jit` and `vmap`.
    """
    present = w > 0
    Phi, y = jnp.where(present[:, None], Phi, 0), jnp.where(present, y, 1)
    # A step reads few functions at all rows, which are neighbours in memory.
    problem = Problem(Phi.T, y, w, likelihood)
    return jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(problem, state, tolerance, max_iterations),
        init(problem, max_functions, max_iterations),
    )


def init(problem: Problem, places: int, max_iterations: int) -> State:
    """Return the first state: a model of only the constant, with room for `places` functions."""
    Phi, y, w, likelihood = problem
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
    weighted = jnp.sqrt(problem.curvatures(model, jnp.zeros_like(y)))[None, :] * Phi[model.columns]
    in_model = jnp.where(model.filled, weighted.T, 0)
    first = posterior(problem, model, jnp.zeros(places, Phi.dtype), in_model)
    history = jnp.full(max_iterations + 1, jnp.nan, Phi.dtype).at[0].set(first.evidence)
    tried = jnp.zeros(p + 2 * places, bool)
    status = jnp.where(jnp.isfinite(first.evidence), RUNNING, NOT_FINITE).astype(jnp.int32)
    expansion = _expand(problem, model, first) if likelihood == "normal" else None
    return State(model, first, expansion, zero + _MOST_CHANGES, tried, history, zero, status)


def step(problem: Problem, state: State, tolerance: Tolerance, max_iterations: int) -> State:
    """Make several changes of the largest predicted gains; keep them if the evidence rises."""
    is_normal = problem.likelihood == "normal"
    changed, first = _changes(problem, state, tolerance)
    model, in_model = changed.model, changed.in_model
    after = posterior(problem, model, changed.mean, in_model, changed.factor)
    if is_normal:
        model, after = _with_noise_estimated(problem, model, after, in_model)
    expansion = _expand_by_rotation(problem, model, after, changed) if is_normal else None
    ends = (changed.changes == 0) | (jnp.sum(state.tried) >= _PATIENCE)
    rise = after.evidence - state.posterior.evidence
    rises = ~ends & (rise > 0)
    steps = state.steps + rises.astype(jnp.int32)
    tried = state.tried.at[first.number].set(True)
    # A rise within the tolerance may be rounding. If its change were tried again, the loop might
    # never end.
    tried_if_accepted = jnp.where(rise <= tolerance.usual, tried, state.tried)
    is_small = rise <= _SMALL_RISE * tolerance.usual  # then most changes tried would fail again
    accepted = state._replace(
        model=model,
        posterior=after,
        expansion=expansion,
        most_changes=jnp.minimum(2 * state.most_changes, _MOST_CHANGES),
        tried=tried_if_accepted & is_small,
        history=state.history.at[steps].set(after.evidence),
        steps=steps,
    )
    rejected = state._replace(
        most_changes=jnp.maximum(changed.changes // 4, 1),
        tried=jnp.where(changed.changes > 1, state.tried, tried),
    )
    next_state = jax.tree.map(lambda a, b: jnp.where(rises, a, b), accepted, rejected)
    status = jnp.where(next_state.steps >= max_iterations, EXHAUSTED, RUNNING)
    full = _is_full(state.model, len(problem.Phi))
    status = jnp.where(ends, jnp.where(full, COMPLETED, CONVERGED), status)
    return next_state._replace(status=status.astype(jnp.int32))


def _expand(problem: Problem, model: Model, current: Posterior) -> Quadratic:
    """Expand the log likelihood about the mode to second order, with a basis of the model."""
    root = jnp.sqrt(problem.curvatures(model, current.values))
    # Empty places keep their functions, as LAPACK is slower for columns of 0. Their vectors in the
    # basis are not used.
    basis, in_model = jnp.linalg.qr((root[None, :] * problem.Phi[model.columns]).T)
    in_model = jnp.where(model.filled, in_model, 0)
    coordinates = dot(basis.T * root[None, :], problem.Phi.T)
    squares = jnp.sum(jnp.square(root[None, :] * problem.Phi), axis=1)
    return _new_quadratic(problem, model, current, root, squares, basis.T, in_model, coordinates)


def _expand_by_rotation(
    problem: Problem, model: Model, current: Posterior, changed: Quadratic
) -> Quadratic:
    """Expand about the mode after a step, for the normal likelihood: only the noise has changed.

    The old basis and one vector for each added function span the functions of `changed`, the model
    after the changes of the step. A rotation of these vectors gives a basis of the model alone, and
    the coordinates of all functions in it. Unlike `_expand`, this needs no product of the basis
    with all functions.
    """
    root_ratio = jnp.sqrt(model.beta / changed.model.beta)
    used = jnp.any(changed.basis != 0, axis=1)
    # The used vectors and filled places come first, so that the first vectors of the QR
    # factorisation span the model's functions.
    vectors, places = (jnp.argsort(~flags, stable=True) for flags in (used, model.filled))
    rotation, triangle = jnp.linalg.qr(changed.in_model[vectors][:, places])
    spanning = used[vectors][: len(places)] & model.filled[places]
    rotation = jnp.where(spanning, jnp.zeros_like(rotation).at[vectors].set(rotation), 0).T
    in_model = jnp.where(spanning[:, None] & model.filled[None, places], triangle, 0)
    in_model = root_ratio * jnp.zeros_like(in_model).at[:, places].set(in_model)
    basis, coordinates = dot(rotation, changed.basis), dot(rotation, changed.coordinates)
    coordinates = root_ratio * coordinates
    root, squares = root_ratio * changed.root, jnp.square(root_ratio) * changed.squares
    return _new_quadratic(problem, model, current, root, squares, basis, in_model, coordinates)


def _new_quadratic(
    problem: Problem,
    model: Model,
    current: Posterior,
    root: Float[Array, " n"],
    squares: Float[Array, " p"],
    basis: Float[Array, "v n"],
    in_model: Float[Array, "v k"],
    coordinates: Float[Array, "v p"],
) -> Quadratic:
    """Return a `Quadratic` at its mode, with room for a basis vector for every change of a step."""
    k, zero = len(model.columns), jnp.zeros((), jnp.int32)
    # Every change may add a basis vector, and the last block may be incomplete.
    block = _CHANGES_IN_BLOCK[problem.likelihood]
    unused = [(0, k - len(basis) + _MOST_CHANGES + block), (0, 0)]
    basis, in_model, coordinates = (jnp.pad(a, unused) for a in (basis, in_model, coordinates))
    recent = jnp.zeros((block, len(squares)), basis.dtype)
    slopes = dot(problem.Phi, problem.slopes(model, current.values))
    start = Quadratic(
        root, squares, model, current.mean, current.factor, squares, slopes, basis, in_model,
        coordinates, recent, zero + k, zero,
    )  # fmt: skip
    return _at_mode(_explained(start))


def _changes(problem: Problem, state: State, tolerance: Tolerance) -> tuple[Quadratic, Change]:
    """Change the model up to `most_changes` times, each time by the change with the largest gain.

    The log likelihood stays at its quadratic expansion about the mode. Returns the changed model,
    and the first change.
    """
    Phi, start = problem.Phi, state.expansion
    if start is None:
        start = _expand(problem, state.model, state.posterior)

    def best_change(so_far: Quadratic) -> Change:
        gains, alphas = _gains(so_far)
        gains = jnp.where(state.tried, 0, jnp.nan_to_num(gains))
        best = jnp.argmax(gains).astype(jnp.int32)
        is_full = _is_full(so_far.model, len(Phi))
        least = jnp.where(is_full, tolerance.when_full, tolerance.usual)
        return Change(best, alphas[best], jnp.where(gains[best] > least, gains[best], 0))

    def change_once(so_far: tuple[Quadratic, Change]) -> tuple[Quadratic, Change]:
        """Apply the change to the model; return the changed model and its best further change."""
        after = _at_mode(_after_change(*so_far, Phi))
        return after, best_change(after)

    def goes_on(so_far: tuple[Quadratic, Change]) -> Array:
        return (so_far[0].changes < state.most_changes) & (so_far[1].gain > 0)

    def change_often(so_far: tuple[Quadratic, Change]) -> tuple[Quadratic, Change]:
        """Apply a block of changes; then factorise again, to remove rounding."""
        last = so_far[0].changes + len(start.recent)
        # XLA would copy the table of all coordinates at every change, since it is read after it has
        # changed. So the inner loop writes to the small table `recent`.
        after, _ = jax.lax.while_loop(
            lambda so_far: goes_on(so_far) & (so_far[0].changes < last), change_once, so_far
        )
        after = _at_mode(_factorised(after.with_recent_merged()))
        return after, best_change(after)

    first = best_change(start)
    changed, _ = jax.lax.while_loop(goes_on, change_often, (start, first))
    return changed, first


def _after_change(before: Quadratic, change: Change, Phi: Float[Array, "p n"]) -> Quadratic:
    """Return the model after one change, with the posterior's covariance, not yet its mean.

    A change alters the inverse of the covariance by one product of a vector with itself. So it
    takes some products of vectors with matrices, but no factorisation.
    """
    model, place = _changed(before.model, change, len(Phi))
    F, G, in_place = before.factor, before.in_model, before.factor[:, place]
    vector = len(before.mean) + before.changes  # the basis vector that an added function may need

    def added() -> tuple[Array, ...]:
        """Return the terms of the update if the change adds a function."""
        function = before.root * Phi[change.number]
        first = before.coordinates_of(change.number)
        remainder = function - dot(first, before.basis)
        second = dot(before.basis, remainder)  # once more, as `remainder` may be far smaller
        remainder = remainder - dot(second, before.basis)
        size = jnp.linalg.norm(remainder)
        # If the basis spans the function, the remainder is rounding, not orthogonal to the basis.
        spanned = size <= _SPANNED * epsilon(remainder.dtype) * jnp.linalg.norm(function)
        size = jnp.where(spanned, 0, size)
        new_vector = jnp.where(spanned, 0, remainder / jnp.where(spanned, 1, size))
        products = dot(new_vector * before.root, Phi.T)
        in_basis = (first + second).at[vector].set(size)
        # The model's best approximation of the function, and the unexplained part. The latter is a
        # sum of squares, since rounding may exceed a small difference of squares.
        fit = dot(dot(F, dot(in_basis, G)), F)
        rest = in_basis - dot(G, fit)
        old_alpha = jnp.where(before.model.filled, before.model.alpha, 0)
        unexplained = dot(rest, rest) + dot(old_alpha, jnp.square(fit))
        scale = 1 / jnp.sqrt(change.alpha + unexplained)
        sign = -jnp.ones_like(scale)
        return -scale * fit, scale, scale * rest, sign, in_basis, new_vector, products

    def not_added() -> tuple[Array, ...]:
        """Return the terms of the update if the change deletes a function or sets its precision."""
        variance = dot(in_place, in_place)
        covariances = dot(in_place, F)
        # Factor of the variance; a deletion makes it 0, as an infinite precision would.
        factor = 1 / (1 + (change.alpha - before.model.alpha[place]) * variance)
        factor = jnp.where(model.filled[place], jnp.maximum(factor, 0), 0)
        row = -(1 - jnp.sqrt(factor)) / variance * covariances
        # An empty place has the variance 1.
        length = jnp.where(model.filled[place], jnp.sqrt(factor), 1 / jnp.sqrt(variance))
        direction = jnp.sqrt(jnp.abs(1 - factor) / variance) * dot(G, covariances)
        in_basis = jnp.where(model.filled[place], G[:, place], 0)
        no_vector, no_products = jnp.zeros_like(before.basis[0]), jnp.zeros_like(Phi[:, 0])
        return row, length, direction, jnp.sign(1 - factor), in_basis, no_vector, no_products

    # The branches return only vectors, as XLA would copy a matrix. The unexplained part of each
    # function changes by `sign` times the square of its product with `direction`, a vector given by
    # coordinates in the basis.
    row, length, direction, sign, in_basis, new_vector, products = jax.lax.cond(
        change.number < len(Phi), added, not_added
    )
    # The row of `recent` was 0 so far, and stays 0 unless a function is added.
    recent = before.recent.at[vector - before.first_recent].set(products)
    explained, along_place = before._replace(recent=recent).products(
        jnp.stack([direction, G[:, place]])
    )
    mean = jnp.where(model.filled[place], 0, before.mean[place])
    # The factor's column at `place` is scaled; adding `row` to it would lose digits.
    return before._replace(
        model=model,
        mean=before.mean.at[place].add(-mean),
        factor=(F + in_place[:, None] * row[None]).at[:, place].set(length * in_place),
        unexplained=before.unexplained + sign * jnp.square(explained),
        slopes=before.slopes + mean * along_place,
        basis=before.basis.at[vector].set(new_vector),
        in_model=G.at[:, place].set(in_basis),
        recent=recent,
        changes=before.changes + 1,
    )


def _factorised(current: Quadratic) -> Quadratic:
    """Return the model with `factor` and `unexplained` computed from its other fields."""
    factor, _ = _covariance_factor(current.model, current.in_model)
    return _explained(current._replace(factor=factor))


def _explained(current: Quadratic) -> Quadratic:
    """Return the model with `unexplained` computed from its other fields."""
    explained = current.products(dot(current.factor, current.in_model.T))
    return current._replace(unexplained=current.squares - jnp.sum(jnp.square(explained), axis=0))


def _at_mode(start: Quadratic) -> Quadratic:
    """Return the model with its mean moved to the mode: one Newton step of a quadratic density."""
    model, F = start.model, start.factor
    alpha = jnp.where(model.filled, model.alpha, 1)
    slope = jnp.where(model.filled, start.slopes[model.columns] - alpha * start.mean, 0)
    step = dot(dot(F, slope), F)
    change = start.products(dot(start.in_model, step))
    mean = jnp.where(model.filled, start.mean + step, 0)
    return start._replace(mean=mean, slopes=start.slopes - change)


def _covariance_factor(
    model: Model, functions: Float[Array, "n k"]
) -> tuple[Float[Array, "k k"], Float[Array, ""]]:
    """Return `F` with `F' F` the posterior covariance, and the log determinant of its inverse.

    `functions` are the model's functions times the root of the curvatures, or their coordinates.
    They are 0 in empty places, where the covariance is 1.
    """
    alpha = jnp.where(model.filled, model.alpha, 1)
    # LAPACK searches a column for its last nonzero entry. With 0 in a third of the places, the
    # factorisation would take two and a half times as long (measured). So empty places have a
    # number so small that it changes no digit, but whose square does not underflow.
    small = float(jnp.finfo(functions.dtype).tiny) ** 0.4
    functions = jnp.where(model.filled, functions, small)
    scale = 1 / jnp.sqrt(alpha + jnp.sum(jnp.square(functions), axis=0))
    stacked = jnp.concatenate([functions, jnp.diag(jnp.sqrt(alpha))]) * scale[None, :]
    triangle = jnp.linalg.qr(stacked, mode="r")
    log_determinant = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(triangle))) - jnp.log(scale))
    return inverse_of_lower(triangle.T) * scale[None, :], log_determinant


def posterior(
    problem: Problem,
    model: Model,
    start: Float[Array, " k"],
    in_model: Float[Array, "b k"],
    nearby_factor: Float[Array, "k k"] | None = None,
) -> Posterior:
    """Find the mode by Newton's method from the coefficients `start`, and return the posterior.

    Steps that lower the density are halved. For classes, first come cheap steps, with
    `nearby_factor` in place of the factor of the covariance (`Quadratic.factor`), as long as they
    raise the density, or change it by rounding and predict smaller and smaller rises. Newton's
    method then mostly needs only the factorisation of the covariance at the mode.

    For regression the precision of the coefficients does not depend on them: one factor serves all
    steps, of which the second corrects the rounding of the first. The factor is computed from
    `in_model`, the coordinates of the model's functions (`Quadratic.in_model`), as this takes far
    fewer operations than their values at the rows. For classes `in_model` is not used.
    """
    Phi = jnp.where(model.filled[:, None], problem.Phi[model.columns], 0)
    alpha = jnp.where(model.filled, model.alpha, 1)

    def density(mean: Array, values: Array) -> Array:
        return problem.log_likelihood(model, values) - dot(alpha, jnp.square(mean)) / 2

    def rounding_of(value: Array) -> Array:
        return epsilon(Phi.dtype) * jnp.abs(value)

    def matters(gain: Array, value: Array) -> Array:
        """Return whether a step moves the mean by more than a negligible part of its deviation."""
        return gain > epsilon(Phi.dtype) ** 0.5 * rounding_of(value)

    constant = _covariance_factor(model, in_model) if problem.likelihood == "normal" else None

    def factor_at(values: Array) -> tuple[Array, Array]:
        if constant is not None:
            return constant
        root = jnp.sqrt(problem.curvatures(model, values))
        return _covariance_factor(model, (root[None, :] * Phi).T)

    def with_step(mean: Array, values: Array, value: Array, factor: Array) -> Iterate:
        """Return the iterate at `mean`, whose log density is `value`, with its step by `factor`."""
        slope = dot(Phi, problem.slopes(model, values)) - alpha * mean
        half = dot(factor, slope)
        gain = dot(half, half) / 2  # of a whole step, if the density were quadratic
        return Iterate(mean, values, value, dot(half, factor), gain)

    def at(mean: Array, values: Array, value: Array) -> Mode:
        """Return the iterate at `mean`, whose log density is `value`, with its Newton step."""
        factor, log_determinant = factor_at(values)
        *_, step, gain = with_step(mean, values, value, factor)
        return Mode(mean, values, value, factor, log_determinant, step, gain)

    def newton(state: tuple[Mode, Array, Array]) -> tuple[Mode, Array, Array]:
        """Make the step times `t` if it does not lower the density; else halve `t`."""
        mode, t, count = state
        mean = mode.mean + t * mode.step
        values = dot(mean, Phi)
        value = density(mean, values)
        better = value >= mode.value
        mode = jax.lax.cond(better, at, lambda *_: mode, mean, values, value)
        return mode, jnp.where(better, 1, t / 2), count + 1

    def goes_on(state: tuple[Mode, Array, Array]) -> Array:
        mode, t, count = state
        resolved = jnp.maximum(1e-9 * TOLERANCE, rounding_of(mode.value))
        return (count < _NEWTON_STEPS) & (t > 1e-3) & (mode.gain > resolved)

    start = jnp.where(model.filled, start, 0)
    values = dot(start, Phi)
    value = density(start, values)
    if constant is None and nearby_factor is not None:

        def cheap_step(state: tuple[Iterate, Array]) -> tuple[Iterate, Array]:
            """Make the step if the density rises; also return the number of steps left.

            A change within the rounding of the density counts as a rise if the predicted rise of
            the next step is smaller.
            """
            before, left = state
            mean = jnp.where(model.filled, before.mean + before.step, 0)
            values = dot(mean, Phi)
            after = with_step(mean, values, density(mean, values), nearby_factor)
            rise, rounding = after.value - before.value, _SUM_ROUNDING * rounding_of(before.value)
            rises = (rise > rounding) | ((rise > -rounding) & (after.gain < before.gain))
            return jax.tree.map(
                functools.partial(jnp.where, rises), (after, left - 1), (before, 0 * left)
            )

        cheap, _ = jax.lax.while_loop(
            lambda state: (state[1] > 0) & matters(state[0].gain, state[0].value),
            cheap_step,
            (with_step(start, values, value, nearby_factor), jnp.int32(_CHEAP_STEPS)),
        )
        start, values, value = cheap.mean, cheap.values, cheap.value
    first = at(start, values, value), jnp.ones((), Phi.dtype), jnp.int32(0)
    mode, _, count = jax.lax.while_loop(goes_on, newton, first)
    if constant is None and nearby_factor is not None:
        # Newton's method stops within the rounding of the density. If the cheap steps ended there
        # too, one Newton step gains the other digits of the mean and of its covariance.
        mean = jnp.where(model.filled, mode.mean + mode.step, 0)
        values = dot(mean, Phi)
        refine = (count == 0) & matters(mode.gain, mode.value)
        mode = jax.lax.cond(refine, at, lambda *_: mode, mean, values, density(mean, values))
    mean, values, value, factor, log_determinant, *_ = mode
    mean = jnp.where(model.filled, mean, 0)  # rounding
    evidence = value + (jnp.sum(jnp.log(alpha)) - log_determinant) / 2
    return Posterior(mean, factor, values, evidence)


def _with_noise_estimated(
    problem: Problem, model: Model, before: Posterior, in_model: Float[Array, "b k"]
) -> tuple[Model, Posterior]:
    """Estimate the noise again; return the model and posterior with the larger evidence.

    `in_model` is as for `posterior`, with the noise of `model`.
    """
    well_determined = 1 - model.alpha * jnp.sum(jnp.square(before.factor), axis=0)
    well_determined = jnp.where(model.filled, well_determined, 0)
    errors = dot(problem.w, jnp.square(problem.y - before.values))
    degrees_of_freedom = jnp.maximum(
        jnp.sum(problem.w) - jnp.sum(well_determined), epsilon(errors.dtype)
    )
    beta = degrees_of_freedom / jnp.maximum(errors, float(jnp.finfo(errors.dtype).tiny))
    with_new_noise = model._replace(beta=beta)
    after = posterior(problem, with_new_noise, before.mean, jnp.sqrt(beta / model.beta) * in_model)
    better = after.evidence > before.evidence
    select = functools.partial(jnp.where, better)
    return jax.tree.map(select, (with_new_noise, after), (model, before))


def _gains(current: Quadratic) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Return each change's gain and the precision it sets (Tipping and Faul, eq. 32-37)."""
    model, S, Q = current.model, current.unexplained, current.slopes
    k, p = len(model.columns), len(S)
    # If S of a column is only rounding, the columns in the model already span it.
    absent = jnp.ones(p, bool).at[model.columns].min(~model.filled)
    independent = 64 * epsilon(S.dtype) * current.squares < S
    theta = jnp.square(Q) - S
    constant = jnp.arange(p) == p - 1  # it does not count as a prototype
    room = ~jnp.all(model.filled) & (constant | ~_is_full(model, p))
    addable = absent & independent & (theta > 0) & room
    S, theta = jnp.where(addable, S, 1), jnp.where(addable, theta, 1)
    alpha_added = jnp.square(S) / theta
    # Adding a copy of a column in the model gains as much as estimating its precision again. The
    # discount prefers the estimate.
    added = jnp.where(addable, _DISCOUNT * _evidence_part(alpha_added, S, Q), 0)
    # Without the column's own contribution: s = 1 / Sigma_ii - alpha, q = mu_i / Sigma_ii.
    alpha = model.alpha
    variance = jnp.sum(jnp.square(current.factor), axis=0)
    s = jnp.maximum(1 / variance - alpha, 0)
    q = current.mean / variance
    theta_in_model = jnp.square(q) - s
    useful = model.filled & (theta_in_model > 0) & (s > 0)
    estimate = jnp.where(useful, jnp.square(s) / jnp.where(useful, theta_in_model, 1), 1)
    before = _evidence_part(alpha, s, q)
    estimated = jnp.where(useful, _evidence_part(estimate, s, q) - before, 0)
    several = jnp.sum(model.filled) > 1
    deleted = jnp.where(model.filled & several & (theta_in_model <= 0), -before, 0)
    gains = jnp.concatenate([added, estimated, deleted])
    return gains, jnp.concatenate([alpha_added, estimate, jnp.ones(k, S.dtype)])


def _evidence_part(
    alpha: Float[Array, " i"], s: Float[Array, " i"], q: Float[Array, " i"]
) -> Float[Array, " i"]:
    """Return the terms of the log evidence that contain `alpha` (Tipping and Faul, eq. 20)."""
    return (jnp.square(q) / (alpha + s) - jnp.log1p(s / alpha)) / 2


def _is_full(model: Model, p: int) -> Bool[Array, ""]:
    """Return whether only the constant, the last of `p` columns, may still be added."""
    count = jnp.sum(model.filled & (model.columns < p - 1), dtype=jnp.int32)
    return count >= len(model.columns) - 1


def _changed(model: Model, change: Change, p: int) -> tuple[Model, Int[Array, ""]]:
    """Return the model after one change, and the place in the arrays that it changed.

    `State` explains the numbers of changes.
    """
    k = len(model.columns)
    number = change.number
    adds, deletes = number < p, number >= p + k
    place = jnp.where(adds, jnp.argmin(model.filled).astype(jnp.int32), (number - p) % k)
    columns = model.columns.at[place].set(jnp.where(adds, number, model.columns[place]))
    filled = model.filled.at[place].set(~deletes)
    alpha = model.alpha.at[place].set(change.alpha)
    return model._replace(columns=columns, filled=filled, alpha=alpha), place
