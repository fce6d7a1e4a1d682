"""Imports a run of ONNX nodes as layers: stitched where the language covers them, TVM's importer for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.kernels.generic.relax_layers import import_layers
from veltair.compiler.stitch.fusion_explorer import FusionExplorer
from veltair.compiler.stitch.operators.node_translation import TRUE, translate_node
from veltair.compiler.stitch.stitch_program import Shape, StitchOp, StitchProgram
from veltair.compiler.stitch.stitched_layer import StitchedPart, stitched_layer
from veltair.errors import InvariantError, ModelError
from veltair.types import TensorSpec

Values = Mapping[str, TensorSpec]
Constants = Mapping[str, NDArray[Any]]


def import_region(
    nodes: Sequence[onnx.NodeProto],
    values: Values,
    constants: Constants,
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int = 17,
    *,
    packing: bool = True,
) -> ImportedLayers:
    """Layers for a run of nodes; arguments and errors are those of `kernels.generic.import_layers`.

    packing: whether small independent patterns share a kernel.

    A region that TVM's importer only takes whole (it computes shapes across the cuts) is left to it whole.
    """
    translated = _translated(nodes, values, constants, outputs, opset)
    if translated:
        try:
            builder = _RegionBuilder(nodes, translated, values, constants, inputs, outputs, max_batch, opset)
            return builder.region(packing=packing)
        except ModelError:
            pass
    return import_layers(nodes, values, constants, inputs, outputs, max_batch, opset)


def _translated(
    nodes: Sequence[onnx.NodeProto], values: Values, constants: Constants, outputs: Sequence[str], opset: int
) -> dict[int, tuple[StitchOp, ...]]:
    """Operators by the node's place. Booleans are floats between kernels, so nodes outside may read none."""
    found = {i: ops for i, node in enumerate(nodes) if (ops := translate_node(node, values, constants, opset))}
    while True:
        seen = {*outputs, *(name for i, node in enumerate(nodes) if i not in found for name in node.input)}
        exposed = [i for i in found if nodes[i].op_type in TRUE and nodes[i].output[0] in seen]
        if not exposed:
            return found
        for i in exposed:
            del found[i]


class _Waiting:
    """Groups of programs that wait for values, each of which is told once."""

    def __init__(self, groups: Sequence[Sequence[StitchProgram]]) -> None:
        self._groups = dict(enumerate(groups))
        self._missing = {i: {name for p in group for name in p.leaves} for i, group in self._groups.items()}
        self._readers: dict[str, list[int]] = {}
        for i, names in self._missing.items():
            for name in names:
                self._readers.setdefault(name, []).append(i)
        self._ready = [i for i, names in self._missing.items() if not names]

    @property
    def groups(self) -> list[Sequence[StitchProgram]]:
        """Those that still wait, in their order."""
        return list(self._groups.values())

    def learn(self, names: Iterable[str]) -> None:
        for name in names:
            for i in self._readers.pop(name, ()):
                self._missing[i].discard(name)
                if not self._missing[i]:
                    self._ready.append(i)

    def take_ready(self) -> list[Sequence[StitchProgram]]:
        """Those whose values are all known, in their order; they wait no more."""
        ready, self._ready = sorted(self._ready), []
        return [self._groups.pop(i) for i in ready]


