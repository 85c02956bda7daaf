"""The search by gradient: what is differentiated, and the steps it takes."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._blocks import capacity, rounded_down
from .._numerics import like
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..validation.error_gradient import HeldOut, Parts, held_out_error
from .problem import InMemory, Problem, kernel_at, signed, start_of
from .strategies import Gradient, Profile, line_search, numbers_of_columns, rounds

FOLDS = 5  # of the error; one part more is watched
# Beyond the box of the profile: a column that is to be left out has a lengthscale of thousands.
NARROWER, WIDER = np.log(10.0), np.log(100.0)
ROWS_FOR_A_COLUMN = 100  # as many are enough to tell that a column is noise
WORSE = 1.25  # with a score so many times the best, columns were left out that count


class Smooth(eqx.Module):
    """The error of a machine on some of the points and rows, as a function of leaves and `C`."""

    tuned: Kernel
    fixed: Kernel
    points: Float[Array, "m d"]
    parts: Parts
    free: Bool[Array, " p"] | Bool[np.ndarray, " p"]  # leaves that are not held at their bound
    origin: Float[Array, " p"] | Float[np.ndarray, " p"]  # the template's


class Slope(NamedTuple):
    """At a point: the log of the error with the prior, its gradient, and both errors."""

    value: float
    gradient: Float[np.ndarray, " q"]  # in logs of the leaves and of `C`
    error: float
    watched: float

    __repr__ = short_repr


@runtime_checkable
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


class Batches:
    """Rows for every step: where there are more than asked for, others for each but those watched.

    Args:
        key: decides the rows and prototypes drawn.
        X: inputs, shape `n d`.
        y: targets, shape `n c`.
        weights: row weights; a row of weight 0 is not there.
        points: of which the prototypes are; None for the rows.
        rows: at most so many at a time.
        prototypes: at most so many.

    Raises:
        ValueError: for fewer rows than would fill the parts twice.
    """

    def __init__(
        self,
        key: Key,
        X: Float[Array, "n d"],
        y: Float[Array, "n c"],
        weights: Float[Array, " n"],
        points: Float[Array, "k d"] | None,
        *,
        rows: int,
        prototypes: int,
    ) -> None:
        self._data = X, y, weights
        self._seed = np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist()
        rng = np.random.default_rng(self._seed)
        self._there = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))
        k, v = min(rows, len(self._there)), FOLDS + 1
        if k < 2 * v:
            raise ValueError(f"search: expected at least {2 * v} rows with weight, got {k}")
        self._room, self._watched = -(-capacity(k) // v), k // v
        self._taken, self.resampled = k, k < len(self._there)
        half = max(1, rounded_down(k // 2))
        chosen = self._there[:half] if points is None else np.arange(len(points))
        if len(chosen) > prototypes:
            chosen = np.sort(rng.permutation(chosen)[:prototypes])
        self.points = _rows_at(X if points is None else points, chosen.astype(np.int32))

    def at(self, step: int) -> Parts:
        """The rows of a step."""
        others = self._there[self._watched :]
        if self.resampled:
            rng = np.random.default_rng([*self._seed, step])
            others = rng.choice(others, self._taken - self._watched, replace=False)
        index = np.zeros((FOLDS + 1, self._room), np.int32)
        valid = np.zeros(index.shape, bool)
        for part, own in enumerate([*np.array_split(others, FOLDS), self._there[: self._watched]]):
            index[part, : len(own)], valid[part, : len(own)] = own, True
        return _parts(*self._data, index, valid)


_rows_at = compiled(lambda X, chosen: X[chosen])


@compiled
def _parts(
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, " n"],
    index: Int[Array, "v r"],
    valid: Array,
) -> Parts:
    return Parts(X[index], y[index], jnp.where(valid, w[index], 0))


@compiled
def error_and_gradient(
    of: Smooth, theta: Float[Array, " q"], pull: ScalarLike
) -> tuple[Float[Array, ""], Float[Array, " q"], HeldOut]:
    """The log of the error of the folds and of the prior, its gradient, and the errors.

    Args:
        of: rows, prototypes and template.
        theta: logs of the tuned leaves, of matrices the elements; then the log of `C`.
        pull: strength of the prior.
    """

    def error(theta: Float[Array, " q"]) -> tuple[Float[Array, ""], HeldOut]:
        kernel = kernel_at(of, theta[:-1])
        return held_out_error(kernel, of.points, jnp.exp(theta[-1]), of.parts)

    def prior(theta: Float[Array, " q"]) -> Float[Array, ""]:
        total, own = jnp.zeros((), theta.dtype), signed(of.tuned)
        ends = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(of.tuned))])
        for begin, end in itertools.pairwise(ends):
            part, free = theta[begin:end], of.free[begin:end]
            count = jnp.maximum(jnp.sum(free), 1).astype(part.dtype)
            centre = jnp.sum(jnp.where(free, part, 0)) / count
            if own[begin]:  # elements of a matrix are pulled to where they begin
                centre = of.origin[begin:end]
            apart = jnp.square(part - centre)
            total = total + jnp.sum(jnp.where(free, jnp.log1p(apart), 0))
        # As minus twice the logs of densities, divided by the number of rows.
        return 2 * like(pull, total) * total / jnp.sum(of.parts.w > 0).astype(total.dtype)

    (_, held), slope = jax.value_and_grad(error, has_aux=True)(theta)
    pulled, more = jax.value_and_grad(prior)(theta)
    return jnp.log(held.error) + pulled, slope / held.error + more, held


def slope_at(of: Smooth, theta: np.ndarray, C: float, pull: float) -> Slope:
    """On the host; infinite where it could not be computed."""
    dtype = of.points.dtype
    at = np.append(theta, np.log(C)).astype(dtype)
    value, gradient, held = error_and_gradient(of, at, np.asarray(pull, dtype))
    value, gradient = float(value), np.asarray(gradient, float)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        return Slope(np.inf, np.zeros(len(at)), np.inf, np.inf)
    return Slope(value, gradient, float(held.error), float(held.watched))


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

    Then again with fewer columns, the others held at their widest, until one is left out that
    counts.

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
    batches = Batches(
        key, *problem.source.rows_in_memory(), problem.points, rows=search.rows,
        prototypes=search.prototypes,
    )  # fmt: skip
    ends = np.log([grid.min(), grid.max()])
    lowest, highest = np.append(low - NARROWER, ends[0]), np.append(high + WIDER, ends[1])
    own = np.flatnonzero(signed(problem.tuned))
    widest = 10 * np.abs(middle[own]).max(initial=1.0)
    lowest[own], highest[own] = -widest, widest

    def descended(
        begin: np.ndarray, least: np.ndarray, steps: int
    ) -> list[tuple[float, np.ndarray]]:
        """Scores and kernels that it ends with; else the least watched of its steps, infinite."""
        trail: list[tuple[np.ndarray, float]] = []
        ended: BaseException | None = None
        try:
            _descend(problem, batches, begin, least, highest, search, steps, run, trail)
        except (KeyboardInterrupt, *stops) as error:
            ended = error
        scored = [(run.scores(k[None], grid[None])[0], k) for k in _worth_scoring(trail)]
        if ended is not None:
            raise ended
        if not scored:
            moved = [one for one in trail if not np.array_equal(one[0], trail[0][0])]
            scored = [(np.inf, min(moved, key=lambda one: one[1])[0])] if moved else []
        return scored

    steps, columns = search.max_evaluations or 60, columns_of(problem.tuned)
    kept, theta, best = np.arange(len(columns)), middle, np.inf
    for k in [len(columns), *(numbers_of_columns(len(columns)) if search.elimination else ())]:
        shortest = theta[columns].min(axis=1, initial=np.inf)
        kept = kept[np.argsort(shortest[kept], kind="stable")[:k]]
        least, held = lowest.copy(), np.delete(columns, kept, axis=0).reshape(-1)
        least[held] = highest[held]
        begins, score = _begin(problem, middle, low, high, grid, search, run, least[held], held)
        each = max(1, steps // len(begins))
        found = [end for begin in begins for end in descended(begin, least, each)]
        if not found:
            return  # nothing tells which columns count
        lower, theta = min(found, key=lambda one: one[0])
        score = min(score, lower)
        best = min(best, score)
        if not score <= WORSE * best:
            return


def settled(problem: Problem, search: Gradient) -> Gradient:
    """The search for the rows and the kernel that there are.

    Columns are left out of rows in memory alone, of a stream there are many, and not from where a
    search is to go on, which is a local one.
    """
    columns = len(columns_of(problem.tuned))
    wanted = search.elimination and search.start is None and columns > 0
    if wanted and isinstance(problem.source, InMemory):
        there = np.count_nonzero(np.asarray(problem.source.weights) > 0)
        if there < ROWS_FOR_A_COLUMN * columns:
            return search
    return dataclasses.replace(search, elimination=False)


def columns_of(tuned: Kernel) -> Int[np.ndarray, "c k"]:
    """Places of the lengthscales of each column among all leaves; of a product one for each part.

    No rows, if there is one lengthscale for all columns.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tuned)
    ends = np.cumsum([0, *(leaf.size for _, leaf in leaves)])
    places = [
        np.arange(ends[i], ends[i + 1])
        for i, (path, leaf) in enumerate(leaves)
        if leaf.ndim == 1 and leaf.size > 1 and getattr(path[-1], "name", "") == "lengthscale"
    ]
    if len({place.size for place in places}) == 1:
        return np.stack(places, axis=1)
    return np.concatenate([np.zeros(0, int), *places])[:, None]


