"""From values of the machine to labels, probabilities and scores, as ONNX formulas.

The formulas equal the formulas of `predictor.codes`, in the precision of the model. If a score is
NaN, all scores and probabilities of the row are NaN, and its label is the first class.
"""

from typing import NamedTuple

import numpy as np

from ..._repr import short_repr
from ...predictor.predictor import Predictor
from .graph import Tensor

_LEAD = 4  # lead of the predicted class at a tie, in units of rounding


class Classes(NamedTuple):
    """The outputs of a classifier for `n` rows and `k` classes.

    Attributes:
        label: shape `n`.
        scores: shape `n` without an output code, else `n k`.
        probabilities: shape `n k`; None without inverse temperatures.
    """

    label: Tensor
    scores: Tensor
    probabilities: Tensor | None

    __repr__ = short_repr


def of_two_classes(
    f: Tensor, labels: np.ndarray, inverse_temperatures: np.ndarray | None
) -> Classes:
    """Return the outputs for two classes: the second is predicted where `f (n, 1)` is >= 0."""
    graph = f.graph
    scores = graph.op("Squeeze", f, np.array([1]))
    is_second = graph.op("GreaterOrEqual", scores, 0.0)
    if labels.dtype.kind == "b":
        label = is_second
    elif labels.dtype.kind == "u":  # onnxruntime has no `Where` of unsigned numbers
        label = graph.op("Gather", labels, is_second.cast(np.int64))
    else:
        label = graph.op("Where", is_second, labels[1:], labels[:1])
    if inverse_temperatures is None:
        return Classes(label, scores, None)
    first_slope, second_slope = inverse_temperatures.tolist()
    # The product is positive for the predicted class, whose odds are 1, and negative for the other
    # class. At f = 0 both are 0: the lead keeps the odds of the first class below 1.
    slopes = np.array([[-second_slope, first_slope]], graph.dtype)
    lead = np.array([_LEAD * np.finfo(graph.dtype).eps, 0], graph.dtype)
    log_odds = graph.op("Min", graph.op("Gemm", f, slopes, -lead), 0.0)
    return Classes(label, scores, graph.op("Softmax", log_odds, axis=1))


def of_several_classes(
    scores: Tensor, labels: np.ndarray, inverse_temperatures: np.ndarray | None
) -> Classes:
    """Return the outputs for scores `(n, k)`: the largest is predicted, the first at a tie."""
    graph = scores.graph
    number = graph.op("ArgMax", scores, axis=1, keepdims=1)
    label = graph.op("Gather", labels, graph.op("Squeeze", number, np.array([1])))
    probabilities = None
    if inverse_temperatures is not None:
        slope = graph.op("Gather", inverse_temperatures.astype(graph.dtype), number)
        gaps = scores - graph.op("GatherElements", scores, number, axis=1)
        # At a tie the predicted class leads by a few units of rounding.
        most = 1 - _LEAD * float(np.finfo(graph.dtype).eps)
        odds = graph.op("Min", graph.op("Exp", gaps * slope), most)
        predicted = graph.op("Equal", number, np.arange(len(labels)))
        odds = graph.op("Where", predicted, 1.0, odds)
        probabilities = odds / odds.reduced("ReduceSum", 1, keep=True)
    return Classes(label, scores, probabilities)


def class_scores(f: Tensor, matrix: np.ndarray, decoding: str) -> Tensor:
    """Return minus the distances of values `f (n, l)` from the code's rows, shape `n k`.

    `matrix` is the output code, shape `k l`. `decoding` is "hamming" or "loss".
    """
    graph, problems = f.graph, float(matrix.shape[1])
    code = graph.constant(matrix.astype(np.int8)).cast()
    products = graph.op("Gemm", f, code, transB=1)
    squares = graph.op(
        "Gemm", f * f, graph.op("Abs", code), products, alpha=-1.0, beta=2.0, transB=1
    )
    minus_loss = squares / problems - 1.0  # minus the mean of (1 - code f)^2
    if decoding == "loss":
        return minus_loss
    signs = graph.op("Where", graph.op("GreaterOrEqual", f, 0.0), 1.0, -1.0)
    minus_wrong = (graph.op("Gemm", signs, code, transB=1) - problems) * 0.5
    largest_loss = -minus_loss.reduced("ReduceMin", 1, keep=True)
    return minus_wrong + 0.25 * minus_loss / (1.0 + largest_loss)


def label_array(predictor: Predictor) -> np.ndarray:
    """Return the labels as texts, booleans, float64 or whole numbers of 64 bits."""
    labels = np.array(predictor.labels, dtype=predictor.label_dtype)
    wide = {"f": np.float64, "i": np.int64, "u": np.int64}.get(labels.dtype.kind, labels.dtype)
    if labels.dtype.kind == "u" and labels.max() >= 2**63:
        wide = np.uint64
    return labels.astype(wide)
