"""The memory-bound parts of a model: what stands between its products, convolutions and look-ups, each by itself.

A part is a connected group of operators that stitching covers. Operators are in one part only if no other kind of node
lies between them, so that a part can always be one kernel. Parts that are alike are one, with a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import NodeImporter
from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.stitch.operators.node_translation import translate_node
from veltair.compiler.stitch.stitch_program import StitchOp
from veltair.types import TensorSpec


@dataclass(frozen=True, slots=True)
class MemoryBoundPart:
    """Nodes of a model with fixed extents. Names of values and nodes begin with the part's own.

    >>> MemoryBoundPart("p0", [], [], {}, [], [], 20).count
    1
    """

    name: str
    nodes: Sequence[onnx.NodeProto]
    ops: Sequence[StitchOp]  # the same as operators of the stitching language
    constants: Mapping[str, NDArray[Any]]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    opset: int
    count: int = 1  # of such parts in the model

    def describe(self) -> dict[str, Any]:
        """What `bench.kernels.xla_parts` reads."""
        return {
            "ops": [(op.output, op.kind, op.terms, op.shape, op.axes, op.stored_shape) for op in self.ops],
            "inputs": [(port.name, port.dtype, port.shape) for port in self.inputs],
            "outputs": [port.name for port in self.outputs],
            "constants": {n: (str(a.dtype), a.shape, a.reshape(-1).tolist()) for n, a in self.constants.items()},
        }


def write_parts(parts: Sequence[MemoryBoundPart], path: Path) -> None:
    """Writes an ONNX file in which the parts stand side by side."""

    def info(spec: TensorSpec) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        return onnx.helper.make_tensor_value_info(spec.name, kind, spec.shape)

    graph = onnx.helper.make_graph(
        [node for part in parts for node in part.nodes],
        path.stem,
        [info(port) for part in parts for port in part.inputs],
        [info(port) for part in parts for port in part.outputs],
        [onnx.numpy_helper.from_array(array, name) for part in parts for name, array in part.constants.items()],
    )
    opset = onnx.helper.make_opsetid("", parts[0].opset)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def import_parts(
    importer: NodeImporter,
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int,
) -> ImportedLayers:
    """Layers of parts that stand side by side: each part by itself, its layers named after it."""
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        groups.setdefault(node.name.partition("/")[0], []).append(node)
    layers, views = list[LayerSpec](), list[tuple[Activation, str]]()
    for group in groups.values():
        read = {name for node in group for name in node.input}
        made = {name for node in group for name in node.output}
        takes, gives = [name for name in inputs if name in read], [name for name in outputs if name in made]
        found = importer(group, values, constants, takes, gives, max_batch, opset)
        layers += found.layers
        views += found.views
    return ImportedLayers(tuple(layers), tuple(views))


def memory_bound_parts(model: OnnxModel, batch: int) -> list[MemoryBoundPart]:
    """The distinct parts of a model, in order, at a batch size."""
    found: dict[str, list[Sequence[onnx.NodeProto]]] = {}
    for nodes in _groups(model):
        part = _part("", nodes, model, batch)
        places = {name: str(i) for i, name in enumerate(_names(part))}
        shapes = [str((port.dtype, port.shape)) for port in (*part.inputs, *part.outputs)]
        wiring = [f"{op.kind}{[places.get(str(t), t) for t in op.terms]}{op.shape}{op.axes}" for op in part.ops]
        found.setdefault(" ".join([*shapes, *wiring]), []).append(nodes)
    alike = enumerate(found.values())
    return [replace(_part(f"p{i}", groups[0], model, batch), count=len(groups)) for i, groups in alike]


def _names(part: MemoryBoundPart) -> list[str]:
    return [*(port.name for port in part.inputs), *part.constants, *(op.output for op in part.ops)]


def _groups(model: OnnxModel) -> Iterator[list[onnx.NodeProto]]:
    """Connected nodes that stitching covers, with equally many other nodes on the longest way to them."""
    depth: dict[str, int] = {}
    group: dict[str, int] = {}  # of each value of a depth
    members: dict[int, list[onnx.NodeProto]] = {}
    for number, node in enumerate(model.nodes):
        computed = [name for name in node.input if name and name not in model.initializers]
        deep = max((depth.get(name, 0) for name in computed), default=0)
        covered = bool(computed) and translate_node(node, model.values, model.initializers, model.opset)
        depth |= dict.fromkeys(node.output, deep if covered else deep + 1)
        if not covered:
            continue
        members[number] = [node]
        for name in (*computed, *node.output):
            key = f"{deep} {name}"
            other = group.setdefault(key, number)
            if other != number:
                members[number] = members.pop(other) + members[number]
                group |= {k: number for k, at in group.items() if at == other}
    for nodes in members.values():
        order = {id(node): i for i, node in enumerate(model.nodes)}
        yield sorted(nodes, key=lambda node: order[id(node)])


def _part(name: str, nodes: Sequence[onnx.NodeProto], model: OnnxModel, batch: int) -> MemoryBoundPart:
    inside = {id(node) for node in nodes}
    made = {output for node in nodes for output in node.output}
    read = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made)
    wanted = {port.name for port in model.outputs}
    wanted |= {n for node in model.nodes if id(node) not in inside for n in node.input}

    def own(other: str) -> str:
        return f"{name}/{other}" if other else ""

    used = {*made, *read}
    constants = {own(n): np.asarray(model.initializers[n]) for n in read if n in model.initializers}
    values = {
        own(n): TensorSpec(own(n), spec.dtype, tuple(-d * batch if d < 0 else d for d in spec.shape))
        for n, spec in model.values.items()
        if n in used
    }
    copies = list[onnx.NodeProto]()
    for node in nodes:
        copies.append(copy := onnx.NodeProto())
        copy.CopyFrom(node)
        copy.name = own(node.name)
        copy.input[:], copy.output[:] = map(own, node.input), map(own, node.output)
    translated = [translate_node(node, values, constants, model.opset) for node in copies]
    return MemoryBoundPart(
        name=name,
        nodes=copies,
        ops=[op for ops in translated for op in ops or ()],
        constants=constants,
        inputs=[values[own(n)] for n in read if n not in model.initializers],
        outputs=[values[own(n)] for node in nodes for n in node.output if n in wanted],
        opset=model.opset,
    )