class _RegionBuilder:
    """Cuts a region into stitched layers and runs of other nodes."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        translated: Mapping[int, tuple[StitchOp, ...]],
        values: Values,
        constants: Constants,
        inputs: Sequence[str],
        outputs: Sequence[str],
        max_batch: int,
        opset: int,
    ) -> None:
        self.values, self.constants, self.max_batch, self.opset = values, constants, max_batch, opset
        self.prefix = nodes[0].name
        self.others = [node for i, node in enumerate(nodes) if i not in translated]
        self.ops = [op for ops in translated.values() for op in ops]
        self.inputs, self.outputs = inputs, outputs
        self.made = {op.output: op.stored_shape for op in self.ops}
        self.wanted = {*outputs, *(name for node in self.others for name in node.input)}

    def region(self, *, packing: bool) -> ImportedLayers:
        """The layers in order: each kernel as soon as it can run, and the longest runs of other nodes between."""
        explorer = FusionExplorer(self.ops, self._shapes(), self.wanted, self._outside())
        plan = explorer.plan()
        patterns = explorer.packed(plan) if packing else [[pattern] for pattern in plan]
        groups: list[Sequence[StitchProgram]] = [[explorer.program(p) for p in group] for group in patterns]
        known = {*self.inputs, *self.constants, ""}
        others, layers, views = list(self.others), list[LayerSpec](), list[tuple[Activation, str]]()
        waiting = _Waiting(groups)
        waiting.learn(known)
        while groups or others:
            run: list[onnx.NodeProto] = []
            for node in others:
                if known.issuperset(node.input):
                    run.append(node)
                    known.update(node.output)
                    waiting.learn(node.output)
            if run:
                taken = set(map(id, run))
                others = [node for node in others if id(node) not in taken]
                region = self._generic(run, others, groups)
                layers.extend(region.layers)
                views.extend(region.views)
            ready = waiting.take_ready()
            if not ready and not run:
                raise InvariantError(f"region at {self.prefix!r}: kernels wait for each other")
            for group in ready:
                layers.append(self._layer(group))
                made = [name for p in group for name in p.outputs]
                known.update(made)
                waiting.learn(made)
            groups = waiting.groups
        return ImportedLayers(tuple(layers), tuple(views))

    def _shapes(self) -> dict[str, Shape]:
        names = {name for op in self.ops for name in op.operands}
        return {
            name: self.constants[name].shape if name in self.constants else self.values[name].shape
            for name in names - self.made.keys()
        } | self.made

    def _outside(self) -> dict[int, frozenset[int]]:
        """The operators that each operator waits for by way of other nodes."""
        place = {op.output: i for i, op in enumerate(self.ops)}
        ops = {op.output: op for op in self.ops}
        behind: dict[str, frozenset[int]] = {}  # output of another node -> operators it depends on

        def of(name: str) -> frozenset[int]:
            return frozenset([place[name]]) if name in ops else behind.get(name, frozenset())

        for node in self.others:
            needs = frozenset[int]().union(*(of(name) for name in node.input))
            behind |= dict.fromkeys(node.output, needs)
        return {
            i: frozenset[int]().union(*(behind.get(n, frozenset()) for n in op.operands))
            for i, op in enumerate(self.ops)
        }

    def _generic(
        self, run: Sequence[onnx.NodeProto], others: Sequence[onnx.NodeProto], groups: Sequence[Sequence[StitchProgram]]
    ) -> ImportedLayers:
        made = {name for node in run for name in node.output}
        read = {name for node in others for name in node.input} | {n for g in groups for p in g for n in p.leaves}
        inputs = dict.fromkeys(n for node in run for n in node.input if n and n not in made and n not in self.constants)
        outputs = [n for node in run for n in node.output if n and (n in self.outputs or n in read)]
        return import_layers(run, self.values, self.constants, list(inputs), outputs, self.max_batch, self.opset)

    def _layer(self, group: Sequence[StitchProgram]) -> LayerSpec:
        parts = []
        for program in group:
            names = (*program.leaves, *program.outputs)
            constants = {name: self.constants[name] for name in names if name in self.constants}
            tensors = {name: self._activation(name) for name in names if name not in constants}
            parts.append(StitchedPart(program, tensors, constants))
        return stitched_layer(parts, self.max_batch)

    def _activation(self, name: str) -> Activation:
        if name in self.made:
            return Activation(name, "float32", self.made[name])
        return Activation(name, self.values[name].dtype, self.values[name].shape)
