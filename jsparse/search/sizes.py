"""The error as a function of the number of prototypes, and the choice of the number."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._arguments import increasing, real
from .._repr import ShortList, short_repr
from .._types import KeyLike
from ..machines.method import METRIC_NAMES, Metric
from ..machines.stages import Chosen, size_stages, smallest_within
from ..multiclass import Decoding
from .problem import Problem
from .run import Progress, Stopped, Tuning
from .strategies import Profile, Search
from .tune import tune_stages


class SizeCurve(NamedTuple):
    """Cross-validated errors of machines of increasing size, and the size that was chosen."""

    sizes: Int[np.ndarray, " k"]  # numbers of prototypes, increasing
    errors: Float[np.ndarray, " k"]  # cross-validated errors
    standard_errors: Float[np.ndarray, " k"]  # of the errors, from their spread over the folds
    chosen: int  # index of the chosen size
    metric: Metric  # of the errors
    tunings: Sequence[Tuning] = ()  # one for each size, if sizes are tuned separately
    fold_errors: Float[np.ndarray, "v k"] | None = None  # by fold, if one fit gives all sizes
    stopped: Stopped = "finished"  # why the search ended
    # The curve in the metric that chose the size, if it differs from `metric`; see
    # `Method.criterion`.
    chosen_by: "SizeCurve | None" = None

    __repr__ = short_repr

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, most: int = 8) -> list[str]:
        """Return a line for each size with its error, at most `most` sizes and the chosen one."""
        count, name = len(self.sizes), METRIC_NAMES[self.metric]
        shown = range(count) if count <= most else np.geomspace(1, count, most).astype(int) - 1
        lines = []
        for i in sorted({*shown, self.chosen}):
            error = f"{self.errors[i]:.4g}"
            if np.isfinite(self.standard_errors[i]):  # not known from one fold
                error += f" +- {self.standard_errors[i]:.2g}"
            mark = " chosen" if i == self.chosen else ""
            lines.append(f"{self.sizes[i]}: CV {name} {error}{mark}")
        return lines

    @property
    def size(self) -> int:
        """The number of prototypes chosen."""
        return int(self.sizes[self.chosen])

    def smallest_within(self, tolerance: float) -> int:
        """Return the smallest number of prototypes whose error is close enough to the least.

        If there is a curve `chosen_by`, its errors are compared.

        Args:
            tolerance: the most by which the error may exceed the least error, in standard errors of
                the least error. Karsmakers 2011, Section 4.5, takes 0.1; 1 is the
                one-standard-error rule.

        Raises:
            ValueError: for a negative tolerance.
        """
        if self.chosen_by is not None:
            return self.chosen_by.smallest_within(tolerance)
        real("tolerance", tolerance, 0.0)
        return int(self.sizes[smallest_within(self.errors, self.standard_errors, tolerance)])


def curve_of(chosen: Chosen, metric: Metric) -> SizeCurve:
    """Return the curve of sizes that were tuned separately; their scores are in `metric`."""
    tunings = [outcome.tuning for outcome in chosen.outcomes]
    return SizeCurve(
        sizes=np.array(chosen.sizes),
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

    De Brabanter 2010, Section 5, compares several numbers of prototypes on the test set. This
    function compares them by cross-validation, with the same folds for all sizes. Each size has its
    own kernel and `C`; see `machines.stages.size_stages`.

    Args:
        problem: see `tuning_problem`, with the prototypes of the largest size. A machine of size
            `m` has the first `m` of these prototypes.
        sizes: numbers of prototypes, increasing.
        key: random seed of the search.
        metric: the error to minimise, see `cross_validate`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        tolerance: choose the smallest size whose error exceeds the least error by at most this many
            standard errors of the least error.
        decoding: how the values of the binary problems give a class, see `multiclass.distances`.
        search: the search for each size, see `tune`.
        max_seconds: time limit; no evaluation starts later, and the remaining sizes are skipped.
        progress: called as `progress(done, planned, best_score)` for each evaluation.
        stop_when_flat: stop after a size that improves on the previous size by less than a tenth of
            the previous size's standard error. Also stop if the time left is less than four times
            the time of the last size, the time expected for the next one.

    Ctrl-C stops the search and keeps the sizes tuned so far.

    Raises:
        ValueError: as `tune`; also for a problem without prototypes, sizes that do not increase or
            exceed the number of prototypes, or a negative `tolerance`.
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
    outcome = tune_stages(
        stages, key=key, history=search.history, max_seconds=max_seconds, progress=progress
    )
    return curve_of(outcome, metric)
