"""How many prototypes: the error over a few sizes, and the smallest that is good enough."""

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._arguments import real, whole
from .._types import KeyLike
from ..multiclass import Decoding
from ..validation.cross_validation import Loss, Metric
from .problem import Problem
from .strategies import Method, rounds
from .tune import Progress, Tuning, tune

# Sizes up to this part of the largest are tuned over the whole range: at the cube (square) of the
# size, ten kernels for them cost less than one for the largest.
WHOLE_RANGE = 0.25

# Standard errors by which the error of a smaller machine may exceed the least.
SIZE_TOLERANCE = 1.0


class SizeChoice(NamedTuple):
    """Cross-validated errors of machines with more and more prototypes, and the one chosen."""

    sizes: Int[np.ndarray, " k"]  # numbers of prototypes
    errors: Float[np.ndarray, " k"]  # each with the kernel and the C that are best for the size
    standard_errors: Float[np.ndarray, " k"]  # of the errors, from their spread over the folds
    tunings: list[Tuning]  # of each size
    chosen: int  # place among the sizes
    stopped: Literal["finished", "seconds", "interrupted"]

    @property
    def size(self) -> int:
        """The number of prototypes chosen."""
        return int(self.sizes[self.chosen])

    @property
    def tuning(self) -> Tuning:
        """Of the size chosen."""
        return self.tunings[self.chosen]._replace(stopped=self.stopped)


def tune_sizes(
    problem: Problem,
    sizes: Sequence[int],
    *,
    key: KeyLike,
    metric: Metric,
    low: Float[np.ndarray, " p"],
    high: Float[np.ndarray, " p"],
    C: Float[np.ndarray, " s"],
    tolerance: float = SIZE_TOLERANCE,
    decoding: Decoding = "loss",
    loss: Loss = "squared",
    method: Method = "profile",
    max_evaluations: int | None = None,
    max_seconds: float = math.inf,
    progress: Progress | None = None,
) -> SizeChoice:
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
        metric: see `tune`; so are `low`, `high`, `C`, `decoding`, `loss` and `method`.
        low: logs of the lower bounds of the tuned leaves, shape `p`.
        high: logs of the upper bounds, shape `p`.
        C: weights of the data-fit term, shape `s`.
        tolerance: see `smallest_within`.
        decoding: of several classes.
        loss: of the machine.
        method: "profile" or "csa".
        max_evaluations: budget of each size.
        max_seconds: no evaluation starts later, and sizes not come to are left out.
        progress: called as `progress(done, planned, best_score)`; a local search takes fewer than
            planned.

    Ctrl-C stops the search and keeps the sizes looked at so far.

    Raises:
        ValueError: as `tune`, or if the sizes do not increase or there are fewer prototypes, or for
            a negative tolerance.
        NumericalError: if for some size no evaluation gave an error that can be trusted.
    """
    if problem.prototypes is None:
        raise ValueError("problem: expected one with prototypes, got one without (the dual)")
    numbers = check_sizes(sizes, len(problem.prototypes), "the number of prototypes")
    check_tolerance(tolerance)
    begin, planned = time.perf_counter(), sum(rounds(method, np.size(low), max_evaluations))
    tunings: list[Tuning] = []
    stopped: Literal["finished", "seconds", "interrupted"] = "finished"
    for m in numbers:
        spent = time.perf_counter() - begin
        start = tunings[-1] if tunings and m > WHOLE_RANGE * numbers[-1] else None
        if tunings and spent > max_seconds:
            stopped = "seconds"
            break

        def show(done: int, _: int, best: float) -> None:
            if progress is not None:
                before = sum(len(tuned.history) for tuned in tunings)
                rest = planned * (len(numbers) - len(tunings))
                least = min([best, *(tuned.score for tuned in tunings)])
                progress(before + done, before + rest, least)

        try:
            tuned = tune(
                dataclasses.replace(problem, prototypes=problem.prototypes[:m]),
                key=key,
                metric=metric,
                low=low,
                high=high,
                C=C,
                decoding=decoding,
                loss=loss,
                method=method,
                max_evaluations=max_evaluations,
                max_seconds=max(0.0, max_seconds - spent),
                progress=show,
                start=start,
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
    return SizeChoice(
        sizes=np.array(numbers[: len(tunings)]),
        errors=errors,
        standard_errors=spread,
        tunings=tunings,
        chosen=smallest_within(errors, spread, tolerance),
        stopped=stopped,
    )


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


def check_sizes(sizes: Sequence[int], most: int, what: str) -> list[int]:
    """Increasing whole numbers of at least 1."""
    if not isinstance(sizes, Sequence | np.ndarray) or isinstance(sizes, str):
        raise ValueError(f"n_prototypes: expected several numbers, got {sizes!r}")
    numbers = [whole("n_prototypes", m, 1, most, what) for m in sizes]
    if not numbers or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise ValueError(f"n_prototypes: expected increasing numbers, at least one, got {numbers}")
    return numbers


def check_tolerance(tolerance: float) -> None:
    """Raise unless it is a number of at least 0."""
    real("tolerance", tolerance, 0.0)
