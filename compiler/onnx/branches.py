"""Graphs inside nodes that are known to be run: branches whose condition is known, loops that fill a sequence.

Nodes of a branch take the place of their `If`. PyTorch's older exporter writes `tensor_split` as a loop of a constant
number of trips that appends to a sequence, of which parts are picked by constant numbers: tensors, once the trips stand
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from veltair.compiler.onnx.constants import inner_graphs, rename_tensors
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_checks import stays_true
from veltair.compiler.onnx.node_evaluation import Array

MOST_TRIPS = 32  # of a loop whose nodes are written out for each
SEQUENCES = frozenset({"SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceAt", "SequenceLength"})


def take_branch(node: onnx.NodeProto, condition: bool) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The nodes and the constants of a branch, which make the outputs of the `If` under their names.

    What the branch makes for itself is renamed, since another one may use its names. Graphs inside the branch are
    renamed with it.
    """
    branch = onnx.GraphProto()
    branch.CopyFrom(attribute(node, "then_branch" if condition else "else_branch", None))
    names = {name: f"{node.name}/{name}" for inner in branch.node for name in inner.output if name}
    names |= {tensor.name: f"{node.name}/{tensor.name}" for tensor in branch.initializer}
    constants = {names[tensor.name]: numpy_helper.to_array(tensor) for tensor in branch.initializer}
    rename_tensors(branch, names)
    ends = [
        onnx.helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer], name=f"{node.name}/{outer}")
        for inner, outer in zip(branch.output, node.output, strict=True)
        if outer
    ]
    for number, inner in enumerate(branch.node):  # names inside of it need not be unique, nor be there
        inner.name = f"{node.name}/{number}/{inner.name or inner.op_type}"
    return [*branch.node, *ends], constants


def tensors_of_sequences(graph: onnx.GraphProto, constants: dict[str, Array]) -> None:
    """Replace all sequences of the graph by their tensors, if constants say what each holds; else it stays as it is.

    constants: by name; those that take the place of numbers of trips are added.
    """
    if not any(node.op_type in SEQUENCES for node in graph.node):
        return
    found = _Sequences(dict(constants))
    try:
        found.walk(graph.node)
    except _NotKnownError:
        return
    if not found.tensors.keys().isdisjoint(output.name for output in graph.output):
        return
    del graph.node[:]
    graph.node.extend(found.nodes)
    constants |= found.constants


class _NotKnownError(Exception):
    """Values decide what a sequence holds, or something else reads it."""


@dataclass(slots=True)
class _Sequences:
    """The graph without sequences so far. `tensors`: what each of them holds."""

    constants: dict[str, Array]
    tensors: dict[str, list[str]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def walk(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            first = self.tensors.get(node.input[0] if node.input else "")
            match node.op_type:
                case "Constant" if node.attribute[0].name == "value":
                    self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
                case "SequenceEmpty":
                    self.tensors[node.output[0]] = []
                case "SequenceConstruct":
                    self.tensors[node.output[0]] = list(node.input)
                case "Identity" if first is not None:
                    self.tensors[node.output[0]] = first
                case "SequenceInsert" if first is not None:
                    at = self._number(node.input[2]) if len(node.input) > 2 and node.input[2] else len(first)
                    if not -len(first) <= at <= len(first):
                        raise _NotKnownError
                    at += len(first) if at < 0 else 0
                    self.tensors[node.output[0]] = [*first[:at], node.input[1], *first[at:]]
                case "SequenceAt" if first is not None:
                    at = self._number(node.input[1])
                    if not -len(first) <= at < len(first):
                        raise _NotKnownError
                    self.nodes.append(onnx.helper.make_node("Identity", [first[at]], node.output, name=node.name))
                case "SequenceLength" if first is not None:
                    self.constants[node.output[0]] = np.array(len(first), np.int64)
                case "Loop" if any(name in self.tensors for name in node.input[2:]):
                    self._trips(node)
                case _:
                    if node.op_type in SEQUENCES or not self.tensors.keys().isdisjoint(_reads(node)):
                        raise _NotKnownError
                    self.nodes.append(node)

    def _number(self, name: str) -> int:
        value = self.constants.get(name)
        if value is None or value.size != 1:
            raise _NotKnownError
        return int(value.item())

    def _trips(self, loop: onnx.NodeProto) -> None:
        """Write out each trip of a loop; what one carries to the next are names."""
        body, trips, carried = attribute(loop, "body", None), self._number(loop.input[0]), list(loop.input[2:])
        begins = self.constants.get(loop.input[1])
        if loop.input[1] and (begins is None or not begins.all()):
            raise _NotKnownError
        if not 0 <= trips <= MOST_TRIPS or not stays_true(body, set()) or len(loop.output) != len(carried):
            raise _NotKnownError
        for trip in range(trips):
            prefix = f"{loop.name}/{trip}"
            turn = onnx.GraphProto()
            turn.CopyFrom(body)
            made = {name for inner in turn.node for name in inner.output if name}
            names = {name: f"{prefix}/{name}" for name in (*made, *(tensor.name for tensor in turn.initializer))}
            self.constants |= {names[tensor.name]: numpy_helper.to_array(tensor) for tensor in turn.initializer}
            number, goes_on = (value.name for value in turn.input[:2])
            names |= {number: f"{prefix}/number", goes_on: f"{prefix}/goes_on"}
            dims = [
                len(value.type.tensor_type.shape.dim) for value in turn.input[:2]
            ]  # ONNX Runtime gives vectors, too
            self.constants[names[number]] = np.full([1] * dims[0], trip, np.int64)
            self.constants[names[goes_on]] = np.full([1] * dims[1], True)
            names |= {value.name: now for value, now in zip(turn.input[2:], carried, strict=True)}
            rename_tensors(turn, names)
            for place, inner in enumerate(turn.node):
                inner.name = f"{prefix}/{place}/{inner.name or inner.op_type}"
            self.walk(turn.node)
            carried = [names.get(value.name, value.name) for value in body.output[1:]]
        for now, output in zip(carried, loop.output, strict=True):
            if now in self.tensors:
                self.tensors[output] = self.tensors[now]
            elif output:
                self.nodes.append(onnx.helper.make_node("Identity", [now], [output], name=f"{loop.name}/{output}"))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node and the graphs inside it read."""
    yield from node.input
    for graph in inner_graphs(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from _reads(inner)
