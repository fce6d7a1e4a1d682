"""Rewrites an ONNX graph so that its columns become inputs, one for each; `joined_inputs` joins neighbours later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from veltair.compiler.features.feature_description import ColumnInput
from veltair.compiler.features.from_onnx.bucketize_pattern import TENSORFLOW
from veltair.compiler.features.from_onnx.hash_buckets import is_hash
from veltair.compiler.features.from_onnx.safety_steps import nodes_needed
from veltair.compiler.onnx.shape_inference import infer_outline
from veltair.errors import ModelError

SMALL = 4096  # bytes; larger constants decide no shape
VIEWS = ("Reshape", "Squeeze", "Flatten")


@dataclass(frozen=True, slots=True)
class ColumnTensor:
    """A tensor that a column gives.

    >>> ColumnTensor("rows", 8, onnx.NodeProto()).width
    8
    """

    out: str
    width: int  # numbers a row
    origin: onnx.NodeProto  # what it comes from, for messages


class GraphRewriter:
    """Rewrites one graph, in place.

    Use::

        GraphRewriter(proto, path, columns).rewrite()
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        path: Path,
        columns: Sequence[ColumnTensor],
        shapes: Mapping[str, list[int]] | None = None,
    ) -> None:
        """`shapes`: what is known of shapes beside what ONNX infers, with 0 for the batch."""
        self._graph, self._path, self._columns = proto.graph, path, columns
        self._shapes = infer_shapes(proto) | dict(shapes or {})
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
        self._outputs = {output.name for output in proto.graph.output}
        self._names = {tensor.name for tensor in proto.graph.initializer} | self._users.keys() | self._shapes.keys()
        self._names |= {name for node in proto.graph.node for name in node.output}

    def rewrite(self) -> tuple[ColumnInput, ...]:
        """Rewrites the graph. Returns its new inputs and the columns that give each, named by their tensors."""
        graph = self._graph
        plain = {self._rows_of(column): column for column in self._columns}  # by tensors (batch, width)
        dropped = {name for row, column in plain.items() for name in (row, column.out)}
        kept = [node for node in graph.node if not dropped & set(node.output)]
        adapters = [self._reshape(name, column) for name, column in plain.items() if name not in self._shapes]
        del graph.node[:]
        graph.node.extend(nodes_needed([*adapters, *kept], self._outputs))
        self._replace_inputs({name: column.width for name, column in plain.items()})
        return tuple(ColumnInput(name=name, columns=(column.out,)) for name, column in plain.items())

    def _rows_of(self, column: ColumnTensor) -> str:
        """The tensor (batch, width) of a column: its own, or what a view behind it makes of it."""
        shape = self._shape(column.out)
        if len(shape) == 2 and shape[1] == column.width:
            return column.out
        users = self._users.get(column.out, [])
        if len(users) == 1 and users[0].op_type in VIEWS and column.out not in self._outputs:
            behind: str = users[0].output[0]
            if len(self._shape(behind)) == 2 and self._shape(behind)[1] == column.width:
                return behind
        if prod(shape[1:]) != column.width:
            raise ModelError(
                f"{self._path}: node {column.origin.name!r}: operator {column.origin.op_type}: what comes of it has "
                f"shape {shape}; expected [batch, {column.width}]"
            )
        rows = f"{column.out}/rows"
        while rows in self._names:
            rows += "/rows"
        return rows

    def _reshape(self, rows: str, column: ColumnTensor) -> onnx.NodeProto:
        """A column's rows in the shape that others expect of its tensor."""
        shape = f"{rows}/shape"
        extents = self._shape(column.out)[1:]
        dims = [0, *extents] if extents else [-1]
        self._graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [len(dims)], dims))
        return helper.make_node("Reshape", [rows, shape], [column.out], shape)

    def _replace_inputs(self, widths: Mapping[str, int]) -> None:
        """Adds inputs (batch, width) and drops the inputs that only columns read."""
        graph = self._graph
        read = {name for node in graph.node for name in node.input} | self._outputs
        kept = [value for value in graph.input if value.name in read or value.name not in self._users]
        del graph.input[:]
        graph.input.extend(kept)
        for name, width in widths.items():
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]))
        given = {value.name: value for value in graph.input}
        for output in graph.output:  # a column is an output itself: no node is left that its shape follows from
            if output.name in widths and not output.type.tensor_type.HasField("shape"):
                output.type.CopyFrom(given[output.name].type)

    def _shape(self, name: str) -> list[int]:
        """Extents, 0 for one that is not known; empty where the rank is not known either."""
        return self._shapes.get(name, [])


def infer_shapes(proto: onnx.ModelProto) -> dict[str, list[int]]:
    """Shapes that ONNX infers without looking at large constants."""
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in _inferred(proto)
        if value.type.tensor_type.HasField("shape")
    }


def infer_element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """ONNX's types of the elements, of those tensors for which it infers any."""
    types = {value.name: value.type.tensor_type.elem_type for value in _inferred(proto)}
    return {name: found for name, found in types.items() if found != TensorProto.UNDEFINED}


def _inferred(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    graph, inputs = proto.graph, list(proto.graph.input)
    small = [tensor for tensor in graph.initializer if tensor.ByteSize() <= SMALL]
    listed = {value.name for value in (*inputs, *small)}
    inputs += [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
        if tensor.name not in listed
    ]
    outline = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    nodes = [_with_known_shape(node) for node in graph.node]
    outline.graph.CopyFrom(helper.make_graph(nodes, graph.name or "g", inputs, graph.output, small))
    found = infer_outline(outline, values_too=True).graph
    return [*found.value_info, *found.input, *found.output]


def _with_known_shape(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node; for an operator that ONNX does not know, one whose output has the same type and shape."""
    if is_hash(node):
        return helper.make_node("Cast", node.input[:1], node.output, node.name, to=TensorProto.INT64)
    if node.op_type == TENSORFLOW:
        return helper.make_node("Cast", node.input[:1], node.output, node.name, to=TensorProto.INT32)
    return node
