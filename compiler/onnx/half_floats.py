"""Floats of 16 bits become floats of 32 in a file, before anything looks at them: nothing of ours computes the former.

ONNX Runtime does the same on a CPU, operator by operator, and rounds where a tensor is only moved. Clients give and get
floats of 16 bits as before, and tables whose rows are looked up stay as they are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.constants import all_nodes, all_tensors, inner_graphs, put_array, rename_tensors
from veltair.compiler.onnx.node_attributes import attribute

HALF, WIDE = TensorProto.FLOAT16, TensorProto.FLOAT
TYPES = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that name an element type


def has_half_floats(proto: onnx.ModelProto) -> bool:
    """Whether the file computes with any. An input that is cast at once is none that it computes with."""
    given = {port.name for port in proto.graph.input if _is_half(port)}
    return (
        any(tensor.data_type == HALF for tensor in all_tensors(proto))
        or any(each.name in TYPES and each.i == HALF for node in _nodes(proto) for each in node.attribute)
        or any(node.op_type != "Cast" and not given.isdisjoint(node.input) for node in _nodes(proto))
    )


def state_looked_up_rows(graph: onnx.GraphProto) -> None:
    """Rows of float16 that are looked up become floats at once, which says that their table may stay as it is stored:
    `quantised.tables` knows the pair of a Gather and a Cast."""
    tables = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == HALF and len(tensor.dims) == 2}
    casts = {name for node in graph.node if node.op_type == "Cast" for name in node.input}
    readers = Counter(name for node in graph.node for name in node.input)
    nodes, taken = list[onnx.NodeProto](), _names(graph)
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "Gather" or node.input[0] not in tables or node.output[0] in casts:
            continue
        if readers[node.input[0]] > 1 or attribute(node, "axis", 0) not in (0, -2):
            continue
        out = node.output[0]
        node.output[0], floats = _free_name(taken, f"{out}/rows"), _free_name(taken, f"{out}/floats")
        nodes.append(helper.make_node("Cast", [node.output[0]], [floats], to=WIDE))
        nodes.append(helper.make_node("Cast", [floats], [out], to=HALF))
    del graph.node[:]
    graph.node.extend(nodes)


def widen_half_floats(
    proto: onnx.ModelProto, tables: Mapping[str, NDArray[Any]], folder: Path
) -> dict[str, NDArray[Any]]:
    """Change the types of all such tensors in place, and return the tables with those of them in float32.

    tables: constants that stand outside of the file, by the name of an input. folder: where large tensors of it lie.
    """
    graph, taken = proto.graph, _names(proto.graph)
    constants = {*tables, *(tensor.name for tensor in graph.initializer)}
    ports = [port for port in graph.input if _is_half(port) and port.name not in constants]
    given = [helper.make_node("Cast", [port.name], [_free_name(taken, f"{port.name}/wide")], to=WIDE) for port in ports]
    kept = {port.name for port in ports}
    made = [port.name for port in graph.output if _is_half(port) and port.name not in kept]
    wide = {name: _free_name(taken, f"{name}/wide") for name in made}
    with (folder / "wide.weights").open("wb") as copies:
        for tensor in all_tensors(proto):
            if tensor.data_type == HALF:
                put_array(tensor, numpy_helper.to_array(tensor, base_dir=str(folder)).astype(np.float32), copies)
    for node in _nodes(proto):
        for each in node.attribute:
            if each.name in TYPES and each.i == HALF:
                each.i = WIDE
    for part in _graphs(proto):
        for value in (*part.value_info, *part.input, *part.output):
            if part is not graph or value.name not in {*kept, *made}:
                _widen_type(value.type)
    rename_tensors(graph, {**{node.input[0]: node.output[0] for node in given}, **wide})
    for tensor in graph.initializer:
        tensor.name = wide.get(tensor.name, tensor.name)
    del graph.value_info[:]
    nodes = [*given, *graph.node]
    nodes += [helper.make_node("Cast", [now], [name], to=HALF) for name, now in wide.items()]
    del graph.node[:]
    graph.node.extend(nodes)
    return {name: np.asarray(t, np.float32) if t.dtype == np.float16 else t for name, t in tables.items()}


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from all_nodes([*proto.graph.node, *(node for function in proto.functions for node in function.node)])


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield proto.graph
    for node in _nodes(proto):
        yield from inner_graphs(node)


def _is_half(port: onnx.ValueInfoProto) -> bool:
    return bool(port.type.tensor_type.elem_type == HALF)


def _widen_type(kind: onnx.TypeProto) -> None:
    match kind.WhichOneof("value"):
        case "tensor_type" if kind.tensor_type.elem_type == HALF:
            kind.tensor_type.elem_type = WIDE
        case "sequence_type":
            _widen_type(kind.sequence_type.elem_type)
        case "optional_type":
            _widen_type(kind.optional_type.elem_type)


def _names(graph: onnx.GraphProto) -> set[str]:
    found = {name for node in all_nodes(graph.node) for name in (*node.input, *node.output)}
    return found.union(each.name for each in (*graph.input, *graph.output, *graph.initializer))


def _free_name(taken: set[str], name: str) -> str:
    while name in taken:
        name += "+"
    taken.add(name)
    return name
