"""Tuning a kernel and `C` by cross-validation: the profile search and the paper's CSA + simplex."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .. import features, kernels
from .._status import PRECISION_LOST, RUNNING, NumericalError
from .._types import Key
from ..kernels import Kernel
from . import annealing, simplex
from .cross_validation import Metric, cross_validate
from .folds import Folds


class Problem(NamedTuple):
    """What stays fixed while kernel and `C` vary; all of it is traced, nothing recompiles."""

    tuned: Kernel  # the template's positive leaves, None elsewhere
    fixed: Kernel  # the rest of the template
    prototypes: Float[Array, "m d"]
    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    weights: Float[Array, " n"] | None
    folds: Folds


class Evaluation(NamedTuple):
    """One kernel's cross-validation: scores and stop codes for a vector of `C`."""

    theta: np.ndarray  # logs of the tuned leaves, shape `p`
    C: np.ndarray  # shape `s`
    scores: np.ndarray  # shape `s`
    status: np.ndarray  # shape `s`
    seconds: float  # since the search began


class Tuning(NamedTuple):
    """The outcome of a search: the best kernel and `C`, and all that was evaluated."""

    kernel: Kernel
    C: float
    score: float
    history: list[Evaluation]
    stopped: Literal["finished", "seconds", "interrupted"]


Progress = Callable[[int, int, float], None]
"""Called with (evaluations done, evaluations planned, best score) after each evaluation."""


def problem(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
) -> Problem:
    """The tuning problem of a template kernel: its positive floating leaves are tuned."""
    kernel = jax.tree.map(
        lambda a: jnp.asarray(a, X.dtype) if eqx.is_inexact_array(a) else a, kernel
    )
    spec = jax.tree.map(lambda a: eqx.is_inexact_array(a) and bool(jnp.all(a > 0)), kernel)
    tuned, fixed = eqx.partition(kernel, spec)
    return Problem(tuned, fixed, prototypes, X, y, weights, folds)


def start_of(problem: Problem) -> Float[Array, " p"]:
    """Logs of the template's tuned leaves, shape `p`."""
    return jnp.log(ravel_pytree(problem.tuned)[0]).astype(problem.X.dtype)


def kernel_at(problem: Problem, theta: Float[Array, " p"]) -> Kernel:
    """The template with tuned leaves `exp(theta)`."""
    _, unravel = ravel_pytree(problem.tuned)
    return eqx.combine(unravel(jnp.exp(theta)), problem.fixed)


def feature_map(kernel: Kernel, prototypes: Float[Array, "m d"]) -> features.FeatureMap:
    """Nystroem features; for the linear kernel the inputs themselves, which no rank can limit."""
    if isinstance(kernel, kernels.Linear):
        return features.Linear(jnp.zeros(prototypes.shape[1], prototypes.dtype))
    return features.Nystroem(kernel, prototypes)


@functools.partial(jax.jit, static_argnames="metric")
def evaluate(
    problem: Problem, theta: Float[Array, " p"], C: Float[Array, " s"], metric: Metric
) -> tuple[Float[Array, " s"], Array]:
    """Cross-validation scores and statuses of one kernel for every `C`."""
    phi = feature_map(kernel_at(problem, theta), problem.prototypes)
    X, y, weights, folds = problem.X, problem.y, problem.weights, problem.folds
    result = cross_validate(phi, C, X, y, folds, weights, metric=metric)
    return result.scores, result.status


