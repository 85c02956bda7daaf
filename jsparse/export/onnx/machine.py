"""The values of the machine as ONNX formulas."""

import functools
from typing import Any

import numpy as np

from ...predictor.machine import Machine, NormalScores, Standardization
from .graph import Tensor
from .kernels import cross_gram


def values(machine: Machine, X: Tensor) -> Tensor:
    """Return the values of a machine at raw inputs `X (n, d)`, shape `n c`."""
    m, d = machine.prototypes.shape
    rows = scaled(machine.scaling, X)
    gram = cross_gram(machine.kernel, rows, X.graph.constant(machine.prototypes), d)
    return gram @ machine.coefficients.reshape(m, -1) + machine.intercept.reshape(-1)


@functools.singledispatch
def scaled(scaling: Any, X: Tensor) -> Tensor:
    """Return inputs in the units of the prototypes."""
    assert scaling is None
    return X


@scaled.register
def _(scaling: Standardization, X: Tensor) -> Tensor:
    shift, scale = (array.astype(X.graph.dtype) for array in (scaling.shift, scaling.scale))
    return (X - shift) / scale


@scaled.register
def _(scaling: NormalScores, X: Tensor) -> Tensor:
    graph = X.graph
    knots, scores = (
        graph.constant(array.astype(graph.dtype)) for array in (scaling.knots, scaling.scores)
    )
    # If c knots are at or below a value, its segment runs from knot c - 1 to knot c. Below the
    # first and above the last knot, both ends are the same knot and the slope is 0. For an infinite
    # value the product with this slope is NaN.
    counts = np.arange(len(scaling.knots) + 1)
    start, end = np.maximum(counts - 1, 0), np.minimum(counts, len(scaling.knots) - 1)
    run, rise = (points.rows(end) - points.rows(start) for points in (knots, scores))
    slopes = rise / graph.op("Where", graph.op("Equal", run, 0.0), 1.0, run)
    reached = graph.op("GreaterOrEqual", X.with_axis(1), knots)  # n k d
    count = reached.cast(np.int64).reduced("ReduceSum", 1)
    x, y, slope = (
        graph.op("GatherElements", table, count, axis=0)
        for table in (knots.rows(start), scores.rows(start), slopes)
    )
    return y + (X - x) * slope
