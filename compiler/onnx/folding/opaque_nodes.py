"""Nodes whose tensors have no shape that can be told before a query runs: they become one node with a graph inside.

What the operators of detection heads and computed axes give depends on values. Such tensors are left to ONNX Runtime,
as long as everything that leaves them has a shape that is known, or that the file states. So are floats of 16 bits and
less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
import onnx
from onnx import TensorProto, helper

from veltair.compiler.onnx.constants import captured_names, read_names, rename_tensors
from veltair.compiler.onnx.folding.row_numbers import ROWS
from veltair.compiler.onnx.node_evaluation import Array
from veltair.types import TensorSpec

OWN_DOMAIN, OPAQUE = "veltair", "OnnxRuntime"  # OnnxRuntime(…): its graph `body`; the doc string says why
NARROW_FLOATS = {  # element types of tensors that nothing of ours computes
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8e5m2fnuz",
}


def is_opaque(node: onnx.NodeProto) -> bool:
    return bool(node.domain == OWN_DOMAIN and node.op_type == OPAQUE)


def narrow_floats(nodes: Sequence[onnx.NodeProto], kinds: Mapping[str, int], outputs: Set[str]) -> dict[str, str]:
    """Why nothing of ours computes a tensor, of those that are floats of 8 or 16 bits.

    kinds: element types of the tensors that are not known before a query runs.
    outputs: of the model; one of them may be float16, of a wider type.

    >>> cast = helper.make_node("Cast", ["x"], ["y"], "c", to=10)
    >>> narrow_floats([cast], {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT16}, set())
    {'y': "node 'c': Cast gives float16"}
    >>> narrow_floats([cast], {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT16}, {"y"})
    {}
    """
    return {
        name: f"node {node.name!r}: {node.op_type} gives {NARROW_FLOATS[kinds[name]]}"
        for node in nodes
        for name in node.output
        if kinds.get(name) in NARROW_FLOATS and not (name in outputs and _narrows(node, kinds))
    }


def _narrows(node: onnx.NodeProto, kinds: Mapping[str, int]) -> bool:
    """Whether a node casts a wider type to float16."""
    wider = node.op_type == "Cast" and kinds.get(node.input[0]) not in NARROW_FLOATS
    return wider and kinds.get(node.output[0]) == TensorProto.FLOAT16


def body_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes inside of one that `join_opaque` has made, on the names that it reads now."""
    body = onnx.GraphProto()
    body.CopyFrom(node.attribute[0].g)
    pairs = zip([port.name for port in body.input], node.input, strict=True)
    rename_tensors(body, {old: new for old, new in pairs if new != old})
    return list(body.node)


def standard_nodes(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array], values: Mapping[str, TensorSpec]
) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The nodes and constants of a model whose extents are all fixed, none of them of our domain.

    >>> rows = helper.make_node(ROWS, ["table"], ["y"], domain=OWN_DOMAIN)
    >>> table = np.array([[1], [2]])
    >>> standard_nodes([rows], {"table": table}, {"y": TensorSpec("y", "int64", (3, 1))})[1]["y"].tolist()
    [[1], [2], [1]]
    """
    found: list[onnx.NodeProto] = []
    stated = dict(constants)
    for node in nodes:
        if node.op_type == ROWS:
            [name] = node.output
            stated[name] = np.resize(constants[node.input[0]], values[name].shape)
        else:
            found += body_nodes(node) if is_opaque(node) else [node]
    return found, stated


def join_opaque(
    nodes: Sequence[onnx.NodeProto], opaque: Mapping[str, str], known: Set[str], computed: Set[str], outputs: Set[str]
) -> list[onnx.NodeProto]:
    """The nodes in a topological order, one of them in place of all that make or read an opaque tensor.

    nodes: in topological order.
    opaque: why the shape of a tensor cannot be told, by its name.
    known: tensors whose shape is known; of opaque ones those of which the file states it.
    computed: of these, the ones that follow from the batch; what computes them for the joined nodes is joined too.
    outputs: of the model.
    """
    inside = {i for i, node in enumerate(nodes) if opaque.keys() & (read_names(node) | set(node.output))}
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    reads = [sorted({maker[name] for name in read_names(node) if name in maker}) for node in nodes]
    size = -1
    while size != len(inside):
        size = len(inside)
        inside |= {maker[name] for i in inside for name in read_names(nodes[i]) & computed if name in maker}
        behind = _reached(inside, reads)
        before = _needed(inside, reads)
        inside |= (
            behind & before
        )  # what lies between two of them would have to wait for the one and come before the other
    behind = _reached(inside, reads) - inside
    wanted = outputs | {name for i, node in enumerate(nodes) if i not in inside for name in read_names(node)}
    joined = _join([nodes[i] for i in sorted(inside)], next(iter(opaque.values())), known, wanted)
    others = [i for i in range(len(nodes)) if i not in inside]
    return [*(nodes[i] for i in others if i not in behind), joined, *(nodes[i] for i in others if i in behind)]


def wrap_foreign(nodes: Sequence[onnx.NodeProto], known: Set[str], outputs: Set[str]) -> Iterator[onnx.NodeProto]:
    """The nodes, each whose operator ONNX does not define inside a node of its own: patterns know operators by name."""
    wanted = outputs | {name for node in nodes for name in read_names(node)}
    for node in nodes:
        if node.domain == OWN_DOMAIN or onnx.defs.has(node.op_type, node.domain):
            yield node
        else:
            yield _join([node], f"operator {node.domain}.{node.op_type} is not one of ONNX", known, wanted)


def _reached(start: set[int], reads: Sequence[Sequence[int]]) -> set[int]:
    """The nodes that read, in any number of steps, what those of `start` make."""
    found: set[int] = set()
    for i, before in enumerate(reads):
        if any(j in start or j in found for j in before):
            found.add(i)
    return found


def _needed(start: set[int], reads: Sequence[Sequence[int]]) -> set[int]:
    """The nodes that those of `start` depend on, in any number of steps."""
    found: set[int] = set()
    for i in range(len(reads) - 1, -1, -1):
        if i in start or i in found:
            found.update(reads[i])
    return found


def _join(group: Sequence[onnx.NodeProto], reason: str, known: Set[str], wanted: Set[str]) -> onnx.NodeProto:
    """A node with the group inside. `wanted`: what others read, and the outputs of the model."""
    made = {name for node in group for name in node.output}
    read = [name for node in group for name in (*node.input, *sorted(captured_names(node)))]
    takes = list(dict.fromkeys(name for name in read if name in known and name not in made))
    gives = [name for node in group for name in node.output if name in wanted and name in known]
    ports = ([onnx.ValueInfoProto(name=name) for name in names] for names in (takes, gives))
    body = helper.make_graph(group, "body", *ports)
    joined = helper.make_node(OPAQUE, takes, gives, name=f"{group[0].name}/{OPAQUE}", domain=OWN_DOMAIN, body=body)
    joined.doc_string = reason
    return joined