def _begin(
    problem: Problem,
    middle: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    grid: np.ndarray,
    search: Gradient,
    run: Run,
    widest: np.ndarray,
    held: np.ndarray,
) -> tuple[list[np.ndarray], float]:
    """Where steps begin: logs of the leaves and of `C`; and the least score there."""
    first = len(held) == 0
    if search.start is not None and first:
        theta = np.asarray(search.start.theta, float)
        score = run.scores(theta[None], grid[None])[0]
        return [np.append(theta, np.log(search.start.C))], score
    scored: list[tuple[float, np.ndarray]] = []
    own = signed(problem.tuned)

    def scores(points: np.ndarray) -> np.ndarray:
        thetas = middle[None] + np.where(own[None], 0, points)
        thetas[:, held] = widest[None]
        found = run.scores(thetas, grid[None])
        scored.extend(zip(found.tolist(), thetas, strict=True))
        return found

    narrow, wide = float(np.max(low - middle)), float(np.min(high - middle))
    line_search(narrow, wide, sum(rounds(Profile(), 1)), problem.dtype, scores)
    best = sorted(scored, key=lambda one: one[0])[: search.starts if first else 1]
    return [np.append(theta, np.log(run.best_C(theta))) for _, theta in best], best[0][0]


def _descend(
    problem: Problem,
    batches: Batches,
    begin: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    search: Gradient,
    budget: int,
    run: Run,
    trail: list[tuple[np.ndarray, float]],
) -> None:
    """Adam (Kingma and Ba 2015) within the box, until the budget or the patience is at its end.

    In NumPy: it is of a few numbers. The rate falls to zero as half a wave of a cosine.
    """
    theta, dtype = np.clip(begin, low, high), problem.dtype
    free = (low < high)[:-1]
    origin = start_of(problem)
    of = Smooth(problem.tuned, problem.fixed, batches.points, batches.at(0), free, origin)

    def slope(theta: np.ndarray) -> Slope:
        # As the device sees it, and as it is kept.
        leaves, C = theta[:-1].astype(dtype).astype(float), float(np.exp(theta[-1]))
        found = run.slope(leaves, C, functools.partial(slope_at, of, leaves, C, search.pull))
        trail.append((leaves, found.watched))
        return found

    # `C` for the squared error: that of the profile was chosen for the metric.
    found, tenth = slope(theta), np.append(np.zeros(len(theta) - 1), np.log(10.0))
    while len(trail) < budget and theta[-1] - tenth[-1] > low[-1]:
        lower = slope(theta - tenth)
        if not lower.value < found.value:
            break
        found, theta = lower, theta - tenth
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    least, since, scanned = np.inf, 0, len(trail)
    for i in range(max(0, budget - scanned)):
        if not np.isfinite(found.value):
            return
        least, since = (found.watched, 0) if found.watched < least else (least, since + 1)
        if since >= search.patience:
            return
        mean = 0.9 * mean + 0.1 * found.gradient
        square = 0.999 * square + 0.001 * np.square(found.gradient)
        size = np.sqrt(square / (1 - 0.999 ** (i + 1))) + 1e-8
        rate = search.rate * (1 + np.cos(np.pi * i / budget)) / 2
        theta = np.clip(theta - rate * mean / (1 - 0.9 ** (i + 1)) / size, low, high)
        if batches.resampled:
            of = dataclasses.replace(of, parts=batches.at(i + 1))
        found = slope(theta)


def _worth_scoring(trail: list[tuple[np.ndarray, float]]) -> list[np.ndarray]:
    """The kernel of the least watched error; and the last, if it did no harm there."""
    if len(trail) < 2:
        return []
    first = trail[0][0].tobytes()  # with each C that was tried; scored before
    bound = min(watched for theta, watched in trail if theta.tobytes() == first)
    chosen = [min(trail, key=lambda one: one[1]), trail[-1]]
    kernels = {theta.tobytes(): theta for theta, watched in chosen if watched <= bound}
    kernels.pop(first, None)
    return list(kernels.values())
