"""Refuses nodes that cannot be served: cycles, loops without an end, indices beyond an axis, types without a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from veltair.compiler.onnx.constants import inner_graphs
from veltair.compiler.onnx.node_attributes import attribute
from veltair.errors import ModelError
from veltair.types import TensorSpec

VALUE_TYPES = frozenset(
    {
        *("float32", "float64", "float16", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    }
)
ALONG_AN_AXIS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0}  # with the axis by default
OF_SEVERAL_AXES = frozenset({"GatherND", "ScatterND"})


def sort_nodes(graph: onnx.GraphProto, path: Path) -> None:
    """Put each node behind those whose outputs it reads; ONNX Runtime takes them in any order, ONNX's checker does not.

    Raises ModelError naming the nodes of a cycle.
    """
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    reads = [{makers[name] for name in _read_outside(node) if name in makers} for node in graph.node]
    if all(before < place for place, read in enumerate(reads) for before in read):
        return
    try:
        order = list(TopologicalSorter(dict(enumerate(reads))).static_order())
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise ModelError(
            f"{path}: node {node.name or node.output[0]!r} ({node.op_type}) reads what depends on its own output; "
            "expected nodes with a topological order"
        ) from None
    nodes = onnx.GraphProto(node=[graph.node[place] for place in order])
    graph.node.MergeFrom(nodes.node)
    del graph.node[: len(order)]


def _read_outside(node: onnx.NodeProto) -> set[str]:
    """The tensors that a node and the graphs inside it read, without those that these graphs make."""
    found = {name for name in node.input if name}
    for graph in inner_graphs(node):
        own = {each.name for each in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        read = {output.name for output in graph.output}.union(*map(_read_outside, graph.node))
        found |= read - own
    return found


def check_loops(graph: onnx.GraphProto, path: Path, outer_true: Set[str] = frozenset()) -> None:
    """Refuse a Loop without a trip count whose condition is true and stays so, down to inner graphs. Raises ModelError.

    outer_true: tensors outside of the graph that are constants and true.
    """
    makers = {name: node for node in graph.node for name in node.output}
    always = {*outer_true, *(t.name for t in graph.initializer if _is_true(t))}.difference(makers)
    always |= {name for name, node in makers.items() if node.op_type == "Constant" and _is_true(node.attribute[0].t)}
    for node in graph.node:
        if node.op_type == "Loop":
            trips, begins = (*node.input, "", "")[:2]
            body = attribute(node, "body", None)
            if not trips and (not begins or begins in always) and stays_true(body, always):
                raise ModelError(
                    f"{path}: node {node.name!r}: Loop never ends: it has no trip count, and its condition stays true"
                )
        for inner in inner_graphs(node):
            check_loops(inner, path, always)


def stays_true(body: onnx.GraphProto, outer_true: Set[str]) -> bool:
    """Whether the condition that a Loop's body gives is the one that it gets, or a constant that is true."""
    makers = {name: node for node in body.node for name in node.output}
    constants = {tensor.name: tensor for tensor in body.initializer}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name in makers:
        return makers[name].op_type == "Constant" and _is_true(makers[name].attribute[0].t)
    if name in constants:
        return _is_true(constants[name])
    given = [value.name for value in body.input]
    return name == given[1] if name in given else name in outer_true


def _is_true(tensor: onnx.TensorProto) -> bool:
    small = tensor.data_type == onnx.TensorProto.BOOL and list(tensor.dims) in ([], [1])
    return small and tensor.data_location != tensor.EXTERNAL and bool(numpy_helper.to_array(tensor).all())


def check_values(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    path: Path,
) -> None:
    """Refuse nodes whose outputs have types or shapes that no kernel supports, and whose constants do not fit their
    inputs. Raises ModelError.

    constants: by name; a table among them may be rows that the file keeps narrower.
    """
    for node in nodes:
        where = f"{path}: node {node.name!r}"
        if node.op_type == "Conv":  # ONNX's inference does not compare these
            taken, given = attribute(node, "group", 1) * values[node.input[1]].shape[1], values[node.input[0]].shape[1]
            if given != taken:
                raise ModelError(f"{where}: Conv's weights are for {taken} channels, and its input has {given}")
        if len(node.input) > 1 and node.input[0] in values and node.input[1] in constants:
            _check_indices(node, values[node.input[0]].shape, constants[node.input[1]], where)
        for spec in (values[name] for name in node.output if name):
            if spec.dtype not in VALUE_TYPES:
                expected = "float32, float64, float16, bool or integers"
                raise ModelError(f"{where}: operator {node.op_type} gives {spec.dtype}; expected {expected}")
            if 0 in spec.shape:
                raise ModelError(f"{where}: operator {node.op_type} gives an empty tensor of shape {spec.shape}")


def _check_indices(node: onnx.NodeProto, shape: tuple[int, ...], indices: NDArray[Any], where: str) -> None:
    """ONNX's inference does not compare these with the axes; ONNX Runtime does when a query runs."""
    if node.op_type in ALONG_AN_AXIS and shape:
        axis = attribute(node, "axis", ALONG_AN_AXIS[node.op_type]) % len(shape)
        columns = [(axis, indices)]
    elif node.op_type in OF_SEVERAL_AXES and indices.ndim:
        first = attribute(node, "batch_dims", 0)
        columns = [(first + place, indices[..., place]) for place in range(indices.shape[-1])]
    else:
        return
    for axis, found in columns:
        extent = shape[axis]
        if extent < 0 or not found.size:  # one that grows with the batch is known when a query runs
            continue
        outside = (found < -extent) | (found >= extent)
        if outside.any():
            wrong = int(np.asarray(found)[outside].flat[0])
            raise ModelError(
                f"{where}: {node.op_type} has the index {wrong}, and axis {axis} of its input has {extent} entries"
            )
