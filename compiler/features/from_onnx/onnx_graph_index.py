"""An index of an ONNX graph: the node that makes a tensor, the nodes that read it, the constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from veltair.compiler.onnx.constants import read_names, table_of
from veltair.compiler.onnx.node_attributes import attribute
from veltair.errors import ModelError

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


class OnnxGraphIndex:
    """The nodes of a model by the tensors that they make and read.

    Use::

        graph = OnnxGraphIndex(proto, path)
        graph.only_user(graph.nodes[0].output[0])
    """

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self.nodes, self.path = list(proto.graph.node), path
        self.opsets = proto.opset_import
        self.producer = {output: node for node in self.nodes for output in node.output if output}
        self._place = {output: i for i, node in enumerate(self.nodes) for output in node.output if output}
        self.inputs = {value.name: value for value in proto.graph.input}
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._outputs = {output.name for output in proto.graph.output}
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._users.setdefault(name, []).append(node)

    def users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a tensor, in graph order."""
        return self._users.get(name, [])

    def nodes_before(self, *tensors: str) -> list[onnx.NodeProto]:
        """The nodes that some of these tensors depend on, in graph order. The others cost no time."""
        found, left = set[int](), list(tensors)
        while left:
            place = self._place.get(left.pop())
            if place is not None and place not in found:
                found.add(place)
                left += read_names(self.nodes[place])
        return [self.nodes[place] for place in sorted(found)]

    def is_output(self, name: str) -> bool:
        return name in self._outputs

    def only_user(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if no output of the model does."""
        users = self.users(name)
        return users[0] if len(users) == 1 and name not in self._outputs else None

    def constant(self, name: str) -> NDArray[Any] | None:
        """Values of a constant of numbers, None for other tensors. Raises ModelError for one that cannot be read."""
        tensor = self._tensor(name)
        return table_of(tensor, self.path) if tensor is not None else None

    def text(self, name: str) -> str | None:
        """The text of a constant of one string, None for other tensors. Raises ModelError where it is not UTF-8."""
        tensor = self._tensor(name)
        if tensor is None or tensor.data_type != TensorProto.STRING or len(tensor.string_data) != 1:
            return None
        try:
            return bytes(tensor.string_data[0]).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: not UTF-8 at byte {error.start}") from None

    def rows(self, name: str) -> int | None:
        """Rank of an input that has one value a row and a symbolic batch; None for any other input."""
        dims = self.inputs[name].type.tensor_type.shape.dim
        if not dims or dims[0].HasField("dim_value") or any(dim.dim_value != 1 for dim in dims[1:]):
            return None
        return len(dims)

    def shape(self, name: str) -> list[str | int]:
        """An input's extents as the file has them: names and numbers, 0 where there is neither."""
        return [dim.dim_param or dim.dim_value for dim in self.inputs[name].type.tensor_type.shape.dim]

    def type_of(self, name: str) -> int:
        """ONNX's type of an input's elements."""
        return int(self.inputs[name].type.tensor_type.elem_type)

    def error(self, node: onnx.NodeProto, what: str) -> ModelError:
        """An error that names the file, the node and its operator."""
        return ModelError(f"{self.path}: node {node.name!r}: operator {node.op_type}: {what}")

    def _tensor(self, name: str) -> TensorProto | None:
        tensor, node = self.weights.get(name), self.producer.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = attribute(node, "value", None)
        return tensor
