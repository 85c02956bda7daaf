"""ONNX graphs as formulas: tensors with arithmetic, whose operations become nodes of a graph."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 18  # version of the standard operators: onnx 1.13, read by onnxruntime 1.14 and later
ML = "ai.onnx.ml"  # domain of the operators of classical machine learning
ML_OPSET = 3  # version of the operators of `ML`, in onnx 1.13
IR_VERSION = 8  # version of the file format, in onnx 1.13

Operand = Union["Tensor", np.ndarray, float]


class Graph:
    """The nodes and constants of an ONNX graph, in the order of computation.

    Equal constants are stored once. A program that loads the graph computes whatever depends on
    constants alone, once; so formulas need not prepare their constants.

    Args:
        dtype: dtype of Python's numbers in formulas.
        reserved: names that neither nodes nor constants may have.
    """

    def __init__(self, dtype: np.dtype, reserved: Collection[str] = ()) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self._names = set(reserved)
        self._name_of: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def op(self, kind: str, *operands: Operand, domain: str = "", **attributes: Any) -> "Tensor":
        """Append a node of one operator; return its only output.

        Args:
            kind: name of the operator.
            operands: tensors, arrays, or numbers of the graph's dtype.
            domain: "" for the operators of ONNX.
            attributes: attributes of the operator.
        """
        return self.several(kind, 1, *operands, domain=domain, **attributes)[0]

    def several(
        self, kind: str, count: int, *operands: Operand, domain: str = "", **attributes: Any
    ) -> list["Tensor"]:
        """Append a node of the operator `kind` with `count` outputs; return the outputs."""
        inputs = [self.constant(operand).name for operand in operands]
        stem = f"{kind.lower()}_{len(self.nodes)}"
        stems = [stem, *(f"{stem}_{number}" for number in range(1, count))]
        names = [self.free_name(name) for name in stems]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return [Tensor(self, name) for name in names]

    def constant(self, value: Operand) -> "Tensor":
        """Return an array or a number as a tensor; tensors are returned unchanged."""
        if isinstance(value, Tensor):
            return value
        array = value if isinstance(value, np.ndarray) else np.asarray(value, self.dtype)
        content = repr(array.tolist()).encode() if array.dtype.kind == "U" else array.tobytes()
        key = (array.dtype.str, array.shape, content)
        if key not in self._name_of:
            self._name_of[key] = name = self.free_name(f"constant_{len(self.constants)}")
            self.constants[name] = array
        return Tensor(self, self._name_of[key])

    def free_name(self, name: str) -> str:
        """Return a name that is not taken: `name`, with underscores appended if needed."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def concatenated(self, tensors: Sequence["Tensor"]) -> "Tensor":
        """Return the columns of all tensors as one tensor."""
        return tensors[0] if len(tensors) == 1 else self.op("Concat", *tensors, axis=1)

    def keep(self, tensors: Iterable["Tensor"]) -> None:
        """Keep only the nodes and constants on which one of the tensors depends."""
        needed, nodes = {tensor.name for tensor in tensors}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        self.nodes = nodes[::-1]
        self.constants = {name: a for name, a in self.constants.items() if name in needed}

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace the names of tensors; `names` maps old to new names."""
        for node in self.nodes:
            for tensor_names in (node.input, node.output):
                for i, name in enumerate(tensor_names):
                    tensor_names[i] = names.get(name, name)


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A named value of a graph. Its operators broadcast like NumPy's."""

    graph: Graph
    name: str

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __add__(self, other: Operand) -> "Tensor":
        return self.graph.op("Add", self, other)

    def __sub__(self, other: Operand) -> "Tensor":
        return self.graph.op("Sub", self, other)

    def __mul__(self, other: Operand) -> "Tensor":
        return self.graph.op("Mul", self, other)

    def __truediv__(self, other: Operand) -> "Tensor":
        return self.graph.op("Div", self, other)

    def __matmul__(self, other: Operand) -> "Tensor":
        return self.graph.op("MatMul", self, other)

    def __neg__(self) -> "Tensor":
        return self.graph.op("Neg", self)

    def __radd__(self, other: Operand) -> "Tensor":
        return self.graph.constant(other) + self

    def __rsub__(self, other: Operand) -> "Tensor":
        return self.graph.constant(other) - self

    def __rmul__(self, other: Operand) -> "Tensor":
        return self.graph.constant(other) * self

    def cast(self, dtype: Any = None) -> "Tensor":
        """Return the tensor in another dtype of NumPy, by default the graph's."""
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.graph.dtype))
        return self.graph.op("Cast", self, to=to)

    def columns(self, numbers: np.ndarray) -> "Tensor":
        """Return the columns of this matrix whose numbers are given."""
        return self.graph.op("Gather", self, np.asarray(numbers, np.int32), axis=1)

    def rows(self, numbers: np.ndarray) -> "Tensor":
        """Return the rows of this matrix whose numbers are given."""
        return self.graph.op("Gather", self, np.asarray(numbers, np.int32), axis=0)

    def reduced(self, kind: str, axis: int, *, keep: bool = False) -> "Tensor":
        """Return the reduction `kind`, such as "ReduceSum", over an axis; `keep` it as length 1."""
        return self.graph.op(kind, self, np.array([axis]), keepdims=int(keep))

    def with_axis(self, axis: int) -> "Tensor":
        """Return the tensor with a new axis of length 1 at position `axis`."""
        return self.graph.op("Unsqueeze", self, np.array([axis]))


def tensor_proto(array: np.ndarray, name: str) -> onnx.TensorProto:
    """Return an array as ONNX stores it; texts in UTF-8."""
    if array.dtype.kind == "U":
        texts = [text.encode() for text in array.reshape(-1).tolist()]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, texts)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
