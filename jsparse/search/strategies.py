"""Which points a search asks for: along a line, around a start, by annealing and simplex."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._numerics import epsilon
from .._status import RUNNING
from .._types import Key
from . import annealing, simplex

Method = Literal["profile", "csa"]

Scores = Callable[[np.ndarray], np.ndarray]
"""From points, shape `q p`, to their values, shape `q`."""


def rounds(method: Method, p: int, max_evaluations: int | None) -> list[int]:
    """How many kernels with `p` parameters a search asks for at once, round by round; at most."""
    if method == "profile" and p == 0:
        return [1]
    if method == "profile" and p == 1:
        budget = max_evaluations or 10
        coarse = min(budget, max(2, round(0.6 * budget)))
        rest = budget - coarse
        return [coarse, *[2] * (rest // 2), *[1] * (rest % 2)]
    budget = max_evaluations or 160
    members = min(5, budget)
    annealed = max(members, round(budget * 90 / 160)) // members
    return [members] * annealed + [1] * (budget - members * annealed)


def line_search(low: float, high: float, planned: int, dtype: jnp.dtype, scores: Scores) -> None:
    """An even grid, then points between the best and its neighbours."""
    coarse = rounds("profile", 1, planned)[0]
    points = np.linspace(low, high, coarse) if coarse > 1 else np.array([(low + high) / 2])
    values = scores(points[:, None])
    width = (high - low) / max(1, coarse - 1)
    # As long as halving makes a difference to the device.
    while len(points) < planned and width > 8 * epsilon(dtype) * (high - low):
        width /= 2
        best = points[np.argmin(values)]
        fresh = np.array([t for t in (best - width, best + width) if low <= t <= high])
        fresh = fresh[: planned - len(points)]
        points = np.append(points, fresh)
        values = np.append(values, scores(fresh[:, None]))


def local_line_search(
    low: float, high: float, start: Float[np.ndarray, "1"], planned: int, scores: Scores
) -> None:
    """Steps of the width that `line` ends with, until the best point lies between two others."""
    coarse, *halvings = rounds("profile", 1, planned)
    width = (high - low) / max(1, coarse - 1) / 2 ** len(halvings)
    points, values, fresh = np.zeros(0), np.zeros(0), start
    while len(fresh) > 0:
        points, values = np.append(points, fresh), np.append(values, scores(fresh[:, None]))
        best = points[np.argmin(values)]
        beside = np.array([t for t in (best - width, best + width) if low <= t <= high])
        new = np.abs(beside[:, None] - points[None]).min(axis=1) > width / 2
        fresh = beside[new][: planned - len(points)]


def annealing_search(
    key: Key, low: np.ndarray, high: np.ndarray, planned: int, dtype: jnp.dtype, scores: Scores
) -> None:
    """90 parts of the budget to annealing, 70 to the simplex from its best point."""
    lows, highs = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    members = min(5, planned)
    first = max(members, round(planned * 90 / 160))
    state = annealing.init(key, lows, highs, members=members, max_evaluations=first)
    while int(state.status) == RUNNING:
        probes = annealing.ask(state)
        state = annealing.tell(state, probes, jnp.asarray(scores(np.asarray(probes)), dtype))
    rest = planned - int(state.evaluations)
    if rest == 0 or not np.isfinite(float(state.best_value)):
        return
    options = {"value0": state.best_value, "max_evaluations": rest}
    _to_the_end(simplex.init(state.best_theta, lows, highs, **options), scores)


def simplex_search(
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
    planned: int,
    dtype: jnp.dtype,
    scores: Scores,
) -> None:
    """The simplex alone, with its 70 parts of the budget."""
    lows, highs = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    inside = jnp.clip(jnp.asarray(start, dtype), lows, highs)
    rest = max(1, round(planned * 70 / 160))
    _to_the_end(simplex.init(inside, lows, highs, max_evaluations=rest), scores)


def _to_the_end(state: simplex.SimplexState, scores: Scores) -> None:
    while int(state.status) == RUNNING:
        probe = simplex.ask(state)
        value = scores(np.asarray(probe)[None])[0]
        state = simplex.tell(state, probe, jnp.asarray(value, probe.dtype))
