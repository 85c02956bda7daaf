"""A predictor as an ONNX model, built from standard operators."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import onnx
from onnx import helper

from ..._repr import short_repr
from ...predictor.answers import known_errors
from ...predictor.predictor import Predictor
from .classes import class_scores, label_array, of_several_classes, of_two_classes
from .conformal import interval, prediction_set
from .graph import IR_VERSION, ML, ML_OPSET, OPSET, Graph, Tensor, tensor_proto
from .machine import values
from .tables import Input, encoded, input_of

ROWS = "n"  # name of the dynamic number of rows


class Output(NamedTuple):
    """A named output, its dtype, and its `width`: the number of columns, or None for a vector."""

    name: str
    tensor: Tensor
    dtype: np.dtype
    width: int | None

    __repr__ = short_repr


def onnx_bytes(
    predictor: Predictor,
    names: Sequence[str] | Literal["all"] = "all",
    coverage: float | None = None,
) -> bytes:
    """Return the contents of an ONNX file that `onnx.checker` accepts; see `Model.to_onnx`.

    `names` selects outputs of `answers`. With a `coverage` these include intervals or sets. Equal
    models give equal bytes. For a name that no output has, raise ValueError.
    """
    schema, dtype = predictor.columns, predictor.dtype
    if schema is None:
        width = predictor.machine.prototypes.shape[1]
        inputs = [Input("X", dtype, width, "the columns of training, in their order")]
    else:
        inputs = [input_of(column, dtype) for column in schema.columns]
    graph = Graph(dtype, {i.name for i in inputs})
    X = Tensor(graph, "X") if schema is None else encoded(schema, graph)
    outputs = _selected(answers(predictor, X, coverage), names)
    graph.keep(output.tensor for output in outputs)
    free = {output.name: graph.free_name(output.name) for output in outputs}
    graph.rename({output.tensor.name: free[output.name] for output in outputs})
    proto = helper.make_graph(
        graph.nodes,
        "jsparse",
        [_value_info(*i) for i in inputs],
        [_value_info(free[o.name], o.dtype, o.width) for o in outputs],
        [tensor_proto(array, name) for name, array in graph.constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    if any(node.domain == ML for node in graph.nodes):
        opsets.append(helper.make_opsetid(ML, ML_OPSET))
    model = helper.make_model(
        proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="jsparse"
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def _selected(outputs: list[Output], names: Sequence[str] | Literal["all"]) -> list[Output]:
    """Return the outputs with some names, in the order of the file.

    Raises:
        ValueError: for a name that no output has, or no names.
    """
    if names == "all":
        return outputs
    known = [output.name for output in outputs]
    if isinstance(names, str) or not names or not set(names) <= set(known):
        raise ValueError(f"outputs: expected 'all', or a list of names among {known}, got {names}")
    return [output for output in outputs if output.name in names]


def answers(predictor: Predictor, X: Tensor, coverage: float | None = None) -> list[Output]:
    """Return the outputs of a model at raw inputs `X (n, d)`; skl2onnx uses some of their names.

    A regression has the output `variable`. A classifier has `label`, `probabilities` if it is
    calibrated, and `scores`. With a coverage, `lower` and `upper`, or `prediction_set`, follow.

    Raises:
        ValueError: with a coverage, as `Predictor.interval` and `Predictor.predict_set`.
    """
    dtype, f = predictor.dtype, values(predictor.machine, X)
    if predictor.labels is None:
        return _answers_of_regression(predictor, X, f, coverage)
    labels, slopes = label_array(predictor), predictor.inverse_temperatures
    k, scores_width = len(labels), None
    if predictor.code is None:
        classes = of_two_classes(f, labels, slopes)
    else:
        scores, scores_width = class_scores(f, predictor.code, predictor.decoding), k
        classes = of_several_classes(scores, labels, slopes)
    outputs = [Output("label", classes.label, labels.dtype, None)]
    if classes.probabilities is not None:
        outputs.append(Output("probabilities", classes.probabilities, dtype, k))
    outputs.append(Output("scores", classes.scores, dtype, scores_width))
    if coverage is not None:
        conformal = known_errors(predictor.conformal, "coverage")
        in_set = prediction_set(predictor, conformal, coverage, X, f)
        outputs.append(Output("prediction_set", in_set, np.dtype(bool), k))
    return outputs


def _answers_of_regression(
    predictor: Predictor, X: Tensor, f: Tensor, coverage: float | None
) -> list[Output]:
    """Return the outputs of a regression; `f (n, c)` are the values of the machine."""
    dtype, width = predictor.dtype, predictor.machine.intercept.size
    several_quantiles = len(predictor.quantiles) > 1
    if several_quantiles:
        f = ascending(f, width)
    outputs = [Output("variable", f, dtype, width)]
    if coverage is not None:
        conformal = known_errors(predictor.conformal, "coverage")
        ends = interval(predictor, conformal, coverage, X, f)
        width = 1 if several_quantiles else width
        outputs += [
            Output(name, end, dtype, width)
            for name, end in zip(("lower", "upper"), ends, strict=True)
        ]
    return outputs


def ascending(f: Tensor, width: int) -> Tensor:
    """Return a matrix of `width` columns with each row sorted, by bubble sort."""
    columns = [f.columns(np.array([j])) for j in range(width)]
    for end in range(width - 1, 0, -1):
        for j in range(end):
            pair = columns[j], columns[j + 1]
            columns[j : j + 2] = [f.graph.op(kind, *pair) for kind in ("Min", "Max")]
    return f.graph.concatenated(columns)


def _value_info(
    name: str, dtype: np.dtype, width: int | None, contents: str = ""
) -> onnx.ValueInfoProto:
    """Return ONNX's description of an input or output of `width` columns, None for a vector."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(object) if dtype.kind == "U" else dtype)
    shape = [ROWS] if width is None else [ROWS, width]
    return helper.make_tensor_value_info(name, kind, shape, doc_string=contents)
