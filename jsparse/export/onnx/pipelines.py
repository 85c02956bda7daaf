"""Converters with which skl2onnx turns scikit-learn pipelines with our estimators into ONNX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import skl2onnx
from onnx import helper
from skl2onnx.common import data_types

from ...predictor.machine import Machine
from ...predictor.predictor import Predictor
from .classes import label_array
from .graph import OPSET, Graph, Tensor, tensor_proto
from .machine import values
from .model import answers

_TABLES = "for a model of a table write estimator.model_.to_onnx(path)"
_TYPES = {
    "U": data_types.StringTensorType,
    "b": data_types.BooleanTensorType,
    "i": data_types.Int64TensorType,
    "u": data_types.Int64TensorType,
    "f": data_types.DoubleTensorType,
}


def register_classifier(estimator: type, predictor_of: Callable[[Any], Predictor]) -> None:
    """Register an estimator class with skl2onnx; the outputs are label and probabilities.

    `predictor_of` returns the predictor of a fitted estimator.
    """

    def shapes(operator: Any) -> None:
        labels = label_array(_calibrated(predictor_of(operator.raw_operator)))
        n = operator.inputs[0].get_first_dimension()
        operator.outputs[0].type = _TYPES[labels.dtype.kind]([n])
        operator.outputs[1].type = _number_type(operator)([n, len(labels)])

    def convert(scope: Any, operator: Any, container: Any) -> None:
        predictor = predictor_of(operator.raw_operator)
        graph, X = _rows(predictor, operator, container)
        label, probabilities, *_ = (output.tensor for output in answers(predictor, X))
        probabilities = probabilities.cast(_number_dtype(operator))
        _append(graph, [label, probabilities], scope, operator, container)

    flags = [False, True]
    options = {"zipmap": [*flags, "columns"], "output_class_labels": flags, "nocl": flags}
    _register(estimator, shapes, convert, options)


def register_regressor(estimator: type, predictor_of: Callable[[Any], Predictor]) -> None:
    """Register an estimator class of regressors with skl2onnx; the output is the value.

    `predictor_of` returns the predictor of a fitted estimator.
    """

    def shapes(operator: Any) -> None:
        width = predictor_of(operator.raw_operator).machine.intercept.size
        n = operator.inputs[0].get_first_dimension()
        operator.outputs[0].type = _number_type(operator)([n, width])

    def convert(scope: Any, operator: Any, container: Any) -> None:
        predictor = predictor_of(operator.raw_operator)
        graph, X = _rows(predictor, operator, container)
        (variable,) = (output.tensor for output in answers(predictor, X))
        _append(graph, [variable.cast(_number_dtype(operator))], scope, operator, container)

    _register(estimator, shapes, convert, {})


def register_outliers(estimator: type, machine_of: Callable[[Any], tuple[Machine, float]]) -> None:
    """Register an estimator class of outlier detectors with skl2onnx.

    The outputs are the label, -1 for outliers or +1, and the score, negative for outliers.

    `machine_of` returns the machine of a fitted estimator, and the limit up to which the size of a
    score counts as rounding. Such scores become 0.
    """

    def shapes(operator: Any) -> None:
        n = operator.inputs[0].get_first_dimension()
        operator.outputs[0].type = data_types.Int64TensorType([n, 1])
        operator.outputs[1].type = _number_type(operator)([n, 1])

    def convert(scope: Any, operator: Any, container: Any) -> None:
        machine, noise = machine_of(operator.raw_operator)
        graph, X = _input(operator, container, machine.dtype)
        f = values(machine, X)
        is_noise = graph.op("LessOrEqual", graph.op("Abs", f), noise)
        score = graph.op("Where", is_noise, 0.0, f)
        inside = graph.op("GreaterOrEqual", score, 0.0).cast(np.int64)
        label = inside * np.array(2) - np.array(1)
        _append(graph, [label, score.cast(_number_dtype(operator))], scope, operator, container)

    _register(estimator, shapes, convert, {})


def _calibrated(predictor: Predictor) -> Predictor:
    """Return the predictor; raise ValueError if it lacks probabilities, which skl2onnx needs."""
    if predictor.inverse_temperatures is None:
        raise ValueError(
            "expected a classifier with probabilities, which skl2onnx makes an output; fit with "
            "out_of_fold=True, or write estimator.model_.to_onnx(path)"
        )
    return predictor


def _register(estimator: type, shapes: Callable, convert: Callable, options: dict) -> None:
    """Register an estimator with skl2onnx.

    `shapes` sets the types and shapes of an operator's outputs. `convert` appends the nodes of an
    operator to a pipeline. `options` maps each option of skl2onnx to its permitted values.
    """
    name = f"Jsparse{estimator.__name__}"
    skl2onnx.update_registered_converter(estimator, name, shapes, convert, options=options)


def _number_dtype(operator: Any) -> type[np.floating]:
    """Return the dtype of numbers in a pipeline: float64 if its inputs are, else float32."""
    double = isinstance(operator.inputs[0].type, data_types.DoubleTensorType)
    return np.float64 if double else np.float32


def _number_type(operator: Any) -> type:
    """Return the type of skl2onnx for tensors of numbers in a pipeline, as `_number_dtype`."""
    double = _number_dtype(operator) is np.float64
    return data_types.DoubleTensorType if double else data_types.FloatTensorType


def _rows(predictor: Predictor, operator: Any, container: Any) -> tuple[Graph, Tensor]:
    """Return a graph and the input rows of an operator, cast to the predictor's dtype.

    Raises:
        ValueError: as `_input`, and if the predictor encodes columns of a table.
    """
    columns = () if predictor.columns is None else predictor.columns.columns
    encoded = [c.name for c in columns if (c.categories, c.origin, c.fill) != (None, None, None)]
    if encoded:
        raise ValueError(
            f"expected a model of numbers, got one that encodes the columns {encoded}; {_TABLES}"
        )
    return _input(operator, container, predictor.dtype)


def _input(operator: Any, container: Any, dtype: np.dtype) -> tuple[Graph, Tensor]:
    """Return a graph and the input rows of an operator, cast to the machine's dtype.

    Raises:
        ValueError: for an older `target_opset`, or an operator with several inputs.
    """
    if container.target_opset < OPSET:
        raise ValueError(f"target_opset: expected at least {OPSET}, got {container.target_opset}")
    if len(operator.inputs) > 1:
        names = [variable.raw_name for variable in operator.inputs]
        raise ValueError(f"expected one input with all columns, got {names}; {_TABLES}")
    graph = Graph(dtype, {operator.inputs[0].full_name})
    return graph, Tensor(graph, operator.inputs[0].full_name).cast()


def _append(graph: Graph, outputs: list[Tensor], scope: Any, operator: Any, container: Any) -> None:
    """Append a graph to the graph of the pipeline, with names that are unique in the pipeline.

    The tensors `outputs` become the outputs of the operator, in their order.
    """
    names = {name: scope.get_unique_variable_name(name) for name in graph.constants}
    for node in graph.nodes:
        names |= {name: scope.get_unique_variable_name(name) for name in node.output}
    names |= {
        tensor.name: variable.full_name
        for tensor, variable in zip(outputs, operator.outputs, strict=True)
    }
    graph.rename(names)
    for name, array in graph.constants.items():
        container.initializers.append(tensor_proto(array, names[name]))
    for node in graph.nodes:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        name = scope.get_unique_operator_name(node.op_type)
        container.add_node(
            node.op_type, list(node.input), list(node.output), node.domain, name=name, **attributes
        )
