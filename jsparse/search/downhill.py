"""A walk downhill on a lattice, one axis after the other, with few evaluations."""

import math
from collections.abc import Callable, Sequence

Point = tuple[int, ...]
Step = tuple[int, int]  # an axis, and a length of at least 1
# A neighbour is tried only if the parabola's minimum is farther than this from the point, in steps.
# From half a step on, the neighbour is nearer to the minimum. The limit is lower, as the errors may
# be estimates, see `race`, and so may the minimum.
_MINIMUM_DISTANCE = 0.25


class Walk:
    """A walk from one lattice point to the next, as long as the error falls.

    Along an axis the smaller coordinate is tried first. If the error falls there, the larger
    coordinate is not tried. Then the errors at the last point and at its two neighbours define a
    parabola. If the next step is half as long, the minimum of the parabola tells which neighbour to
    evaluate: the one on its side, or neither if it is close.

    Args:
        error: returns the error at a point; infinity or NaN where there is none. It must remember
            the errors, as the walk evaluates some points several times.
    """

    def __init__(self, error: Callable[[Point], float]) -> None:
        self._error = error
        # For each step, where its parabola is least, in steps from the point; NaN if nowhere.
        self._minima: dict[Step, float] = {}

    def descend(self, point: Point, steps: Sequence[Step]) -> Point:
        """Walk from `point` along the axis of each step in turn; return the last point."""
        for step in steps:
            begin, point = point, self._along(point, step)
            if point != begin:  # the other parabolas were measured elsewhere
                self._minima = {step: self._minima[step]}
        return point

    def _along(self, point: Point, step: Step) -> Point:
        """Repeat the step, or the opposite step, while the error falls; return the last point."""
        axis, length = step
        begin, expected = point, 2 * self._minima.get((axis, 2 * length), math.nan)
        directions = _directions(expected)
        for sign in directions:
            while self._error(_moved(point, step, sign)) < self._error(point):
                point = _moved(point, step, sign)
            if point != begin:
                break
        if point != begin or len(directions) == 2:  # both neighbours are evaluated
            left, middle, right = (self._error(_moved(point, step, sign)) for sign in (-1, 0, 1))
            expected = _minimum(left, middle, right)
        self._minima[step] = expected
        return point


def _directions(minimum: float) -> tuple[int, ...]:
    """Return the directions to try, given where the minimum is expected, in steps; NaN if unknown.

    If both directions are to be tried, the smaller coordinate comes first.
    """
    if math.isnan(minimum):
        return (-1, 1)
    if abs(minimum) <= _MINIMUM_DISTANCE:
        return ()
    return (1 if minimum > 0 else -1,)


def _minimum(left: float, middle: float, right: float) -> float:
    """Return where the parabola through values at -1, 0 and 1 is least; NaN if nowhere."""
    curvature = left - 2 * middle + right
    if not (math.isfinite(curvature) and curvature > 0):
        return math.nan
    return (left - right) / curvature / 2


def _moved(point: Point, step: Step, sign: int) -> Point:
    axis, length = step
    return (*point[:axis], point[axis] + sign * length, *point[axis + 1 :])
