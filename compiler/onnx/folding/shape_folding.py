"""Takes the computation of shapes out of a model: what follows from shapes alone becomes constants.

A tensor that is the same at every batch size is a constant. One that only says how large the batch is goes where a node
takes it as a shape: the shape is stated without it. One that repeats along the batch is a constant of one row where its
reader broadcasts it, and elsewhere, as an output of the model is, the output of a node of our own, `ConstantRows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from veltair.compiler.onnx.constants import captured_names, needed_nodes
from veltair.compiler.onnx.folding.batch_axes import BATCHES, dimension, has_batch_elsewhere, one_row, with_axis_first
from veltair.compiler.onnx.folding.element_wise import BROADCASTING
from veltair.compiler.onnx.folding.empty_tensors import leave_out_constants, without_empty
from veltair.compiler.onnx.folding.folded_graph import FoldedGraph
from veltair.compiler.onnx.folding.graph_facts import GraphFacts, opsets
from veltair.compiler.onnx.folding.opaque_nodes import OWN_DOMAIN, is_opaque, join_opaque, narrow_floats, wrap_foreign
from veltair.compiler.onnx.folding.row_numbers import ROWS, keep_apart
from veltair.compiler.onnx.folding.sample_labels import keeps_samples_apart
from veltair.compiler.onnx.folding.shape_arguments import restate
from veltair.compiler.onnx.folding.shape_propagation import TensorFacts, same_values
from veltair.compiler.onnx.folding.sized_outputs import OUTPUT_ROOM, OutputRoom, give_room
from veltair.compiler.onnx.folding.transpositions import simplify_transpositions
from veltair.compiler.onnx.node_evaluation import Array, infer_node
from veltair.compiler.onnx.recurrent_layout import RECURRENT
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import Port
from veltair.types import TensorSpec

INITIAL_STATES = (5, 6)  # inputs of recurrent operators


def fold_shapes(
    proto: onnx.ModelProto,
    constants: Mapping[str, Array],
    dynamic: bool,
    max_batch: int,
    path: Path,
    *,
    fallback: bool = True,
    output_room: OutputRoom = OUTPUT_ROOM,
) -> FoldedGraph:
    """Fold what follows from shapes and constants alone.

    constants: by name, tables included. dynamic: whether a symbolic first dimension of an input is the batch.
    fallback: whether nodes whose shapes cannot be told are joined for ONNX Runtime (`opaque_nodes`).
    output_room: elements for each sample of an output whose extents values decide (`sized_outputs`).

    Raises ModelError naming a node whose shapes cannot be told, or depend on the batch other than in proportion.
    """
    leave_out_constants(proto.graph.node, constants)
    known = GraphFacts(proto=proto, constants=constants, dynamic=dynamic, path=path, fallback=fallback)
    uneven: dict[str, str] = {}
    while True:
        try:
            return _fold(known, uneven, max_batch, output_room)
        except UnevenDimensionError as error:  # ONNX Runtime takes it, and what follows from it
            if not fallback or error.tensor in uneven:
                raise
            uneven[error.tensor] = f"the shape of {error.tensor!r} does not grow in proportion to the batch"


class UnevenDimensionError(ModelError):
    """A dimension of a tensor grows with the batch, and not in proportion, at every batch that is allowed."""

    def __init__(self, path: Path, tensor: str) -> None:
        super().__init__(f"{path}: tensor {tensor!r}: a dimension grows with the batch, but not in proportion")
        self.tensor = tensor


def _fold(known: GraphFacts, uneven: Mapping[str, str], max_batch: int, output_room: OutputRoom) -> FoldedGraph:
    """`uneven`: tensors whose shapes count as ones that cannot be told, and why."""
    proto, constants, dynamic, path, fallback = known.proto, known.constants, known.dynamic, known.path, known.fallback
    propagation, facts = known.propagate(uneven)
    unknown = {**uneven, **known.changing(propagation, max_batch)}
    if unknown != uneven:
        propagation, facts = known.propagate(unknown)
    if (cut := known.cut(facts, unknown, max_batch)) is not None:
        raise UnevenDimensionError(path, cut)
    branches = known.doubtful(propagation, facts, unknown) if fallback else {}
    sized: Mapping[str, Port] = {}
    # An output that has the batch twice, or behind another dimension, is given like one whose extents values decide.
    outputs = known.outputs
    elsewhere = {name for name in outputs & facts.keys() if fallback and has_batch_elsewhere(facts[name])}
    if unstated := elsewhere | (outputs - facts.keys()) | branches.keys():
        ranks = {name: len(facts[name].shapes[0]) for name in elsewhere}
        proto, sized, added = give_room(proto, unstated, output_room, dynamic, path, ranks, branches)
        constants = {**constants, **added}
        known = replace(known, proto=proto, constants=constants)
        unknown |= {n: f"the shape of {n!r} has the batch in another dimension than the first" for n in elsewhere}
        propagation, facts = known.propagate(unknown)
    given, outputs = propagation.nodes, known.outputs
    kinds = {n: f.types[0].kind for n, f in facts.items() if f.values is None} if fallback else {}
    opaque = propagation.opaque | narrow_floats(given, kinds, outputs)
    # Of tensors that nobody outside reads, the values are not kept.
    computed = {n for n, f in facts.items() if f.values is not None and (not f.values or f.constant is None)}
    while True:
        joined = join_opaque(given, opaque, facts.keys(), computed, outputs) if opaque else given
        joined = list(wrap_foreign(joined, facts.keys(), outputs))
        every = dict(facts)  # the folding adds to them
        folding = _Folding(
            every, dict(constants) | propagation.constants, opsets(proto)[""], max_batch, path, opaque.keys()
        )
        rewritten = [*folding.nodes(joined), *folding.outputs(outputs)]
        if not folding.unsupplied:
            break
        if not fallback or folding.unsupplied.keys() <= opaque.keys():
            raise ModelError(f"{path}: {next(iter(folding.unsupplied.values()))}")
        opaque |= folding.unsupplied
    facts = every
    nodes = needed_nodes(folding.renamed(rewritten), outputs)
    named = outputs.union(*([value.name] for value in proto.graph.input), *(node.output for node in nodes))
    values = {name: tensor_spec(name, facts[name], path) for name in facts if name in named}
    values |= {name: TensorSpec(name, str(array.dtype), array.shape) for name, array in folding.constants.items()}
    nodes = needed_nodes(simplify_transpositions(nodes, values, outputs, folding.constants), outputs)
    folded = FoldedGraph(nodes, folding.constants, values, tuple(output.name for output in proto.graph.output), sized)
    apart = keep_apart(nodes, outputs, folded.values, folded.constants)
    # Whether rows of what is joined mix, nobody knows; a dynamic scale is worked out from all of a batch.
    apart = apart and not any(is_opaque(n) or n.op_type == "DynamicQuantizeLinear" for n in nodes)
    folded.mergeable = apart and keeps_samples_apart(nodes, outputs, values, folded.constants, folding.opset)
    return folded


def tensor_spec(name: str, facts: TensorFacts, path: Path) -> TensorSpec:
    """The type and shape of a tensor; -k stands for k times the batch."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(facts.types[0].kind))
    dims = [dimension(extents) for extents in zip(*facts.shapes, strict=True)]
    if any(dim is None for dim in dims):
        raise UnevenDimensionError(path, name)
    return TensorSpec(name, "string" if dtype.kind == "O" else str(dtype), tuple(d for d in dims if d is not None))


