"""Prediction intervals and sets as ONNX formulas, equal to the formulas of `predictor.conformal`.

Of a row whose values are NaN, the ends of the interval are NaN and the set is empty.
"""

import numpy as np

from ...predictor.conformal import ConformalScores, error_at, rank_of
from ...predictor.predictor import Predictor
from .classes import class_scores
from .graph import Tensor
from .machine import values


def interval(
    predictor: Predictor, conformal: ConformalScores, coverage: float, X: Tensor, f: Tensor
) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends of intervals, each of shape `n c`, or `n 1` for quantiles.

    Args:
        predictor: a regression.
        conformal: its errors on held-out rows.
        coverage: share of new rows whose target is inside their interval.
        X: raw inputs, shape `n d`.
        f: the values of the model, shape `n c`; sorted if they are several quantiles.
    """
    graph, several, width = X.graph, len(predictor.quantiles) > 1, predictor.machine.intercept.size
    errors = conformal.errors.reshape(len(conformal.errors), -1)
    if conformal.machines is None or conformal.fold is None:
        error = error_at(conformal, coverage).reshape(-1)
        low, high = (f.columns(np.array([j])) for j in (0, width - 1)) if several else (f, f)
        ends = low - error, high + error
        if error.min() >= 0:
            return ends
        return graph.op("Min", *ends), graph.op("Max", *ends)
    rank = rank_of(coverage, conformal.n_rows)
    machines = conformal.machines.intercept.size // width
    fold_values = values(conformal.machines, X)
    fold_values = graph.op("Reshape", fold_values, np.array([0, machines, width]))
    low, high = fold_values, fold_values
    if several:
        low, high = (fold_values.reduced(kind, 2, keep=True) for kind in ("ReduceMin", "ReduceMax"))
    low, high = (graph.op("Gather", end, conformal.fold, axis=1) for end in (low, high))
    low = -_ranked(errors - low, conformal.counts, rank)
    high = _ranked(high + errors, conformal.counts, rank)
    return graph.op("Min", low, high), graph.op("Max", low, high)


def prediction_set(
    predictor: Predictor, conformal: ConformalScores, coverage: float, X: Tensor, f: Tensor
) -> Tensor:
    """Return whether each class is in the set, shape `n k`; see `interval` for the arguments.

    `f` has the values of the binary problems, shape `n l`.
    """
    if conformal.machines is None or conformal.fold is None:
        deficits = _margin_deficit(predictor, f)
        return f.graph.op("LessOrEqual", deficits, error_at(conformal, coverage))
    graph, width, k = X.graph, predictor.machine.intercept.size, len(predictor.labels or ())
    machines = conformal.machines.intercept.size // width
    fold_values = graph.op("Reshape", values(conformal.machines, X), np.array([-1, width]))
    deficits = _margin_deficit(predictor, fold_values)
    deficits = graph.op("Reshape", deficits, np.array([-1, machines, k]))
    deficits = graph.op("Gather", deficits, conformal.fold, axis=1)
    # A class is in the set if fewer than `rank` errors are below its deficit.
    reached = graph.op("LessOrEqual", deficits, conformal.errors[:, None])
    counts = conformal.counts.astype(np.int32)[:, None]
    n_reached = graph.op("Where", reached, counts, np.array(0, np.int32)).reduced("ReduceSum", 1)
    rank = rank_of(coverage, conformal.n_rows)
    return graph.op("Greater", n_reached, np.array(conformal.n_rows - rank, np.int32))


def _margin_deficit(predictor: Predictor, f: Tensor) -> Tensor:
    """Return each class's margin deficit, shape `n k`, for values `f (n, l)` of the machine."""
    graph = f.graph
    if predictor.code is None:
        return f * np.array([[1, -1]], graph.dtype)
    scores = class_scores(f, predictor.code, predictor.decoding)
    first = graph.op("ArgMax", scores, axis=1, keepdims=1)
    is_predicted = graph.op("Equal", first, np.arange(len(predictor.code)))
    best = scores.reduced("ReduceMax", 1, keep=True)
    others = graph.op("Where", is_predicted, -np.inf, scores)
    second = others.reduced("ReduceMax", 1, keep=True)
    return graph.op("Where", is_predicted, second, best) - scores


def _ranked(values: Tensor, counts: np.ndarray, rank: int) -> Tensor:
    """Return the `rank`-th smallest of values `(n, q, c)`, each with a count `(q)`; shape `n c`."""
    graph = values.graph
    q = np.array([len(counts)])
    ascending, order = graph.several("TopK", 2, values, q, axis=1, largest=0)
    ordered_counts = graph.op("Gather", counts.astype(np.int32), order)
    totals = graph.op("CumSum", ordered_counts, np.array(1))
    reached = graph.op("GreaterOrEqual", totals, np.array(rank, np.int32)).cast(np.int32)
    index = graph.op("ArgMax", reached, axis=1, keepdims=1)
    return graph.op("Squeeze", graph.op("GatherElements", ascending, index, axis=1), np.array([1]))
