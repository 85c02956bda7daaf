"""The search by gradient: what is differentiated, and the steps it takes."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize

from .._blocks import capacity
from .._numerics import like
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..validation.error_gradient import HeldOut, Parts, held_out_error
from .problem import Problem, kernel_at, start_of
from .strategies import Gradient, Profile, line_search, rounds

FOLDS = 5  # of the error; one part more is watched
# Beyond the box of the profile: a column that is to be left out has a lengthscale of thousands.
NARROWER, WIDER = np.log(10.0), np.log(100.0)


class Smooth(eqx.Module):
    """The error of a machine on some of the points and rows, as a function of leaves and `C`."""

    tuned: Kernel
    fixed: Kernel
    points: Float[Array, "m d"]
    parts: Parts


class Slope(NamedTuple):
    """At a point: the log of the error with the prior, its gradient, and both errors."""

    value: float
    gradient: Float[np.ndarray, " q"]  # in logs of the leaves and of `C`
    error: float
    watched: float


class Run(Protocol):
    """What steps need of the host side of a search."""

    def scores(self, thetas: np.ndarray, C: np.ndarray) -> Float[np.ndarray, " q"]:
        """Best scores of kernels; recorded."""
        ...

    def best_C(self, theta: np.ndarray) -> float:
        """That of the best score of a kernel that was scored."""
        ...

    def slope(self, theta: np.ndarray, C: float, of: Callable[[], Slope]) -> Slope:
        """`of()`, recorded, or as it is known."""
        ...


def smooth(problem: Problem, key: Key, search: Gradient) -> Smooth:
    """Rows and prototypes for the gradient, drawn at random where there are more than asked for."""
    X, y, w = problem.source.rows_in_memory()
    there = np.flatnonzero(np.asarray(w) > 0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    rows = rng.permutation(there)[: search.rows]
    v = FOLDS + 1
    if len(rows) < 2 * v:
        raise ValueError(f"search: expected at least {2 * v} rows for a Gradient, got {len(rows)}")
    r = -(-capacity(len(rows)) // v)
    index = np.zeros(v * r, np.int32)
    index[: len(rows)] = rows
    index = np.ascontiguousarray(index.reshape(r, v).T)
    valid = np.ascontiguousarray((np.arange(v * r) < len(rows)).reshape(r, v).T)
    points = X if problem.points is None else problem.points
    chosen = rows[: max(1, len(rows) // 2)] if problem.points is None else np.arange(len(points))
    if len(chosen) > search.prototypes:
        chosen = np.sort(rng.permutation(chosen)[: search.prototypes])
    parts, points = _laid_out(X, y, w, points, index, valid, chosen.astype(np.int32))
    return Smooth(problem.tuned, problem.fixed, points, parts)


@jax.jit
def _laid_out(
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, " n"],
    points: Float[Array, "k d"],
    index: Int[Array, "v r"],
    valid: Array,
    chosen: Int[Array, " m"],
) -> tuple[Parts, Float[Array, "m d"]]:
    return Parts(X[index], y[index], jnp.where(valid, w[index], 0)), points[chosen]


@jax.jit
def error_and_gradient(
    of: Smooth, theta: Float[Array, " q"], pull: ScalarLike
) -> tuple[Float[Array, ""], Float[Array, " q"], HeldOut]:
    """The log of the error of the folds and of the prior, its gradient, and the errors.

    Args:
        of: rows, prototypes and template.
        theta: logs of the tuned leaves, then of `C`.
        pull: strength of the prior.
    """

    def error(theta: Float[Array, " q"]) -> tuple[Float[Array, ""], HeldOut]:
        kernel = kernel_at(of, theta[:-1])
        return held_out_error(kernel, of.points, jnp.exp(theta[-1]), of.parts)

    def prior(theta: Float[Array, " q"]) -> Float[Array, ""]:
        ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(of.tuned)])
        apart = [jnp.square(part - jnp.mean(part)) for part in jnp.split(theta, ends)[:-1]]
        total = sum((jnp.sum(jnp.log1p(a)) for a in apart), jnp.zeros((), theta.dtype))
        # As minus twice the logs of densities, divided by the number of rows.
        return 2 * like(pull, total) * total / jnp.sum(of.parts.w > 0).astype(total.dtype)

    (_, held), slope = jax.value_and_grad(error, has_aux=True)(theta)
    pulled, more = jax.value_and_grad(prior)(theta)
    return jnp.log(held.error) + pulled, slope / held.error + more, held


def slope_at(of: Smooth, theta: np.ndarray, log_C: float, pull: float) -> Slope:
    """On the host; infinite where it could not be computed."""
    dtype = of.points.dtype
    at = np.append(theta, log_C).astype(dtype)
    value, gradient, held = error_and_gradient(of, at, np.asarray(pull, dtype))
    value, gradient = float(value), np.asarray(gradient, float)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        return Slope(np.inf, np.zeros(len(at)), np.inf, np.inf)
    return Slope(value, gradient, float(held.error), float(held.watched))


class _Enough(Exception):
    """The watched error has stayed up."""


def gradient_search(
    problem: Problem,
    key: Key,
    low: np.ndarray,
    high: np.ndarray,
    grid: np.ndarray,
    search: Gradient,
    run: Run,
    stops: tuple[type[BaseException], ...],
) -> None:
    """A profile over a common factor, steps from its best kernels, and scores of what they give.

    Args:
        problem: the tuning problem.
        key: decides rows and prototypes of the gradient.
        low: logs of the lower bounds of the leaves.
        high: logs of the upper bounds.
        grid: values of `C`.
        search: the settings.
        run: evaluates and records.
        stops: what `run` raises when the time is up; what was found until then is scored, as after
            Ctrl-C, if there is time.
    """
    middle = start_of(problem).astype(float)
    begins = _begin(problem, middle, low, high, grid, search, run)
    of, budget = smooth(problem, key, search), search.max_evaluations or 60
    for theta, log_C in begins:
        trail: list[tuple[np.ndarray, Slope]] = []
        ended: BaseException | None = None
        try:
            _minimise(
                of, theta, log_C, low - NARROWER, high + WIDER, grid, search,
                budget // len(begins), run, trail,
            )  # fmt: skip
        except (KeyboardInterrupt, *stops) as error:
            ended = error
        for kernel in _worth_scoring(trail):
            run.scores(kernel[None], grid[None])
        if ended is not None:
            raise ended


def _begin(
    problem: Problem,
    middle: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    grid: np.ndarray,
    search: Gradient,
    run: Run,
) -> list[tuple[np.ndarray, float]]:
    """Where steps begin: logs of the leaves and of `C`."""
    if search.start is not None:
        theta = np.asarray(search.start.theta, float)
        run.scores(theta[None], grid[None])
        return [(theta, float(np.log(search.start.C)))]
    scored: list[tuple[float, np.ndarray]] = []

    def scores(points: np.ndarray) -> np.ndarray:
        thetas = middle[None] + points
        found = run.scores(thetas, grid[None])
        scored.extend(zip(found.tolist(), thetas, strict=True))
        return found

    narrowest, widest = float(np.max(low - middle)), float(np.min(high - middle))
    planned = sum(rounds(Profile(), 1))
    line_search(narrowest, widest, planned, problem.dtype, scores)
    best = sorted(scored, key=lambda one: one[0])[: search.starts]
    return [(theta, float(np.log(run.best_C(theta)))) for _, theta in best]


def _minimise(
    of: Smooth,
    theta: np.ndarray,
    log_C: float,
    low: np.ndarray,
    high: np.ndarray,
    grid: np.ndarray,
    search: Gradient,
    budget: int,
    run: Run,
    trail: list[tuple[np.ndarray, Slope]],
) -> None:
    """L-BFGS within the box, until the budget or the patience is at its end."""
    best, since = np.inf, 0

    def value(at: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, since
        if since >= search.patience or len(trail) >= budget:
            raise _Enough
        leaves, log = at[:-1].copy(), float(at[-1])
        found = run.slope(
            leaves, float(np.exp(log)), lambda: slope_at(of, leaves, log, search.pull)
        )
        trail.append((leaves, found))
        best, since = (found.watched, 0) if found.watched < best else (best, since + 1)
        # A number, so that the line search comes back.
        return (found.value if np.isfinite(found.value) else 1e3), found.gradient

    ends = np.log([grid.min(), grid.max()])
    bounds = [*zip(low, high, strict=True), (ends[0], ends[1])]
    start = np.append(np.clip(theta, low, high), np.clip(log_C, *ends))
    try:
        minimize(
            value, start, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxfun": budget, "maxiter": budget, "maxcor": 20},
        )  # fmt: skip
    except _Enough:
        pass


def _worth_scoring(trail: list[tuple[np.ndarray, Slope]]) -> list[np.ndarray]:
    """The kernel of the least watched error; and of the least error, if it did no harm there."""
    if len(trail) < 2:
        return []
    watched = min(trail, key=lambda one: one[1].watched)
    least = min(trail, key=lambda one: one[1].value)
    chosen = [one for one in (watched, least) if one[1].watched <= trail[0][1].watched]
    kernels = {theta.tobytes(): theta for theta, _ in chosen if theta is not trail[0][0]}
    return list(kernels.values())