def profile(
    problem: Problem,
    *,
    metric: Metric,
    low: Float[np.ndarray, " p"],
    high: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    key: Key,
    max_evaluations: int = 12,
    seconds: float = math.inf,
    progress: Progress | None = None,
    history: list[Evaluation] | None = None,
) -> Tuning:
    """Minimise over the kernel the best score over a whole grid of `C`.

    Once a kernel's folds are decomposed, every `C` is nearly free, so the search is over the
    kernel alone. One parameter: an even grid over the (log) range, then points between the best and
    its neighbours, halving. Several: coupled simulated annealing and the simplex on the profile.
    At last the grid of `C` is refined at the best kernel.

    Args:
        problem: see `problem`.
        metric: see `cross_validate`.
        low: logs of the lower bounds, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: the grid.
        key: used with several parameters.
        max_evaluations: kernels evaluated, the refinement of `C` not counted.
        seconds: no evaluation starts later; what was found until then is returned.
        progress: called after each evaluation.
        history: evaluations of an earlier, stopped search of the same problem: they are not done
            again, and the search goes on where it stopped.

    Ctrl-C stops the search and keeps the best so far.
    """
    run = _Run(problem, metric, max_evaluations, seconds, progress, history)
    grid = np.asarray(C)
    p = len(low)

    def search() -> None:
        if p == 0:
            run.score(np.zeros(0), grid)
        elif p == 1:
            _line(run, float(low[0]), float(high[0]), grid, max_evaluations)
        else:
            objective = _profile_objective(metric)
            args = (problem, jnp.asarray(grid, problem.X.dtype))
            _anneal(run, objective, args, key, low, high, max_evaluations, grid)
        theta, best_C, _ = run.best()
        step = (grid[1:] / grid[:-1]).max() if len(grid) > 1 else 1.0
        run.score(theta, best_C * np.geomspace(1 / step, step, 9))

    return run.finish(search)


