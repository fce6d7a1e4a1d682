"""The shapes of what a `Loop` gives, and of what follows from it, as far as no value decides them.

A carried tensor keeps its shape where the body, from tensors of that shape, gives one of the same shape. What the body
and the file state of shapes is not believed: it may hold for one number of trips alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from veltair.compiler.onnx.constants import captured_names, inner_graphs, read_names
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_checks import stays_true
from veltair.compiler.onnx.node_evaluation import IR_VERSION, Array, TensorType

Extents: TypeAlias = tuple[int | None, ...]  # None where the trips or values decide


class VaryingRank:
    """Stands for the extents of a tensor that gets another number of dimensions at each trip."""


@dataclass(frozen=True, slots=True)
class Partly:
    """What is known of a tensor whose extents the trips of a loop may decide.

    >>> Partly(onnx.TensorProto.FLOAT, (None, 6)).type is None
    True
    """

    kind: int
    extents: Extents | type[VaryingRank] | None  # None: not known at all

    @property
    def type(self) -> TensorType | None:
        """Its type, where all of its shape is known."""
        if not isinstance(self.extents, tuple) or not self.kind:
            return None
        shape = tuple(dim for dim in self.extents if dim is not None)
        return TensorType(self.kind, shape) if len(shape) == len(self.extents) else None


class LoopShapes:
    """Follows what loops give, at one sample size of the batch. ::

    loops = LoopShapes({"": 17})
    loops.visit(loop, types, values)  # the outputs whose shape no number of trips changes
    loops.partly["y"].extents  # (None, 6) of another one
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.partly: dict[str, Partly] = {}  # tensors whose shapes the trips may decide
        self.uneven: set[str] = set()  # those with one dimension where there are no trips, as ONNX Runtime gives them
        self._ids = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]

    def follows(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a loop, or reads what one gives in a shape that the trips may decide."""
        return node.op_type == "Loop" or not self.partly.keys().isdisjoint(read_names(node))

    def visit(
        self, node: onnx.NodeProto, types: Mapping[str, TensorType], values: Mapping[str, Array]
    ) -> dict[str, TensorType]:
        """The types of the outputs whose shape is known; the others are kept in `partly`.

        types, values: of the node's inputs and of what its graphs read, as far as they are known.
        """
        given = self.partly | {name: Partly(known.kind, known.shape) for name, known in types.items()}
        if node.op_type == "Loop":
            results = self._loop(node, given, values)
        else:
            graph = helper.make_graph([node], "node", [], [])
            results = self._infer(graph, node.output, read_names(node), given, values)
            if not self.uneven.isdisjoint(read_names(node)):
                self.uneven.update(node.output)
        found = {name: known.type for name, known in zip(node.output, results, strict=True) if name}
        self.partly |= {n: known for n, known in zip(node.output, results, strict=True) if n and not found[n]}
        return {name: known for name, known in found.items() if known is not None}

    def _loop(self, node: onnx.NodeProto, given: Mapping[str, Partly], values: Mapping[str, Array]) -> list[Partly]:
        count = len(node.input) - 2
        carried = [given.get(name, UNKNOWN) for name in node.input[2:]]
        while True:
            results = self._body(node, carried, given, values)
            kept = [_common(before, after) for before, after in zip(carried, results[:count], strict=True)]
            if kept == carried:
                break
            carried = kept
        trips = _trips(node, values)
        if trips is None:
            self.uneven.update(node.output[count:])
        rows = [r if not isinstance(r.extents, tuple) else Partly(r.kind, (trips, *r.extents)) for r in results[count:]]
        return [*carried, *rows]

    def _body(
        self,
        node: onnx.NodeProto,
        carried: Sequence[Partly],
        given: Mapping[str, Partly],
        values: Mapping[str, Array],
    ) -> list[Partly]:
        """What the body gives after the condition, from such carried tensors."""
        body = onnx.GraphProto()
        body.CopyFrom(attribute(node, "body", None))
        inside = [value.name for value in body.input]
        scalars = [Partly(value.type.tensor_type.elem_type, ()) for value in body.input[:2]]
        inner = {**given, **dict(zip(inside, [*scalars, *carried], strict=True))}
        outer = {name: array for name, array in values.items() if name not in inside}
        names = [value.name for value in body.output[1:]]
        return self._infer(body, names, {*inside, *captured_names(node)}, inner, outer)

    def _infer(
        self,
        graph: onnx.GraphProto,
        names: Iterable[str],
        read: Iterable[str],
        given: Mapping[str, Partly],
        values: Mapping[str, Array],
    ) -> list[Partly]:
        """What ONNX infers of tensors of a graph that reads tensors from outside."""
        wanted = list(names)
        _forget_shapes(graph)
        del graph.input[:], graph.output[:]
        own = {tensor.name for tensor in graph.initializer}.union(*(node.output for node in graph.node))
        for name in sorted(set(read) - own):
            if name in values:
                graph.initializer.append(numpy_helper.from_array(np.asarray(values[name]), name))
                continue
            known, dims = given.get(name, UNKNOWN), None
            if isinstance(known.extents, tuple):
                dims = [f"{name}/{axis}" if dim is None else dim for axis, dim in enumerate(known.extents)]
            graph.input.append(helper.make_tensor_value_info(name, known.kind, dims))
        for place, name in enumerate(wanted):  # an output may be an input or a constant, of which nothing is inferred
            graph.node.append(helper.make_node("Identity", [name], [f"{place}/{name}"]))
            graph.output.append(onnx.ValueInfoProto(name=f"{place}/{name}"))
        try:
            model = helper.make_model(graph, opset_imports=self._ids, ir_version=IR_VERSION)
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # ONNX raises whatever its checks raise
            return [UNKNOWN] * len(wanted)
        return [_read(value.type.tensor_type) for value in inferred.graph.output]


UNKNOWN = Partly(onnx.TensorProto.UNDEFINED, None)


def _read(tensor: onnx.TypeProto.Tensor) -> Partly:
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return Partly(tensor.elem_type, tuple(dims) if tensor.HasField("shape") else None)


def _common(before: Partly, after: Partly) -> Partly:
    """What holds of a carried tensor before and after a trip."""
    if not isinstance(before.extents, tuple) or not isinstance(after.extents, tuple):
        return before if before.extents is VaryingRank else replace(before, extents=None)
    if len(before.extents) != len(after.extents):
        return replace(before, extents=VaryingRank)
    same = zip(before.extents, after.extents, strict=True)
    return replace(before, extents=tuple(a if a == b else None for a, b in same))


def _trips(node: onnx.NodeProto, values: Mapping[str, Array]) -> int | None:
    """The number of trips, where the condition does not end the loop sooner; None where there are none, too."""
    most, first = node.input[:2]
    if most not in values or (first and not (first in values and values[first].all())):
        return None
    return max(0, int(values[most].item())) or None if stays_true(attribute(node, "body", None), set()) else None


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Take out what a graph, and those inside it, state of shapes."""
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in inner_graphs(node):
            _forget_shapes(inner)
