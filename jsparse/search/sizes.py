"""How many prototypes: the error over a few sizes, and the smallest that is good enough."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._repr import ShortList, short_repr
from .._types import KeyLike
from ..machines.method import Metric, check_sizes, check_tolerance
from ..multiclass import Decoding
from .gradient import settled
from .problem import Problem
from .strategies import Gradient, Profile, Search, rounds
from .tune import Progress, Tuning, tune

# Sizes up to this part of the largest are tuned over the whole range: at the cube (square) of the
# size, ten kernels for them cost less than one for the largest.
WHOLE_RANGE = 0.25
GROWTH = 4.0  # of the time from one size to its double


class SizeCurve(NamedTuple):
    """Cross-validated errors of machines with more and more prototypes, and the one chosen."""

    sizes: Int[np.ndarray, " k"]  # numbers of prototypes
    errors: Float[np.ndarray, " k"]
    standard_errors: Float[np.ndarray, " k"]  # of the errors, from their spread over the folds
    chosen: int  # place among the sizes
    metric: Metric  # of the errors
    tunings: Sequence[Tuning] = ()  # of each size, where each has a kernel and a C of its own
    fold_errors: Float[np.ndarray, "v k"] | None = None  # of a path
    stopped: Literal["finished", "seconds", "interrupted"] = "finished"
    # In the metric by which the size was chosen, where that is another; see `PathMethod.criterion`.
    chosen_by: "SizeCurve | None" = None

    __repr__ = short_repr

    @property
    def size(self) -> int:
        """The number of prototypes chosen."""
        return int(self.sizes[self.chosen])

    @property
    def tuning(self) -> Tuning:
        """Of the size chosen, where each has its own."""
        return self.tunings[self.chosen]._replace(stopped=self.stopped)

    def smallest_within(self, tolerance: float) -> int:
        """The least number of prototypes whose error is within so many standard errors of the best.

        0.1 is the choice of Karsmakers 2011, Section 4.5, 1 the one-standard-error rule. The errors
        are those by which the size was chosen, see `chosen_by`.

        Raises:
            ValueError: for a negative tolerance.
        """
        if self.chosen_by is not None:
            return self.chosen_by.smallest_within(tolerance)
        check_tolerance("tolerance", tolerance)
        return int(self.sizes[smallest_within(self.errors, self.standard_errors, tolerance)])


def tune_sizes(
    problem: Problem,
    sizes: Sequence[int],
    *,
    key: KeyLike,
    metric: Metric,
    low: Float[np.ndarray, " p"],
    high: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    tolerance: float = 1.0,
    decoding: Decoding = "loss",
    search: Search = Profile(),
    max_seconds: float = math.inf,
    progress: Progress | None = None,
    growing: bool = False,
) -> SizeCurve:
    """Tune machines of several sizes, and choose one of them by cross-validation.

    The heuristic of De Brabanter 2010, Section 5: k different numbers of prototypes, the best of
    which is taken. The paper judges by the test set; here it is cross-validation, on the same folds
    for all, and each size has its own kernel and `C`.

    The sizes share the prototypes, of which each has the first ones, and the search. The smallest
    size, and all up to a quarter of the largest, which cost next to nothing, are tuned over the
    whole range; each further one by a local search from the best of the one before (`tune`,
    `start`), as the best kernel moves little from one to the next.

    Args:
        problem: with the prototypes of the largest size, in an order in which the first ones are a
            good choice for every size, such as `prototypes.interleaved`; see `tuning_problem`.
        sizes: numbers of prototypes, increasing.
        key: decides the search.
        metric: see `tune`; so are `low`, `high`, `C`, `decoding` and `search`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        tolerance: see `smallest_within`.
        decoding: of several classes.
        search: of each size; without a history.
        max_seconds: no evaluation starts later, and sizes not come to are left out.
        progress: called as `progress(done, planned, best_score)`; a local search takes fewer than
            planned.
        growing: end where a size does no better than the one before, by a tenth of its standard
            error, or would take longer than is left, if it takes four times as long as that.

    Ctrl-C stops the search and keeps the sizes looked at so far.

    Raises:
        ValueError: as `tune`, or if the sizes do not increase or there are fewer prototypes, or for
            a negative tolerance.
        NumericalError: if for some size no evaluation gave an error that can be trusted.
    """
    if problem.points is None:
        raise ValueError("problem: expected one with prototypes, got one without (the dual)")
    numbers = check_sizes(sizes, len(problem.points), "the number of prototypes")
    check_tolerance("tolerance", tolerance)
    if search.history is not None:
        raise ValueError("history: expected None with several n_prototypes")
    if isinstance(search, Gradient) and isinstance(problem, Problem):
        search = settled(problem, search)
    begin, planned = time.perf_counter(), sum(rounds(search, np.size(low)))
    tunings: list[Tuning] = []
    stopped: Literal["finished", "seconds", "interrupted"] = "finished"
    spent = 0.0
    for m in numbers:
        before, spent = spent, time.perf_counter() - begin
        if growing and _is_flat(tunings):
            break
        if growing and tunings and spent + GROWTH * (spent - before) > max_seconds:
            stopped = "seconds"
            break
        start = tunings[-1] if tunings and m > WHOLE_RANGE * numbers[-1] else search.start
        if tunings and spent > max_seconds:
            stopped = "seconds"
            break

        def show(done: int, _: int, best: float) -> None:
            if progress is not None:
                earlier = sum(len(tuned.history) for tuned in tunings)
                rest = planned * (len(numbers) - len(tunings))
                least = min([best, *(tuned.score for tuned in tunings)])
                progress(earlier + done, earlier + rest, least)

        try:
            tuned = tune(
                dataclasses.replace(problem, points=problem.points[:m]),
                key=key,
                metric=metric,
                low=low,
                high=high,
                C=C,
                decoding=decoding,
                search=dataclasses.replace(search, start=start),
                max_seconds=max(0.0, max_seconds - spent),
                progress=show,
            )
        except KeyboardInterrupt:
            if not tunings:
                raise
            stopped = "interrupted"
            break
        tunings.append(tuned)
        stopped = tuned.stopped
        if stopped != "finished":
            break
    errors = np.array([tuned.score for tuned in tunings])
    spread = np.array([tuned.standard_error for tuned in tunings])
    return SizeCurve(
        sizes=np.array(numbers[: len(tunings)]),
        errors=errors,
        standard_errors=spread,
        chosen=smallest_within(errors, spread, tolerance),
        metric=metric,
        tunings=ShortList(tunings),
        stopped=stopped,
    )


def _is_flat(tunings: Sequence[Tuning]) -> bool:
    """Whether the last size does no better than the one before."""
    if len(tunings) < 2:
        return False
    before, last = tunings[-2:]
    return bool(last.score >= before.score - 0.1 * np.nan_to_num(before.standard_error))


def smallest_within(
    errors: Float[np.ndarray, " k"], standard_errors: Float[np.ndarray, " k"], tolerance: float
) -> int:
    """The first place whose error exceeds the least by at most `tolerance` of its standard errors.

    A tolerance of 0 takes the least error, by however little it is so: the rule of De Brabanter
    2010, Section 5. 1 is the one-standard-error rule (Breiman et al. 1984), for models as sparse as
    the folds cannot tell from the best.
    """
    best = int(np.argmin(errors))
    return int(np.argmax(errors <= errors[best] + tolerance * standard_errors[best]))