def csa(
    problem: Problem,
    *,
    metric: Metric,
    low: Float[np.ndarray, " p"],
    high: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    key: Key,
    max_evaluations: int = 160,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Tuning:
    """The paper's search: coupled simulated annealing, then the simplex, over kernel and `C`.

    De Brabanter 2010, Section 6.3 and 8.2: 90 of 160 evaluations by annealing with five members,
    70 by the simplex from its best state. Arguments as in `profile`; of `C` only the range counts.
    """
    run = _Run(problem, metric, max_evaluations, seconds, progress, None)
    lows, highs = np.append(low, np.log(np.min(C))), np.append(high, np.log(np.max(C)))
    objective = _joint_objective(metric)
    return run.finish(
        lambda: _anneal(run, objective, problem, key, lows, highs, max_evaluations, None)
    )


class _Stop(Exception):
    """The time is up."""


class _Run:
    """The host side of a search: evaluates, records, reports, and ends in good order."""

    def __init__(
        self,
        problem: Problem,
        metric: Metric,
        planned: int,
        seconds: float,
        progress: Progress | None,
        history: list[Evaluation] | None,
    ) -> None:
        self.problem, self.metric, self.planned = problem, metric, planned
        self.seconds, self.progress = seconds, progress
        self.known = {_name(e.theta, e.C): e for e in history or []}
        self.history: list[Evaluation] = []
        self.start = time.perf_counter()

    def score(self, theta: np.ndarray, C: np.ndarray) -> float:
        """Best trustworthy score of a kernel over `C`."""
        known = self.known.get(_name(theta, C))
        if known is None:
            self.check_time()
            dtype = self.problem.X.dtype
            scores, status = evaluate(
                self.problem, jnp.asarray(theta, dtype), jnp.asarray(C, dtype), self.metric
            )
            known = self.record(theta, C, np.asarray(scores), np.asarray(status))
        else:
            self.history.append(known)
        return float(np.min(_trusted(known)))

    def record(
        self, theta: np.ndarray, C: np.ndarray, scores: np.ndarray, status: np.ndarray
    ) -> Evaluation:
        """Add to the history and report."""
        seconds = time.perf_counter() - self.start
        evaluation = Evaluation(np.asarray(theta), np.asarray(C), scores, status, seconds)
        self.history.append(evaluation)
        if self.progress is not None:
            best = min(float(np.min(_trusted(e))) for e in self.history)
            self.progress(len(self.history), self.planned, best)
        return evaluation

    def check_time(self) -> None:
        """Raise `_Stop` once the time is up, but never before the first evaluation."""
        if self.history and time.perf_counter() - self.start > self.seconds:
            raise _Stop

    def best(self) -> tuple[np.ndarray, float, float]:
        """Kernel parameters, `C` and score of the best evaluation that can be trusted."""
        values = [_trusted(e) for e in self.history]
        i = int(np.argmin([v.min() for v in values]))
        j = int(np.argmin(values[i]))
        if not np.isfinite(values[i][j]):
            raise NumericalError(
                "tuning: no kernel and C gave a cross-validation error that can be trusted in "
                f"{self.problem.X.dtype}; use float64 or other bounds"
            )
        return self.history[i].theta, float(self.history[i].C[j]), float(values[i][j])

    def finish(self, search: Callable[[], None]) -> Tuning:
        """Run a search to its end, its time or Ctrl-C."""
        stopped: Literal["finished", "seconds", "interrupted"] = "finished"
        try:
            search()
        except _Stop:
            stopped = "seconds"
        except KeyboardInterrupt:
            if not self.history:
                raise
            stopped = "interrupted"
        theta, C, score = self.best()
        kernel = kernel_at(self.problem, jnp.asarray(theta, self.problem.X.dtype))
        return Tuning(kernel, C, score, self.history, stopped)


def _line(run: _Run, low: float, high: float, C: np.ndarray, budget: int) -> None:
    coarse = max(2, min(budget, round(0.6 * budget)))
    points = np.linspace(low, high, coarse)
    values = {float(t): run.score(np.array([t]), C) for t in points}
    width = (high - low) / (coarse - 1)
    while len(values) < budget:
        width /= 2
        best = min(values, key=lambda t: values[t])
        fresh = [t for t in (best - width, best + width) if low <= t <= high]
        for t in fresh[: budget - len(values)]:
            values[t] = run.score(np.array([t]), C)


def _anneal(
    run: _Run,
    objective: Callable,
    args: Any,
    key: Key,
    low: np.ndarray,
    high: np.ndarray,
    budget: int,
    grid: np.ndarray | None,
) -> None:
    """90 parts annealing, 70 parts simplex. `grid` None: the last parameter is log C."""
    dtype = run.problem.X.dtype
    lows, highs = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    first = max(5, round(budget * 90 / 160))

    def note(probes: Array, values: Array) -> None:
        for probe, value in zip(np.asarray(probes), np.asarray(values), strict=True):
            finite = np.isfinite(value)
            status = np.array([0 if finite else PRECISION_LOST])
            if grid is None:
                run.record(probe[:-1], np.exp(probe[-1:]), np.array([value]), status)
            else:
                run.score(probe, grid)

    state = annealing.init(key, lows, highs, max_evaluations=first)
    batch = annealing.in_turn if jax.default_backend() == "cpu" else jax.vmap
    while int(state.status) == RUNNING:
        run.check_time()
        state = _anneal_step(objective, args, state, batch)
        note(state.probes, state.probe_values)
    if not np.isfinite(float(state.best_value)):
        return
    rest = simplex.init(
        state.best_theta,
        lows,
        highs,
        value0=state.best_value,
        max_evaluations=budget - int(state.evaluations),
    )
    while int(rest.status) == RUNNING:
        run.check_time()
        rest = _simplex_step(objective, args, rest)
        note(rest.probe[None], rest.probe_value[None])


@functools.partial(jax.jit, static_argnames=("objective", "batch"))
def _anneal_step(objective: Callable, args: Any, state: Any, batch: Callable) -> Any:
    return annealing.step(objective, args, state, batch=batch)


@functools.partial(jax.jit, static_argnames="objective")
def _simplex_step(objective: Callable, args: Any, state: Any) -> Any:
    return simplex.step(objective, args, state)


@functools.cache
def _joint_objective(metric: Metric) -> Callable:
    def objective(theta: Array, problem: Problem) -> Array:
        scores, status = evaluate(problem, theta[:-1], jnp.exp(theta[-1:]), metric)
        return jnp.where(status[0] < PRECISION_LOST, scores[0], jnp.inf)

    return objective


@functools.cache
def _profile_objective(metric: Metric) -> Callable:
    def objective(theta: Array, args: tuple[Problem, Array]) -> Array:
        scores, status = evaluate(args[0], theta, args[1], metric)
        return jnp.min(jnp.where(status < PRECISION_LOST, scores, jnp.inf))

    return objective


def _trusted(evaluation: Evaluation) -> np.ndarray:
    ok = (evaluation.status < PRECISION_LOST) & np.isfinite(evaluation.scores)
    return np.where(ok, evaluation.scores, np.inf)


def _name(theta: np.ndarray, C: np.ndarray) -> bytes:
    return np.concatenate([np.asarray(theta, float), np.asarray(C, float)]).round(9).tobytes()
