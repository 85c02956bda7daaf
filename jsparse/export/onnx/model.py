"""A predictor as an ONNX model, built from standard operators."""

from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from ..._repr import short_repr
from ...predictor.predictor import Predictor
from .classes import label_array, of_several_classes, of_two_classes, scores_of_code
from .graph import IR_VERSION, ML, ML_OPSET, OPSET, Graph, Tensor
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


def onnx_bytes(predictor: Predictor) -> bytes:
    """Return the contents of an ONNX file. Equal predictors give equal bytes."""
    return model_proto(predictor).SerializeToString(deterministic=True)


def model_proto(predictor: Predictor) -> onnx.ModelProto:
    """Return a predictor as an ONNX model that `onnx.checker` accepts; see `Model.to_onnx`."""
    schema, dtype = predictor.columns, predictor.dtype
    if schema is None:
        inputs = [Input("X", dtype, predictor.machine.prototypes.shape[1])]
    else:
        inputs = [input_of(column, dtype) for column in schema.columns]
    names = {i.name for i in inputs}
    graph = Graph(dtype, names)
    X = Tensor(graph, "X") if schema is None else encoded(schema, graph)
    outputs = answers(predictor, X)
    free = {output.name: graph.free_name(output.name) for output in outputs}
    graph.rename({output.tensor.name: free[output.name] for output in outputs})
    proto = helper.make_graph(
        graph.nodes,
        "jsparse",
        [_value_info(i.name, i.dtype, i.width) for i in inputs],
        [_value_info(free[o.name], o.dtype, o.width) for o in outputs],
        graph.initializers(),
    )
    opsets = [helper.make_opsetid("", OPSET)]
    if any(node.domain == ML for node in graph.nodes):
        opsets.append(helper.make_opsetid(ML, ML_OPSET))
    model = helper.make_model(
        proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="jsparse"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def answers(predictor: Predictor, X: Tensor) -> list[Output]:
    """Return the outputs of a model, with the names that skl2onnx gives them.

    They are `variable` of a regression; `label`, `probabilities` if the model has them, and
    `scores` of a classifier.
    """
    dtype, f = predictor.dtype, values(predictor.machine, X)
    if predictor.labels is None:
        f = ascending(f, len(predictor.quantiles)) if len(predictor.quantiles) > 1 else f
        return [Output("variable", f, dtype, predictor.machine.intercept.size)]
    labels, slopes = label_array(predictor), predictor.inverse_temperatures
    k, scores_width = len(labels), None
    if predictor.code is None:
        classes = of_two_classes(f, labels, slopes)
    else:
        scores, scores_width = scores_of_code(f, predictor.code, predictor.decoding), k
        classes = of_several_classes(scores, labels, slopes)
    outputs = [Output("label", classes.label, labels.dtype, None)]
    if classes.probabilities is not None:
        outputs.append(Output("probabilities", classes.probabilities, dtype, k))
    return [*outputs, Output("scores", classes.scores, dtype, scores_width)]


def ascending(f: Tensor, width: int) -> Tensor:
    """Return a matrix of `width` columns with each row sorted, by bubble sort."""
    columns = [f.columns(np.array([j])) for j in range(width)]
    for end in range(width - 1, 0, -1):
        for j in range(end):
            pair = columns[j], columns[j + 1]
            columns[j : j + 2] = [f.graph.op(kind, *pair) for kind in ("Min", "Max")]
    return f.graph.concatenated(columns)


def _value_info(name: str, dtype: np.dtype, width: int | None) -> onnx.ValueInfoProto:
    """Return ONNX's description of an input or output; `width` is as in `Output`."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(object) if dtype.kind == "U" else dtype)
    return helper.make_tensor_value_info(name, kind, [ROWS] if width is None else [ROWS, width])