@dataclass(slots=True)
class _Folding:
    """Rewrites the nodes that read folded tensors."""

    facts: dict[str, TensorFacts]
    constants: dict[str, Array]
    opset: int
    max_batch: int
    path: Path
    opaque: Set[str]  # tensors that ONNX Runtime computes, whatever is known of them
    tables: dict[str, str] = field(default_factory=dict)  # output of a ConstantRows node -> its table
    unsupplied: dict[str, str] = field(default_factory=dict)  # output of a node that cannot be given its inputs -> why

    def nodes(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """The nodes that compute what is not known, with ConstantRows nodes in front of their first readers."""
        for node in nodes:
            if any(self.facts[name].values is None or name in self.opaque for name in node.output if name):
                full, sizes = without_empty(node, self.facts)
                self.constants |= sizes
                changed = self._restated(full)
                for place, name in enumerate(changed.input):
                    facts = self.facts.get(name)
                    if facts is not None and facts.values is not None and name not in self.constants:
                        yield from self._supply(changed, place, facts)
                if not is_opaque(changed):
                    self._supply_inner(changed)
                yield changed

    def outputs(self, names: Set[str]) -> Iterator[onnx.NodeProto]:
        """Nodes that give outputs of the model whose values are known."""
        for name in sorted(names):
            facts = self.facts.get(name)
            if facts is not None and facts.values is not None and name not in self.tables and name not in self.opaque:
                table = self._rows(facts)
                if table is None:
                    self.unsupplied[name] = f"output {name!r} is computed from the batch alone"
                    continue
                if table.size == 0:
                    raise ModelError(f"{self.path}: output {name!r} has no elements (its shape is {facts.shapes[0]})")
                yield self._rows_node(name, table)

    def _restated(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node, with inputs that are shapes stated as constants where they depend on the batch."""
        arguments = restate(node, self.facts)
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for place, value in arguments.items():
            name = f"{node.name}/{place}"
            while name in self.facts or name in self.constants:
                name += "_"
            self.constants[name] = value
            changed.input[place] = name
        return changed

    def _supply(self, node: onnx.NodeProto, place: int, facts: TensorFacts) -> Iterator[onnx.NodeProto]:
        """Give a node an input whose values are known, by a constant or by a node that is yielded."""
        name = node.input[place]
        constant = facts.constant
        if constant is not None:
            self.constants[name] = constant
            return
        row = one_row(facts)
        if row is not None and node.op_type in RECURRENT and place in INITIAL_STATES:
            # Zeros are what an initial state is where none is given; the patterns know that one row stands for all.
            node.input[place] = f"{name}/row" if row.any() else ""
            self.constants |= {f"{name}/row": row} if row.any() else {}
            return
        if row is not None and node.op_type in BROADCASTING and self._broadcasts(node, name, row):
            node.input[place] = f"{name}/row"
            self.constants[f"{name}/row"] = row
            return
        if name in self.tables:
            return
        found = list(self._rows_along_an_axis(name, facts))
        if not found:
            reason = (
                f"node {node.name!r}: {node.op_type} reads {name!r}, which is computed from the batch; "
                "expected a constant, rows that repeat or count, or a shape"
            )
            self.unsupplied |= dict.fromkeys(node.output, reason)
        yield from found

    def _rows_along_an_axis(self, name: str, facts: TensorFacts) -> Iterator[onnx.NodeProto]:
        """A node that gives rows, and one that brings them to their axis where that is not the first; or none."""
        rank = len(facts.shapes[0])
        for axis in range(rank):
            turned = with_axis_first(facts, axis)
            table = self._rows(turned)
            if table is not None and axis == 0:
                yield self._rows_node(name, table)
                return
            if table is not None:
                first = f"{name}/axis{axis}"
                self.facts[first], self.tables[name] = turned, f"{first}/rows"
                yield self._rows_node(first, table)
                order = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
                yield helper.make_node("Transpose", [first], [name], name=f"{name}/Transpose", perm=order)
                return

    def _supply_inner(self, node: onnx.NodeProto) -> None:
        """Give the graphs inside a node the tensors outside whose values are known."""
        for name in captured_names(node) & self.facts.keys():
            facts = self.facts[name]
            if facts.values is not None and name not in self.constants:
                if facts.constant is None:
                    raise ModelError(f"{self.path}: node {node.name!r}: a graph inside it reads the batch as {name!r}")
                self.constants[name] = facts.constant

    def _rows_node(self, name: str, table: Array) -> onnx.NodeProto:
        self.tables[name] = f"{name}/rows"
        self.constants[f"{name}/rows"] = table
        return helper.make_node(ROWS, [f"{name}/rows"], [name], name=f"{name}/{ROWS}", domain=OWN_DOMAIN)

    def _broadcasts(self, node: onnx.NodeProto, name: str, row: Array) -> bool:
        """Whether a node gives outputs of the same shapes if it reads one row instead of all."""
        for sample in range(len(self.facts[name].types)):
            rows = {n: self.constants[n] for n in node.input if n in self.constants} | {name: row}
            types = {n: self.facts[n].types[sample] for n in node.input if n in self.facts}
            types |= {n: TensorFacts.of_constant(array, 1).types[0] for n, array in rows.items()}
            found = infer_node(node, self.opset, types, {})
            if any(found[output] != self.facts[output].types[sample] for output in node.output):
                return False
        return True

    def _rows(self, facts: TensorFacts) -> Array | None:
        """The table whose rows, over and over, are the tensor's at every batch size; None where there is none."""
        constant = facts.constant
        if constant is not None:
            return constant
        assert facts.values is not None
        spec = [dimension(extents) for extents in zip(*facts.shapes, strict=True)]
        if not spec or spec[0] is None or spec[0] >= 0 or any(dim is None or dim < 0 for dim in spec[1:]):
            return None
        table = facts.values[0][: -spec[0]]
        if all(same_values(np.concatenate([table] * b), v) for b, v in zip(BATCHES, facts.values, strict=True)):
            return table
        if table.dtype.kind not in "iu":
            return None
        # Rows that count: each image has those of the one before it, and a step more.
        step = facts.values[0][-spec[0] : 2 * -spec[0]] - table
        counted = [np.concatenate([table + step * i for i in range(b)]) for b in (*BATCHES, self.max_batch)]
        return counted[-1] if all(map(same_values, counted, facts.values)) else None

    def renamed(self, nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
        """The nodes, where those that read a constant output of the model read its table instead."""
        tables = {name: table for name, table in self.tables.items() if self.constants.pop(name, None) is not None}
        for node in nodes if tables else ():
            for place, name in enumerate(node.input):
                node.input[place] = tables.get(name, name)
        return nodes
