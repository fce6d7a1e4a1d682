"""Imports a run of ONNX nodes, those that nothing of ours takes as layers of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.layer_graph import ImportedLayers, NodeImporter
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.kernels.fallback.onnxruntime_layer import onnxruntime_layer
from veltair.compiler.kernels.fallback.plain_products import why_not_plain
from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.errors import InvariantError, ModelError
from veltair.types import TensorSpec


@dataclass(frozen=True, slots=True)
class FallbackImporter:
    """A `NodeImporter` that asks another one first, and gives ONNX Runtime the nodes that this refuses.

    So it does with products that TVM would run in plain loops. Where a run is refused, each of its nodes is tried
    alone; if all of them pass, the run as a whole falls back. ::

        refused = {}  # `by_operator.lower_nodes` adds to it
        builder = GraphBuilder(view, tables, FallbackImporter(import_region, refused))
    """

    first: NodeImporter
    known: Mapping[str, str]  # nodes that a pattern has refused, by name, and why
    other_opsets: Mapping[str, int] = field(default_factory=dict)  # beside ONNX's own, by domain

    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        values: Mapping[str, TensorSpec],
        constants: Mapping[str, NDArray[Any]],
        inputs: Sequence[str],
        outputs: Sequence[str],
        max_batch: int,
        opset: int,
    ) -> ImportedLayers:
        region = _Region(self.first, nodes, values, constants, inputs, outputs, max_batch, opset)
        reasons = {node.name: self.known[node.name] for node in nodes if node.name in self.known}
        reasons |= {node.name: node.doc_string for node in nodes if is_opaque(node)}
        reasons |= {
            node.name: why for node in nodes if node.name not in reasons and (why := why_not_plain(node, values))
        }
        if not reasons:
            try:
                return region.own(nodes)
            except ModelError as error:
                reasons = region.refused() or dict.fromkeys((node.name for node in nodes), str(error))
        layers, views = list[LayerSpec](), list[tuple[Activation, str]]()
        for run in region.runs(reasons):
            takes, gives = region.ports(run)
            rest = values, constants, takes, gives, max_batch, opset
            if reason := reasons.get(run[0].name):
                layers.append(onnxruntime_layer(run, *rest, self.other_opsets, reason))
                continue
            found = self(run, *rest)  # there is less of it than of the whole, of which something was refused
            layers += found.layers
            views += found.views
        return ImportedLayers(tuple(layers), tuple(views))


@dataclass(frozen=True, slots=True)
class _Region:
    first: NodeImporter
    nodes: Sequence[onnx.NodeProto]
    values: Mapping[str, TensorSpec]
    constants: Mapping[str, NDArray[Any]]
    inputs: Sequence[str]
    outputs: Sequence[str]
    max_batch: int
    opset: int

    def own(self, nodes: Sequence[onnx.NodeProto]) -> ImportedLayers:
        """Layers of our own. Raises ModelError, also where an importer gives another type or shape than ONNX does."""
        takes, gives = self.ports(nodes)
        found = self.first(nodes, self.values, self.constants, takes, gives, self.max_batch, self.opset)
        made = {tensor.name: tensor for layer in found.layers for tensor in layer.outputs}
        made |= {view.name: view for view, _ in found.views}
        for name in gives:
            spec, tensor = self.values[name], made.get(name)
            if tensor is not None and (tensor.dtype, tensor.shape) != (spec.dtype, spec.shape):
                text = f"{tensor.dtype} {tensor.shape} instead of {spec.dtype} {spec.shape}"
                raise ModelError(f"no way to compile {nodes[0].op_type} ({nodes[0].name!r}): {name!r} would be {text}")
        return found

    def refused(self) -> dict[str, str]:
        """The nodes that cannot be imported alone, by name, and why; of nodes that are alike one is tried."""
        seen: dict[tuple[str, ...], str] = {}
        found: dict[str, str] = {}
        for node in self.nodes:
            kind = self._kind(node)
            if kind not in seen:
                try:
                    self.own([node])
                except ModelError as error:
                    seen[kind] = str(error)
                else:
                    seen[kind] = ""
            if seen[kind]:
                found[node.name] = seen[kind]
        return found

    def _kind(self, node: onnx.NodeProto) -> tuple[str, ...]:
        attributes = sorted(attribute.SerializeToString(deterministic=True).hex() for attribute in node.attribute)
        tensors = (
            f"{name} constant" if name in self.constants else f"{spec.dtype} {spec.shape}" if spec else ""
            for name in (*node.input, *node.output)
            for spec in [self.values.get(name)]
        )
        return (node.op_type, *attributes, *tensors)

    def runs(self, reasons: Mapping[str, str]) -> Iterator[list[onnx.NodeProto]]:
        """The nodes in runs, as few as their order allows: each of nodes that fall back, or of none."""
        left, known = list(self.nodes), {*self.inputs, *self.constants, ""}
        made = {name for node in self.nodes for name in node.output}
        needs = {node.name: (_read(node) & made) - set(node.output) for node in self.nodes}
        falls_back, stuck = left[0].name in reasons, 0
        while left:
            run, rest = list[onnx.NodeProto](), list[onnx.NodeProto]()
            for node in left:
                if (node.name in reasons) == falls_back and known.issuperset(needs[node.name]):
                    run.append(node)
                    known.update(node.output)
                else:
                    rest.append(node)
            if run:
                yield run
            stuck = 0 if run else stuck + 1
            if stuck > 1:
                raise InvariantError(f"nodes at {left[0].name!r} wait for each other")
            left, falls_back = rest, not falls_back

    def ports(self, nodes: Sequence[onnx.NodeProto]) -> tuple[list[str], list[str]]:
        """What the nodes read that others make, and what they make that others read."""
        inside, made = {node.name for node in nodes}, {name for node in nodes for name in node.output if name}
        known = {*self.inputs, *(name for node in self.nodes for name in node.output)}
        takes = dict.fromkeys(name for node in nodes for name in _ordered(node) if name in known and name not in made)
        wanted = {name for node in self.nodes if node.name not in inside for name in _read(node)} | set(self.outputs)
        return list(takes), [name for node in nodes for name in node.output if name in wanted]


def _ordered(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *sorted(captured_names(node))]


def _read(node: onnx.NodeProto) -> set[str]:
    return {name for name in _ordered(node) if name}
