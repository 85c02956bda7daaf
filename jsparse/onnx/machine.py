"""The machine, its decisions and probabilities as ONNX formulas."""

import functools
from typing import Any

import numpy as np

from ..predictor.machine import Machine, NormalScores, Standardization
from ..predictor.predictor import Predictor
from .graph import Graph, Tensor
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
    # The line of a value with c knots at or below it starts at knot c - 1 and ends at knot c. It
    # is constant below the first knot and above the last, where both are the same knot. Infinite
    # values times its slope 0 are NaN.
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


def scores(predictor: Predictor, X: Tensor) -> Tensor:
    """Return the scores of a classifier, shape `n` for two classes, else `n k`."""
    graph, f = X.graph, values(predictor.machine, X)
    if predictor.code is None:
        return graph.op("Squeeze", f, np.array([1]))
    code = graph.constant(predictor.code.astype(np.int8)).cast()
    problems = predictor.code.shape[1]
    products = graph.op("Gemm", f, code, transB=1)
    # Minus the mean of (1 - code f)^2 over the problems.
    used = graph.op("Abs", code)
    squares = graph.op("Gemm", f * f, used, products, alpha=-1.0, beta=2.0, transB=1)
    minus_loss = squares / float(problems) - 1.0
    if predictor.decoding == "loss":
        return minus_loss
    signs = graph.op("Where", graph.op("GreaterOrEqual", f, 0.0), 1.0, -1.0)
    minus_wrong = (graph.op("Gemm", signs, code, transB=1) - float(problems)) * 0.5
    largest_loss = -minus_loss.reduced("ReduceMin", 1, keep=True)
    return minus_wrong + 0.25 * minus_loss / (1.0 + largest_loss)


def decisions(scores: Tensor, *, two_classes: bool) -> Tensor:
    """Return class numbers: the largest score, the first at a tie. For two classes `f >= 0`.

    If no score is a number, the class is the first.
    """
    graph = scores.graph
    if two_classes:
        return graph.op("GreaterOrEqual", scores, 0.0).cast(np.int64)
    return graph.op("ArgMax", scores, axis=1, keepdims=0)


def probabilities(
    scores: Tensor, decided: Tensor, inverse_temperatures: np.ndarray, *, two_classes: bool
) -> Tensor:
    """Return class probabilities, shape `n k`: the softmax of the scores times a slope.

    The predicted class has the largest probability, as in `predictor.codes`.
    """
    graph: Graph = scores.graph
    k = len(inverse_temperatures)
    number = decided.with_axis(1)
    if two_classes:  # the scores of both classes are 0 and f
        scores = scores.with_axis(1) * np.array([0, 1], graph.dtype)
    gaps = scores - graph.op("GatherElements", scores, number, axis=1)
    slope = graph.op("Gather", inverse_temperatures.astype(graph.dtype), number)
    # At a tie the predicted class leads by a few units of rounding.
    most = 1 - 4 * float(np.finfo(graph.dtype).eps)
    odds = graph.op("Min", graph.op("Exp", slope * gaps), most)
    odds = graph.op("Where", graph.op("Equal", number, np.arange(k)), 1.0, odds)
    return odds / odds.reduced("ReduceSum", 1, keep=True)
