"""Scaling of real targets by their spread, so that their squares stay in floating-point range."""

import contextlib
import dataclasses
import math
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
from ..predictor.checks import warn_caller
from ..search.history import Evaluation
from ..search.run import Progress, Tuning
from ..search.sizes import SizeCurve
from ..search.strategies import Search
from ..solvers.robust import MEDIAN_TO_DEVIATION
from .inputs import warn_if_rounded

_POWERS: dict[Metric, int] = {"mse": 2, "mae": 1, "pinball": 1, "misclassification": 0}


class TargetUnits(NamedTuple):
    """The offset and unit of real targets: a machine is fitted to `(y - offset) / unit`.

    The unit is `fraction * 2**exponent`; a power of two causes no rounding. The machine's intercept
    takes up the offset. The unit does not change a ridge machine, except that squared errors are
    scaled by the square of the unit.
    """

    offset: float | Float[np.ndarray, " c"] = 0.0  # one for each target column
    fraction: float = 1.0
    exponent: int = 0

    __repr__ = short_repr

    @property
    def unit(self) -> float:
        """The machine's unit of the targets, in the caller's units."""
        return float(np.ldexp(self.fraction, self.exponent))

    def apply(
        self, y: Shaped[np.ndarray, " n *c"], weights: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, " n *c"]:
        """Return the caller's targets in the machine's units, in float64, with 0 at weight 0."""
        y = np.asarray(y, float)
        if weights is not None:
            y = np.where(np.reshape(weights > 0, (-1, *[1] * (y.ndim - 1))), y, self.offset)
        # Scale first, as the difference of two of the largest numbers would overflow.
        y = np.ldexp(y, -self.exponent) - np.ldexp(self.offset, -self.exponent)
        return y / self.fraction

    def values(self, values: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Return a machine's values, or its intercepts, in the caller's units."""
        unit, offset = (np.asarray(a, values.dtype) for a in (self.unit, self.offset))
        return np.asarray(values * unit + offset)

    def family(self, family: Family, powers: Mapping[str, int]) -> Family:
        """Return machines in the caller's units, with diagnostics scaled by powers of the unit.

        `powers` has the power of the unit for each diagnostic, see `Method.info_powers`.
        """
        scaled = {
            name: self._times_unit(family.info[name], power)
            for name, power in powers.items()
            if name in family.info
        }
        return family.rescaled(self.unit, self.offset, family.info | scaled)

    def expansion(self, expansion: KernelExpansion) -> KernelExpansion:
        """Return a machine in the caller's units, or the machines of several folds in one."""
        coefficients, intercept = map(np.asarray, (expansion.coefficients, expansion.intercept))
        units = self._replace(offset=np.resize(self.offset, intercept.shape))
        coefficients = coefficients * np.asarray(self.unit, coefficients.dtype)
        coefficients, intercept = jax.device_put((coefficients, units.values(intercept)))
        return dataclasses.replace(expansion, coefficients=coefficients, intercept=intercept)

    def _times_unit(self, values: Any, power: int) -> Float[np.ndarray, "*b"]:
        """Return values times a power of the unit; infinite where float64 overflows."""
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.asarray(values, float) * self.fraction**power
            return np.asarray(np.ldexp(scaled, power * self.exponent))

    def scores(self, scores: Any, metric: Metric) -> Float[np.ndarray, "*b"]:
        """Return scores in the caller's units; infinite where float64 overflows."""
        return self._times_unit(scores, _POWERS[metric])

    def tuning(self, tuned: Tuning, metric: Metric) -> Tuning:
        """Return the outcome of a search with scores in the caller's units.

        If the score is outside the range of float64, give a `PrecisionWarning`.
        """
        score = float(self.scores(tuned.score, metric))
        # Subnormal numbers below the threshold have fewer than three digits.
        if tuned.score > 0 and not 1e3 * np.finfo(float).smallest_subnormal <= score < np.inf:
            warn_caller(
                f"{metric}: the score in units of the targets is out of the range of float64, and "
                f"reported as {score:g}; the model is not affected; to get a score, take "
                "metric='mae' or targets in other units",
                PrecisionWarning,
            )
        return tuned._replace(
            score=score,
            standard_error=float(self.scores(tuned.standard_error, metric)),
            history=self._evaluations(tuned.history, metric),
        )

    def curve(self, curve: SizeCurve) -> SizeCurve:
        """Return the curve with errors in the caller's units."""
        fold_errors, metric, chosen_by = curve.fold_errors, curve.metric, curve.chosen_by
        return curve._replace(
            errors=self.scores(curve.errors, metric),
            standard_errors=self.scores(curve.standard_errors, metric),
            tunings=ShortList(self.tuning(tuned, metric) for tuned in curve.tunings),
            fold_errors=None if fold_errors is None else self.scores(fold_errors, metric),
            chosen_by=None if chosen_by is None else self.curve(chosen_by),
        )

    def search(self, search: Search, metric: Metric) -> Search:
        """Return the search with the scores of its history in the machine's units."""
        inverse = TargetUnits(fraction=1 / self.fraction, exponent=-self.exponent)
        history = search.history and inverse._evaluations(search.history, metric)
        return dataclasses.replace(search, history=history)

    @contextlib.contextmanager
    def converting_histories(self, metric: Metric) -> Iterator[None]:
        """Convert the `history` of an error raised in the block to the caller's units."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(AttributeError, TypeError):  # the error has no history
                error.history = self._evaluations(error.history, metric)  # type: ignore[attr-defined]
            raise

    def _evaluations(self, history: Sequence[Evaluation], metric: Metric) -> list[Evaluation]:
        """Return evaluations with scores in the caller's units."""
        return ShortList(
            e._replace(
                scores=self.scores(e.scores, metric),
                standard_errors=self.scores(e.standard_errors, metric),
                fold_scores=self.scores(e.fold_scores, metric),
            )
            for e in history
        )

    def progress(self, progress: Progress | None, metric: Metric) -> Progress | None:
        """Return a progress callback that accepts scores in the machine's units."""
        if progress is None:
            return None
        return lambda completed, planned, best: progress(
            completed, planned, float(self.scores(best, metric))
        )


def target_units(
    y: Shaped[np.ndarray, " n *c"],
    weights: Float[np.ndarray, " n"] | None,
    dtype: np.dtype,
    *,
    robust: bool = False,
) -> TargetUnits:
    """Return units in which real targets are centred and have a spread near 1.

    Each column has its own offset, the mean, and all columns share one unit, a power of two near
    the standard deviation. If `robust`, the offset is the median, and the unit is the standard
    deviation estimated from the median absolute deviation. If the median absolute deviation is 0,
    the unit is the mean absolute deviation. If all targets are equal, the unit is a power of two
    near their magnitude.

    If `dtype` rounds the targets to few steps, warn, see `warn_if_rounded`. If the machine's
    values, or with `robust` their squares, would be outside the range of `dtype`, raise a
    `ValueError`.
    """
    y = np.asarray(y, float)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, float)
    y, w = y[w > 0], w[w > 0]
    largest = int(np.frexp(np.max(np.abs(y)))[1])
    y = np.ldexp(y, -largest)
    middle: Any = np.average(y, 0, w)
    if robust:
        middle = np.apply_along_axis(_median, 0, y, w)
    deviations = np.abs(y - middle)
    if y.ndim == 2:
        deviations, w = deviations.T.reshape(-1), np.tile(w, y.shape[1])
    if robust:
        spread = MEDIAN_TO_DEVIATION * _median(deviations, w) or np.average(deviations, weights=w)
    else:
        spread = math.sqrt(np.average(np.square(deviations), weights=w))
    info = jnp.finfo(dtype)
    # Leave a factor of 1 / eps on both sides, as coefficients can be smaller or larger than values.
    low, high = float(info.tiny) / float(info.eps), float(info.max) * float(info.eps)
    # Equal targets have a spread of a few roundings, as their mean is rounded.
    equal, bound = spread <= 8 * np.finfo(float).eps, int(np.log2(high))
    fraction, exponent = (1.0, 0) if equal else map(float, np.frexp(spread))
    exponent = int(np.clip(largest, -bound, bound) if equal else largest + exponent)
    offset = np.ldexp(middle, largest)
    units = TargetUnits(
        offset if y.ndim == 2 else float(offset), fraction if robust else 1.0, exponent
    )
    in_range = equal or low <= units.unit <= high
    if not (in_range and np.max(np.abs(units.offset)) <= float(info.max)):
        raise ValueError(
            f"y: expected targets with a mean and a spread that {jnp.dtype(dtype)} can hold "
            f"({low:.1g} to {high:.1g}), got mean {np.max(np.abs(units.offset)):.3g} and spread "
            f"{units.unit:.3g}; give X in float64, or y in other units"
        )
    largest_deviation = float(np.max(deviations)) / max(spread, float(np.finfo(float).tiny))
    if robust and not largest_deviation <= math.sqrt(float(info.max)):
        raise ValueError(
            f"y: expected deviations whose squares, in units of the typical deviation, "
            f"{jnp.dtype(dtype)} can hold, got a deviation {largest_deviation:.1g} "
            "times the typical deviation"
        )
    if not equal:
        warn_if_rounded("y", np.ldexp(y, largest), dtype)
    return units


def _median(values: Float[np.ndarray, " n"], w: Float[np.ndarray, " n"]) -> float:
    """Return the weighted median: the smallest value up to which at least half the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(w[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
