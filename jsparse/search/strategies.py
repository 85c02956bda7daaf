"""Which points a search asks for: along a line, around a start, by annealing and simplex."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._arguments import real, whole_number
from .._numerics import as_array, epsilon
from .._repr import short_repr
from .._status import RUNNING
from .._types import Key
from . import annealing, simplex


@dataclasses.dataclass(frozen=True)
class Search:
    """The settings that every search has.

    Args:
        max_evaluations: budget; None for the default of the search.
        tune_kernel: False to take the kernel as it is and tune `C` only.
        history: evaluations of a stopped search (`Tuning.history`, or `load_history` of a file).
            They are not done again: with the same arguments the search goes on where it stopped and
            ends as if it had not been. The best one is checked against a new evaluation.
        start: the outcome of a search for a problem alike, such as yesterday's rows: the search is
            then a local one from there (a warm start).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # else `dataclass` would write the whole history
            cls.__repr__ = short_repr

    max_evaluations: int | None = None
    tune_kernel: bool = True
    history: Sequence[Any] | None = None
    start: Any = None

    @property
    def varied(self) -> dict[str, bool]:
        """What of a kernel it varies, see `search.problem.split_kernel`."""
        return {"tune_kernel": self.tune_kernel}

    def check(self) -> None:
        """Raise unless the budget is a whole number."""
        if self.max_evaluations is not None:
            whole_number("max_evaluations", self.max_evaluations, 1)


@dataclasses.dataclass(frozen=True)
class Profile(Search):
    """A search over the kernel, each with the best of all `C`.

    Once a kernel's folds are decomposed every `C` is nearly free, so each evaluation takes a kernel
    and the whole vector `C`. One parameter: six tenths of the evaluations on an even grid over its
    range, the others between the best and its neighbours, halving; 10 evaluations by default.
    Several: as `Annealing`, 160 evaluations.
    """


@dataclasses.dataclass(frozen=True)
class Annealing(Search):
    """The search of De Brabanter 2010, Sections 6.3 and 8.2.

    90 parts of the evaluations by coupled simulated annealing with five members over kernel and `C`
    together, 70 parts by the simplex from its best point; 160 evaluations by default. Of the vector
    `C` only the range counts.
    """


