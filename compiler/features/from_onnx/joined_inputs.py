"""Columns that a file's own operators compute are joined where the model concatenates them: one layer for all of them.

RECom (3.1) fuses all columns into one kernel. Which of them are neighbours is known once shapes are folded: until then
TensorFlow's views, whose shapes are computed, stand between a column and its concatenation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec
import onnx

from veltair.compiler.features.feature_description import ColumnInput
from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.types import TensorSpec


def join_inputs(model: OnnxModel) -> OnnxModel:
    """The model with one input in place of several that columns of the file give, and that one Concat reads side by
    side; the model itself where there are none."""
    if model.columns is None:
        return model
    given = {joined.name: joined for joined in model.columns.description.inputs}
    ports = {port.name: port for port in model.inputs}
    uses = Counter(name for node in model.nodes for name in (*node.input, *captured_names(node)))
    uses.update(port.name for port in model.outputs)
    pieces = {
        name: ports[name]
        for name in given
        if uses[name] == 1 and len(ports[name].shape) == 2 and ports[name].dtype == "float32"
    }
    joining = _Joining(given, pieces)
    nodes = tuple(joining.node(node) for node in model.nodes)
    if not joining.added:
        return model
    description = msgspec.structs.replace(model.columns.description, inputs=tuple(joining.given.values()))
    left = tuple(port for port in model.inputs if port.name not in joining.gone)
    values = {name: value for name, value in model.values.items() if name not in joining.gone}
    return replace(
        model,
        nodes=nodes,
        values=values | {port.name: port for port in joining.added},
        inputs=(*left, *joining.added),
        columns=replace(model.columns, description=description),
    )


@dataclass(slots=True)
class _Joining:
    """Inputs that columns give, as far as they are joined. `pieces`: those that may be."""

    given: dict[str, ColumnInput]
    pieces: dict[str, TensorSpec]
    added: list[TensorSpec] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def node(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node; a Concat with one input for each run of pieces."""
        if node.op_type != "Concat" or attribute(node, "axis", 0) not in (1, -1):
            return node
        names: list[str] = []
        for ours, run in groupby(node.input, lambda name: name in self.pieces):
            members = list(run)
            names += [self._join(f"{node.output[0]}/joined{len(names)}", members)] if ours else members
        if len(names) == len(node.input):
            return node
        joined = onnx.NodeProto()
        joined.CopyFrom(node)
        joined.input[:] = names
        return joined

    def _join(self, name: str, members: list[str]) -> str:
        if len(members) == 1:
            return members[0]
        columns = tuple(column for member in members for column in self.given.pop(member).columns)
        self.given[name] = ColumnInput(name=name, columns=columns)
        self.added.append(TensorSpec(name, "float32", (-1, sum(self.pieces[member].shape[1] for member in members))))
        self.gone.update(members)
        return name
