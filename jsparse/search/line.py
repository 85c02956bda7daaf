"""The line search of `strategies.line_search` as a pure state machine, for batches of problems.

A point is its distance from the lower bound, in steps of the even grid, so that all problems of a
batch share the points. They are dyadic fractions, which are exact.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._repr import short_repr
from .strategies import line_rounds, middle_first


class LineState(NamedTuple):
    """The points of the planned evaluations, as far as they are known, and their scores."""

    places: Float[Array, " e"]  # points in order of evaluation, in steps of the even grid
    values: Float[Array, " e"]  # their scores; infinite if not evaluated yet
    count: Int[Array, ""]  # number of evaluations so far
    width: Float[Array, ""]  # distance of the last round's points from the best point, in steps
    second: Float[Array, ""]  # the second point of the current round; NaN for none

    __repr__ = short_repr


def last_place(planned: int) -> int:
    """Return the number of steps of the even grid; 0 if it has one point, which is then 0.5."""
    return line_rounds(planned)[0] - 1


def init(planned: int, dtype: jnp.dtype) -> LineState:
    """Return the state before the first of `planned` evaluations."""
    places = np.zeros(planned, dtype)
    coarse = line_rounds(planned)[0]
    places[:coarse] = middle_first(coarse) if coarse > 1 else 0.5
    return LineState(
        jnp.asarray(places),
        jnp.full(planned, jnp.inf, dtype),
        jnp.zeros((), jnp.int32),
        jnp.ones((), dtype),
        jnp.full((), jnp.nan, dtype),
    )


def ask(state: LineState) -> LineState:
    """Return the state with the next point at `places[count]`."""
    planned = len(state.places)
    last = last_place(planned)
    starts_round = jnp.isnan(state.second)
    width = jnp.where(starts_round, state.width / 2, state.width)
    best = state.places[jnp.argmin(state.values)]
    left, right = best - width, best + width
    right = jnp.where(right <= last, right, jnp.nan)
    first = jnp.where(left >= 0, left, right)
    second = jnp.where(starts_round & (left >= 0), right, jnp.nan)
    place = jnp.where(starts_round, first, state.second)
    on_grid = state.count < line_rounds(planned)[0]
    return state._replace(
        places=jnp.where(on_grid, state.places, state.places.at[state.count].set(place)),
        width=jnp.where(on_grid, state.width, width),
        second=jnp.where(on_grid, state.second, second),
    )


def tell(state: LineState, value: Float[Array, ""]) -> LineState:
    """Return the state with `value` as the score of the point of `ask`."""
    values = state.values.at[state.count].set(value)
    return state._replace(values=values, count=state.count + 1)
