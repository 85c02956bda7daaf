"""Real targets in units of their own spread, so that their squares are in floating-point range."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from .._repr import ShortList, short_repr
from .._status import PrecisionWarning
from ..expansion import KernelExpansion
from ..machines.family import Family
from ..machines.method import Metric
from ..search.history import Evaluation
from ..search.run import Progress, Tuning
from ..search.sizes import SizeCurve
from ..search.strategies import Search
from ..solvers.robust import MEDIAN_TO_DEVIATION


class TargetUnits(NamedTuple):
    """A machine is fitted to `(y - offset) / unit`, with `unit = fraction * 2**exponent`.

    The intercept takes up the offset. A ridge machine is the same in any units, and so are its
    scores, times the square of the unit; a power of two changes no digit of them.
    """

    offset: float | Float[np.ndarray, " c"] = 0.0  # of each target
    fraction: float = 1.0
    exponent: int = 0

    __repr__ = short_repr

    @property
    def unit(self) -> float:
        """What one unit of the machine is for the caller."""
        return float(np.ldexp(self.fraction, self.exponent))

    def apply(
        self, y: Shaped[np.ndarray, "n *c"], weights: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, "n *c"]:
        """Targets in the units of the machine, in float64; 0 for rows of weight 0."""
        y = np.asarray(y, float)
        if weights is not None:
            y = np.where(np.reshape(weights > 0, (-1, *[1] * (y.ndim - 1))), y, self.offset)
        # Scaled first: a difference of the largest numbers is out of range.
        y = np.ldexp(y, -self.exponent) - np.ldexp(self.offset, -self.exponent)
        return y / self.fraction

    def values(self, values: Float[np.ndarray, "n *c"]) -> Float[np.ndarray, "n *c"]:
        """Values of the machine in the units of the caller."""
        unit, offset = (np.asarray(a, values.dtype) for a in (self.unit, self.offset))
        return values * unit + offset

    def family(self, family: Family, powers: Mapping[str, int]) -> Family:
        """Return machines in the units of the caller.

        Args:
            family: in the units of the machine.
            powers: of the unit that diagnostics go with, see `Method.info_powers`.
        """
        info = {
            name: self._times_unit(np.asarray(value), powers[name]) if name in powers else value
            for name, value in family.info.items()
        }
        return family.rescaled(self.unit, self.offset, info)

    def expansion(self, expansion: KernelExpansion) -> KernelExpansion:
        """Return a machine in the units of the caller."""
        values = np.asarray(expansion.coefficients), np.asarray(expansion.intercept)
        unit, offset = (np.asarray(a, values[0].dtype) for a in (self.unit, self.offset))
        return dataclasses.replace(
            expansion,
            coefficients=jax.device_put(values[0] * unit),
            intercept=jax.device_put(values[1] * unit + offset),
        )

    def expansion_of_folds(self, expansion: KernelExpansion) -> KernelExpansion:
        """Return machines of several folds, fold by fold, in the units of the caller."""
        offsets = np.asarray(self.offset, float).reshape(-1)
        repeated = np.resize(offsets, np.asarray(expansion.intercept).size)
        return self._replace(offset=repeated).expansion(expansion)

    def _times_unit(self, values: Float[np.ndarray, "*b"], power: int) -> Float[np.ndarray, "*b"]:
        """Return values times a power of the unit; infinite where float64 does not reach."""
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.asarray(values, float) * self.fraction**power
            return np.asarray(np.ldexp(scaled, power * self.exponent))

    def scores(self, scores: Float[np.ndarray, "*b"], metric: Metric) -> Float[np.ndarray, "*b"]:
        """Return scores in the units of the caller; infinite where float64 does not reach."""
        return self._times_unit(scores, {"mse": 2, "mae": 1, "misclassification": 0}[metric])

    def tuning(self, tuned: Tuning, metric: Metric) -> Tuning:
        """The outcome of a search with its scores in the units of the caller."""
        score = float(self.scores(np.asarray(tuned.score), metric))
        # The smallest numbers have too few digits.
        if tuned.score > 0 and not 1e3 * np.finfo(float).smallest_subnormal <= score < np.inf:
            warnings.warn(
                f"{metric}: in units of these targets it is out of the range of float64, and given "
                f"as {score:g}; the model is sound; for scores take metric='mae' or other units",
                PrecisionWarning,
                stacklevel=3,
            )
        return tuned._replace(
            score=score,
            standard_error=float(self.scores(np.asarray(tuned.standard_error), metric)),
            history=self._evaluations(tuned.history, metric),
        )

    def curve(self, curve: SizeCurve) -> SizeCurve:
        """Errors of sizes in the units of the caller."""
        by_fold, metric, chosen_by = curve.fold_errors, curve.metric, curve.chosen_by
        return curve._replace(
            errors=self.scores(curve.errors, metric),
            standard_errors=self.scores(curve.standard_errors, metric),
            tunings=ShortList(self.tuning(tuned, metric) for tuned in curve.tunings),
            fold_errors=None if by_fold is None else self.scores(by_fold, metric),
            chosen_by=None if chosen_by is None else self.curve(chosen_by),
        )

    def search(self, search: Search, metric: Metric) -> Search:
        """The search with its history as it is in the units of the machine."""
        back = TargetUnits(fraction=1 / self.fraction, exponent=-self.exponent)
        history = search.history and back._evaluations(search.history, metric)
        return dataclasses.replace(search, history=history)

    @contextlib.contextmanager
    def of_errors(self, metric: Metric) -> Iterator[None]:
        """Evaluations that an error of a search brings along, in the units of the caller."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(AttributeError, TypeError):  # another's attribute
                error.history = self._evaluations(error.history, metric)  # type: ignore[attr-defined]
            raise

    def _evaluations(self, history: Sequence[Evaluation], metric: Metric) -> list[Evaluation]:
        return ShortList(
            e._replace(
                scores=self.scores(e.scores, metric),
                standard_errors=self.scores(e.standard_errors, metric),
            )
            for e in history
        )

    def progress(self, progress: Progress | None, metric: Metric) -> Progress | None:
        """Reports the best score in the units of the caller."""
        if progress is None:
            return None
        return lambda done, planned, best: progress(
            done, planned, float(self.scores(np.asarray(best), metric))
        )


