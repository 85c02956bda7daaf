"""The values of the machine as ONNX formulas."""

import functools
from typing import Any

import numpy as np

from ...predictor.machine import Machine, NormalScores, Standardization
from .graph import Tensor
from .kernels import cross_gram
from .rows import Points, Rows


def values(machine: Machine, X: Tensor) -> Tensor:
    """Return the values of a machine at raw inputs `X (n, d)`, shape `n c`."""
    Z = machine.prototypes
    points = Points(Z, X.graph.constant(Z))
    gram = cross_gram(machine.kernel, scaled(machine.scaling, X), points)
    coefficients = machine.coefficients.reshape(len(Z), -1)
    return X.graph.op("Gemm", gram, coefficients, machine.intercept.reshape(-1))


@functools.singledispatch
def scaled(scaling: Any, X: Tensor) -> Rows:
    """Return raw inputs `X (n, d)` in the units of the prototypes; unscaled if scaling is None."""
    assert scaling is None
    return Rows(X)


@scaled.register
def _(scaling: Standardization, X: Tensor) -> Rows:
    # The model rounds both to its dtype before it computes.
    shift, scale = (a.astype(X.graph.dtype).astype(float) for a in (scaling.shift, scaling.scale))
    return Rows(X, shift, scale)


@scaled.register
def _(scaling: NormalScores, X: Tensor) -> Rows:
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
    return Rows(y + (X - x) * slope)
