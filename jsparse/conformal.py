"""Prediction intervals and sets from the held-out errors of a machine.

The methods are split conformal prediction (Papadopoulos et al. 2002), cross-conformal intervals and
sets, CV+ and jackknife+ (Barber et al. 2021; Romano et al. 2020), and conformalised quantile
regression (Romano, Patterson and Candes 2019), in NumPy or JAX. They turn centres or quantiles into
intervals, and scores of classes into sets.

A model keeps some hundred quantiles of the errors instead of one error for each row, see
`conformal_scores`.
"""

import dataclasses
import functools
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ._numerics import is_concrete
from ._repr import short_repr
from .expansion import KernelExpansion
from .plain import Cast, jax_expansion, plain_expansion
from .predictor import conformal as plain_conformal
from .predictor.conformal import intervals as intervals
from .predictor.conformal import margin_deficit as margin_deficit
from .predictor.conformal import outermost
from .predictor.conformal import rank_of as rank_of
from .predictor.conformal import sets as sets
from .predictor.machine import Machine

Guarantee = Literal["held out", "folds", "none"]


class ConformalScores(eqx.Module):
    """The errors of machines on held-out rows.

    Attributes:
        errors: the `errors_of_numbers`, shape `q` or `q c`, or the `errors_of_scores`, shape `q`.
        fold: number of the fold whose machine gave the error, shape `q`; None without machines.
        machines: one for each fold, as an expansion with a column for each fold and each output of
            the model, fold by fold. Its inputs are scaled like the model's inputs.
        counts: number of rows that each error represents, shape `q`. No such row had a larger
            error. None for one row each.
        held_out: whether the model was fitted without the rows (static).
    """

    errors: Float[Array, " q *c"] | Float[np.ndarray, " q *c"]
    fold: Int[Array, " q"] | Int[np.ndarray, " q"] | None = None
    machines: KernelExpansion | None = None
    counts: Int[Array, " q"] | Int[np.ndarray, " q"] | None = None
    held_out: bool = eqx.field(static=True, default=False)

    __repr__ = short_repr

    @property
    def guarantee(self) -> Guarantee:
        """Return on which rows the guarantee of intervals and sets is based.

        - "held out": rows that the model was not fitted to.
        - "folds": the folds, of which each has a machine fitted without it.
        - "none": nothing is guaranteed.
        """
        if self.held_out:
            return "held out"
        return "none" if self.machines is None else "folds"

    @property
    def n_rows(self) -> int:
        """Return the number of rows whose errors are known; raise ValueError for a traced model."""
        if self.counts is None:
            return len(self.errors)
        if not is_concrete(self.counts):
            raise ValueError(
                "model: expected a model that the traced function closes over, because the ranks "
                "of errors are whole numbers that depend on its counts; got a traced model"
            )
        return int(np.sum(np.asarray(self.counts)))


def errors_of_numbers(
    values: Float[np.ndarray, "n ..."], targets: Shaped[np.ndarray, " n *c"]
) -> Float[np.ndarray, " n *c"]:
    """Return the absolute errors of held-out predictions, shape `n *c`.

    If the values are several sorted quantiles of one target, shape `n l`, return the distance of
    the target from the band between the outermost two, negative inside (Romano et al. 2019, eq. 6).
    """
    truth = np.asarray(targets, float)
    low, high = outermost(np.asarray(values, float), truth.ndim)
    return np.maximum(low - truth, truth - high).astype(values.dtype)


def errors_of_scores(
    scores: Float[np.ndarray, " n *k"], numbers: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return, for each row, the best score of the other classes less the true class's score.

    The scores are held-out scores; `numbers` are the rows' true classes. See `margin_deficit`.
    """
    return np.take_along_axis(margin_deficit(scores), numbers[:, None], axis=1)[:, 0]


@functools.cache
def kept_ranks(n: int) -> tuple[int, ...]:
    """Return the increasing ranks of the n sorted errors to keep, at most `90 log10(n) + 90`.

    They are the last rank, and the ranks that `rank_of` gives for each coverage whose complement `1
    - coverage` has two significant digits (0.99, .., 0.10, 0.099, .., 0.010, 0.0099, ..).
    """
    ranks, scale = {n}, 100
    while 99 * (n + 1) >= scale:
        ranks |= {n + 1 - digits * (n + 1) // scale for digits in range(10, 100)}
        scale *= 10
    return tuple(sorted(rank for rank in ranks if 1 <= rank <= n))


def conformal_scores(
    errors: Float[np.ndarray, " n *c"],
    fold: Int[np.ndarray, " n"] | None = None,
    machines: KernelExpansion | None = None,
    *,
    held_out: bool = False,
) -> ConformalScores:
    """Return a few hundred quantiles of the errors, separately for each fold's machine.

    Every other error is replaced by the next larger quantile. So intervals and sets are never
    smaller than with all errors, and the guarantee still holds. Up to 99 rows, of each fold if
    there are machines, all errors are kept. `ConformalScores` describes the arguments.
    """
    machine_numbers = np.zeros(len(errors), np.int32) if fold is None else fold
    order = np.argsort(machine_numbers, kind="stable")
    numbers, starts = np.unique(machine_numbers[order], return_index=True)
    parts, counts = [], []
    for part in np.split(errors[order], starts[1:]):
        ranks = np.array(kept_ranks(len(part)), np.int32)
        parts.append(np.sort(part, axis=0)[ranks - 1])
        counts.append(np.diff(ranks, prepend=np.int32(0)))
    if fold is not None:
        fold = np.repeat(numbers, [len(part) for part in parts]).astype(np.int32)
    return ConformalScores(np.concatenate(parts), fold, machines, np.concatenate(counts), held_out)


def plain_scores(
    conformal: ConformalScores | None, machine: Machine
) -> plain_conformal.ConformalScores | None:
    """Convert conformal scores to NumPy; the folds' machines scale their inputs as `machine` does.

    Raise ValueError for a kernel that is not one of this package's.
    """
    if conformal is None:
        return None
    errors, counts = np.asarray(conformal.errors), conformal.counts
    counts = np.ones(len(errors), np.int32) if counts is None else np.asarray(counts)
    if conformal.machines is None:
        return plain_conformal.ConformalScores(errors, counts, held_out=conformal.held_out)
    machines = dataclasses.replace(plain_expansion(conformal.machines), scaling=machine.scaling)
    return plain_conformal.ConformalScores(
        errors, counts, np.asarray(conformal.fold), machines, conformal.held_out
    )


def jax_scores(
    conformal: plain_conformal.ConformalScores | None, cast: Cast
) -> ConformalScores | None:
    """Convert conformal scores to JAX; the folds' machines then take inputs in scaled units.

    `cast` returns the JAX array of a NumPy array, given its name and values.
    """
    if conformal is None:
        return None
    errors = np.asarray(cast("conformal.errors", conformal.errors))
    machines = conformal.machines
    if machines is not None:
        unscaled = dataclasses.replace(machines, scaling=None)
        machines = jax_expansion(unscaled, lambda name, a: cast(f"conformal.{name}", a))
    return ConformalScores(errors, conformal.fold, machines, conformal.counts, conformal.held_out)