def target_units(
    y: Shaped[np.ndarray, "n *c"],
    weights: Float[np.ndarray, " n"] | None,
    dtype: np.dtype,
    *,
    robust: bool = False,
) -> TargetUnits:
    """Units in which real targets are about zero and of size one.

    Args:
        y: targets, finite, shape `n`, or `n c`: each has an offset of its own, all have one unit.
        weights: row weights, shape `n`; rows of weight 0 have no say.
        dtype: of the machine, whose values must be in range.
        robust: the median and what the median deviation says of the standard deviation, so that
            outliers do not decide; else the mean, and a power of two near the standard deviation.

    Raises:
        ValueError: if the values of the machine would be out of the range of `dtype`.
    """
    y = np.asarray(y, float)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, float)
    y, w = y[w > 0], w[w > 0]
    largest = int(np.frexp(np.max(np.abs(y)))[1])
    y = np.ldexp(y, -largest)
    middle: Any = float(np.average(y, weights=w)) if y.ndim == 1 else np.average(y, 0, w)
    if robust:
        each = np.array([_median(column, w) for column in y.reshape(len(y), -1).T])
        middle = float(each[0]) if y.ndim == 1 else each
    apart = np.abs(y - middle)
    if y.ndim == 2:
        apart, w = apart.T.reshape(-1), np.tile(w, y.shape[1])
    if robust:
        spread = MEDIAN_TO_DEVIATION * _median(apart, w) or float(np.average(apart, weights=w))
    else:
        spread = math.sqrt(np.average(np.square(apart), weights=w))
    info = jnp.finfo(dtype)
    # Some digits of room on both sides: coefficients are smaller and larger than values.
    low, high = float(info.tiny) / float(info.eps), float(info.max) * float(info.eps)
    if spread > 8 * np.finfo(float).eps:
        fraction, exponent = (float(part) for part in np.frexp(spread))
        offset = np.ldexp(middle, largest)
        offset = offset if y.ndim == 2 else float(offset)
        units = TargetUnits(offset, fraction if robust else 1.0, largest + int(exponent))
        fits = low <= units.unit <= high
    else:  # what the rounding of their mean leaves of equal targets is no spread
        bound = int(np.log2(high))
        offset = np.ldexp(middle, largest)
        offset = offset if y.ndim == 2 else float(offset)
        units = TargetUnits(offset, 1.0, int(np.clip(largest, -bound, bound)))
        fits = True
    if not (fits and np.max(np.abs(units.offset)) <= float(info.max)):
        raise ValueError(
            f"y: expected targets with a mean and a spread that {jnp.dtype(dtype)} can hold "
            f"({low:.1g} to {high:.1g}), got mean {np.max(np.abs(units.offset)):.3g} and spread "
            f"{units.unit:.3g}; "
            "give X in float64, or y in other units"
        )
    largest_deviation = float(np.max(apart)) / max(spread, float(np.finfo(float).tiny))
    if fits and robust and not largest_deviation <= math.sqrt(float(info.max)):
        raise ValueError(
            f"y: expected targets whose squares {jnp.dtype(dtype)} can hold beside each other, got "
            f"one {largest_deviation:.1g} times the typical deviation"
        )
    return units


def _median(values: Float[np.ndarray, " n"], w: Float[np.ndarray, " n"]) -> float:
    """The smallest value up to which lies half of the weight."""
    order = np.argsort(values)
    reached = np.cumsum(w[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