@dataclasses.dataclass(frozen=True)
class Gradient(Search):
    """A learned metric: every positive leaf of the kernel by the gradient of the error.

    A profile over a factor common to all leaves, as `Profile` has it for one lengthscale, then
    Adam over the leaves and `C` from its best kernels, to the least squared error on held-out
    folds (of classes: of one-versus-rest values). The kernels it ends with are scored as any other,
    by the metric, and the best of all is taken: never one that scores worse than the profile's.
    (L-BFGS takes half the evaluations, but in float32 ends early, and did worse beside noise.)

    A gradient costs hardly more than the error, see `validation.held_out_error`, which is that of a
    machine of at most `prototypes` of the points on at most `rows` of the rows (those of a stream
    that are kept in memory: no pass over it), whatever the method. Two things keep many columns
    from being fitted to noise: a prior that pulls logs of lengthscales to their mean, but lets
    those go that the error wants far from it (Cauchy's), and a sixth of the rows, which is watched:
    the kernels of the least error there are what is scored, and steps end where it stays away.

    Of fewer than 100 rows for each column that is not enough: what is left of noise in many columns
    is fitted to all folds at once. So then the weakest quarter of the columns is left out, and a
    profile of those that stay is followed by as many steps, again and again until the score is a
    quarter above the best (recursive feature elimination, Guyon et al. 2002). Each time from a
    profile: steps that went on from the last would be fitted to the folds more and more.

    Args:
        per_column: a kernel named by the caller has a lengthscale for every column; a kernel
            object always has the leaves that it has.
        rank: a kernel named by the caller has a matrix of so many rows in front of it in place of
            lengthscales of columns (`kernels.Projected`): a linear metric, which sees directions
            that are none of a column alone. At most the number of columns, and then it begins at
            the columns themselves; of less at the directions in which a machine of one lengthscale
            varies most. The profile leaves it, and the prior pulls it, where it begins. The
            matrices of a kernel object are tuned too. Without `tune_kernel` there is none.
        starts: begin at so many of the best kernels of the profile.
        prototypes: at most so many of the points in the machine whose error is differentiated.
        rows: at most so many of the rows for a step; where there are more, others for each.
        pull: strength of the prior, 0 for none; 1 is Cauchy's with scale 1 in the natural log.
        patience: end where the watched error has not fallen for so many evaluations.
        rate: length of the first steps, in logs of lengthscales; it falls to zero.
        elimination: leave out columns, where rows in memory are few; not of a search with a
            `start`, which is a local one.
        move_prototypes: afterwards the prototypes of a `FixedSize` of one size are moved by the
            gradient of the same error, by as many steps; they stay where they were if the score
            is not the better for it. For few prototypes: of hundreds it matters little where they
            are.
        max_evaluations: of the gradient, from all starts, and as many again each time that columns
            are left out; 60 by default. Ten kernels of the profile, and two for each start to be
            scored, are not counted.
    """

    per_column: bool = True
    rank: int | None = None
    starts: int = 1
    prototypes: int = 500
    rows: int = 6144
    pull: float = 1.0
    patience: int = 30
    rate: float = 0.15
    elimination: bool = True
    move_prototypes: bool = False

    @property
    def varied(self) -> dict[str, bool]:
        """See `Search.varied`."""
        return {**super().varied, "tune_matrices": True}

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        for name, least in (("starts", 1), ("prototypes", 1), ("rows", 12), ("patience", 1)):
            whole_number(name, getattr(self, name), least)
        if self.rank is not None:
            whole_number("rank", self.rank, 1)
        real("pull", self.pull, 0.0)
        real("rate", self.rate, 0.0, above=True)
        for name in ("per_column", "elimination", "move_prototypes"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")


@dataclasses.dataclass(frozen=True)
class Automatic(Search):
    """What `search="auto"` stands for: `Gradient` where it can pay, else `Profile`.

    It cannot with fewer than 100 rows, too few to watch a part of, nor on several devices. Whether
    it does, the rows say that it watches: steps end soon where the error there does not fall.
    """

    def settled(self, n_rows: int, *, alone: bool) -> Search:
        """The search for so many rows, on one device or on several."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Gradient(**own, patience=15) if alone and n_rows >= 100 else Profile(**own)


@dataclasses.dataclass(frozen=True)
class Rescaling(Search):
    """A kernel that was tuned for a smaller machine, with a common factor on all its leaves.

    What is tuned with few prototypes is too smooth for many: from the factor 1 down, then up, by
    steps of `ratio`, as long as the score falls; each with all `C`. 5 evaluations by default.
    """

    ratio: float = 1.4


def check_search(search: Any) -> None:
    """Raise a `ValueError` unless it is a search, with settings that make sense."""
    if not isinstance(search, Profile | Annealing | Gradient | Automatic | Rescaling):
        raise ValueError(
            f"search: expected 'auto', Profile(..), Annealing(..) or Gradient(..), got {search!r}"
        )
    search.check()


Scores = Callable[[np.ndarray], np.ndarray]
"""From points, shape `q p`, to their values, shape `q`."""


def rounds(search: Search, p: int) -> list[int]:
    """How many kernels with `p` parameters a search asks for at once, round by round; at most."""
    profile, limit = isinstance(search, Profile), search.max_evaluations
    if isinstance(search, Rescaling):
        return [1] * (1 if p == 0 else limit or 5)
    if isinstance(search, Gradient):
        line = [1] if p == 0 or search.start is not None else rounds(Profile(), 1)
        steps = limit or 60
        profile = sum(rounds(Profile(), 1))
        again = len(numbers_of_columns(p)) * (profile + steps + 2) if search.elimination else 0
        return line if p == 0 else [*line, *[1] * (steps + 2 * search.starts + again)]
    if profile and p == 0:
        return [1]
    if profile and p == 1:
        budget = limit or 10
        coarse = min(budget, max(2, round(0.6 * budget)))
        rest = budget - coarse
        return [coarse, *[2] * (rest // 2), *[1] * (rest % 2)]
    budget = limit or 160
    members = min(5, budget)
    annealed = max(members, round(budget * 90 / 160)) // members
    return [members] * annealed + [1] * (budget - members * annealed)


def numbers_of_columns(columns: int) -> list[int]:
    """To how many columns a kernel is reduced, one number after the other."""
    numbers = []
    while columns > 2:
        columns = max(2, round(0.75 * columns))
        numbers.append(columns)
    return numbers


def line_search(low: float, high: float, planned: int, dtype: jnp.dtype, scores: Scores) -> None:
    """An even grid, then points between the best and its neighbours."""
    coarse = rounds(Profile(planned), 1)[0]
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
    coarse, *halvings = rounds(Profile(planned), 1)
    width = (high - low) / max(1, coarse - 1) / 2 ** len(halvings)
    points, values, fresh = np.zeros(0), np.zeros(0), start
    while len(fresh) > 0:
        points, values = np.append(points, fresh), np.append(values, scores(fresh[:, None]))
        best = points[np.argmin(values)]
        beside = np.array([t for t in (best - width, best + width) if low <= t <= high])
        new = np.abs(beside[:, None] - points[None]).min(axis=1) > width / 2
        fresh = beside[new][: planned - len(points)]


def rescaling_search(
    middle: Float[np.ndarray, " p"], ratio: float, planned: int, scores: Scores
) -> None:
    """Factors below 1, then above, until the score no longer falls."""
    best, left = scores(middle[None])[0], planned - 1
    for step in (-np.log(ratio), np.log(ratio)):
        moved, place = False, step
        while left > 0:
            found, left = scores((middle + place)[None])[0], left - 1
            if not found < best:
                break
            best, moved, place = found, True, place + step
        if moved:
            return


def annealing_search(
    key: Key, low: np.ndarray, high: np.ndarray, planned: int, dtype: jnp.dtype, scores: Scores
) -> None:
    """90 parts of the budget to annealing, 70 to the simplex from its best point."""
    lows, highs = as_array(low, dtype), as_array(high, dtype)
    members = min(5, planned)
    first = max(members, round(planned * 90 / 160))
    state = annealing.init(key, lows, highs, members=members, max_evaluations=first)
    while int(state.status) == RUNNING:
        probes = annealing.ask(state)
        state = annealing.tell(state, probes, as_array(scores(np.asarray(probes)), dtype))
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
    lows, highs = as_array(low, dtype), as_array(high, dtype)
    inside = jnp.clip(jnp.asarray(start, dtype), lows, highs)
    rest = max(1, round(planned * 70 / 160))
    _to_the_end(simplex.init(inside, lows, highs, max_evaluations=rest), scores)


def _to_the_end(state: simplex.SimplexState, scores: Scores) -> None:
    while int(state.status) == RUNNING:
        probe = simplex.ask(state)
        value = scores(np.asarray(probe)[None])[0]
        state = simplex.tell(state, probe, jnp.asarray(value, probe.dtype))
