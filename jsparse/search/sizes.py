"""The error over the number of prototypes, and the smallest number that is good enough."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._arguments import increasing, real
from .._repr import ShortList, short_repr
from .._types import KeyLike
from ..machines.method import Metric
from ..machines.stages import Chosen, size_stages, smallest_within
from ..multiclass import Decoding
from .problem import Problem
from .run import Progress, Stopped, Tuning
from .strategies import Profile, Search
from .tune import tune_stages


class SizeCurve(NamedTuple):
    """Cross-validated errors of machines with more and more prototypes, and the one chosen."""

    sizes: Int[np.ndarray, " k"]  # numbers of prototypes
    errors: Float[np.ndarray, " k"]
    standard_errors: Float[np.ndarray, " k"]  # of the errors, from their spread over the folds
    chosen: int  # place among the sizes
    metric: Metric  # of the errors
    tunings: Sequence[Tuning] = ()  # of each size, where each has a kernel and a C of its own
    fold_errors: Float[np.ndarray, "v k"] | None = None  # of a path
    stopped: Stopped = "finished"
    # In the metric by which the size was chosen, where that is another; see `Method.criterion`.
    chosen_by: "SizeCurve | None" = None

    __repr__ = short_repr

    @property
    def size(self) -> int:
        """The number of prototypes chosen."""
        return int(self.sizes[self.chosen])

    def smallest_within(self, tolerance: float) -> int:
        """Return the fewest prototypes whose error is within so many standard errors of the best.

        0.1 is the choice of Karsmakers 2011, Section 4.5, 1 the one-standard-error rule. The errors
        are those by which the size was chosen, see `chosen_by`.

        Raises:
            ValueError: for a negative tolerance.
        """
        if self.chosen_by is not None:
            return self.chosen_by.smallest_within(tolerance)
        real("tolerance", tolerance, 0.0)
        return int(self.sizes[smallest_within(self.errors, self.standard_errors, tolerance)])


def curve_of(chosen: Chosen, metric: Metric) -> SizeCurve:
    """Return the curve of separately tuned sizes."""
    tunings = [outcome.tuning for outcome in chosen.sizes]
    return SizeCurve(
        sizes=np.array([len(outcome.problem.points) for outcome in chosen.sizes]),
        errors=np.array([tuning.score for tuning in tunings]),
        standard_errors=np.array([tuning.standard_error for tuning in tunings]),
        chosen=chosen.place,
        metric=metric,
        tunings=ShortList(tunings),
        stopped=chosen.outcome.tuning.stopped,
    )


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
    stop_when_flat: bool = False,
) -> SizeCurve:
    """Tune machines of several sizes, and choose one of them by cross-validation.

    The heuristic of De Brabanter 2010, Section 5, takes the best of k numbers of prototypes. The
    paper judges by the test set; here it is cross-validation, with the same folds for all sizes,
    and each size has its own kernel and `C`; see `machines.stages.size_stages`.

    Args:
        problem: see `tuning_problem`; with the prototypes of the largest size, of which each size
            takes the first ones, such as from `prototypes.interleaved`.
        sizes: numbers of prototypes, increasing.
        key: decides the search.
        metric: see `tune`; so are `low`, `high`, `C`, `decoding` and `search`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        tolerance: see `smallest_within`.
        decoding: of several classes.
        search: of each size.
        max_seconds: no evaluation starts later, and the remaining sizes are left out.
        progress: called as `progress(done, planned, best_score)`.
        stop_when_flat: end at a size that improves on the previous one by less than a tenth of its
            standard error, or before a size that would take longer than is left, at four times the
            time of the previous one.

    Ctrl-C stops the search and keeps the sizes tuned so far.

    Raises:
        ValueError: as `tune`, for sizes that do not increase or exceed the number of prototypes, or
            for a negative tolerance.
        NumericalError: if no evaluation of the first size gave an error that can be trusted.
    """
    if problem.points is None:
        raise ValueError("problem: expected one with prototypes, got one without (the dual)")
    numbers = increasing("n_prototypes", sizes, len(problem.points), "the number of prototypes")
    real("tolerance", tolerance, 0.0)
    problem = dataclasses.replace(
        problem, C=np.asarray(C, float), metric=metric, decoding=decoding, varied=search.varied,
        box=(low, high),
    )  # fmt: skip
    stages = size_stages(numbers, tolerance, stop_when_flat, problem, search)
    chosen = tune_stages(
        stages, key=key, history=search.history, max_seconds=max_seconds, progress=progress
    )
    return curve_of(chosen, metric)
