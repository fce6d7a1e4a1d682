"""The last steps of lowering: outputs in memory of their own, halos from what all consumers asked, and the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_graph import LayerGraph, Slice
from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute
from veltair.profiles.artifact.manifest import Port


def complete_outputs(view: ModelView, builder: GraphBuilder) -> None:
    """Make every output row-major, of its ONNX type and in memory of its own.

    A view of an input or of another output, or what shares its memory with a concatenated tensor, is copied.
    """
    builder.import_deferred()
    for port in view.outputs:
        builder.to_row_major(port.name)
    inputs = {port.name for port in view.inputs}
    taken = inputs | set(builder.slices) | {where.whole for where in builder.slices.values()}
    for port in view.outputs:
        base = builder.views.get(port.name, port.name)
        if base in taken:
            builder.copy_output(port.name)
        taken.add(base)


def complete_graph(
    view: ModelView, builder: GraphBuilder, features: Sequence[Port] = (), packed_buffers: Sequence[Port] = ()
) -> LayerGraph:
    """The graph, with every blocked tensor in the halo that its consumers asked for.

    features, packed_buffers: the raw features that layers in front of the model read, and the tensors they lie in.
    """
    halos = _shared_halos(builder.halos, builder.slices)

    def final(tensor: Activation) -> Activation:
        return replace(tensor, halo=halos[tensor.name]) if tensor.name in halos else tensor

    layers = tuple(
        replace(layer, inputs=tuple(map(final, layer.inputs)), outputs=tuple(map(final, layer.outputs)))
        for layer in builder.layers
    )
    activations = {t.name: t for layer in layers for t in (*layer.inputs, *layer.outputs)}
    for name in (*builder.views, *(where.whole for where in builder.slices.values())):
        activations.setdefault(name, final(builder.tensors[name]))
    inputs = tuple(_input_port(spec.name, view) for spec in view.inputs)
    outputs = tuple(Port(spec.name, spec.dtype, spec.shape) for spec in view.outputs)
    for port in (*inputs, *outputs):
        activations.setdefault(port.name, Activation(port.name, port.dtype, port.shape))
    return LayerGraph(
        layers=layers,
        views=dict(builder.views),
        slices=dict(builder.slices),
        activations=activations,
        inputs=(*features, *inputs),
        outputs=outputs,
        max_batch=view.max_batch,
        packed_buffers=tuple(packed_buffers),
    )


def _shared_halos(halos: Mapping[str, Halo], slices: Mapping[str, Slice]) -> dict[str, Halo]:
    """The halos once a whole and its slices have the same one."""
    groups: dict[str, list[str]] = {}
    for piece, where in slices.items():
        whole = where.whole
        while whole in slices:
            whole = slices[whole].whole
        groups.setdefault(whole, [whole]).append(piece)
    shared = dict(halos)
    for members in groups.values():
        halo = Halo()
        for name in members:
            halo = halo.union(halos.get(name, Halo()))
        if halo != Halo():
            shared.update(dict.fromkeys(members, halo))
    return shared


VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "Expand", "Transpose")
INDEXED = ("Gather", "GatherElements", "ScatterElements", "GatherND", "ScatterND")


def _input_port(name: str, view: ModelView) -> Port:
    """An input; where it is indices, its values are bounded by the shortest axis that they index.

    Ids of a Gather are rows. Any other index may count from the end, as in ONNX.
    """
    spec = view.values[name]
    if name in view.model.bounds:
        return Port(name, spec.dtype, spec.shape, *view.model.bounds[name])
    rows = [
        view.shape_of(node.input[0])[attribute(node, "axis", 0)]
        for node in view.users_of(name)
        if node.op_type == "Gather" and node.input[1] == name
    ]
    if rows:
        bounds = (0, min(rows) - 1) if min(rows) > 0 else (None, None)
    else:
        extents = _indexed_extents(name, view) if np.dtype(spec.dtype).kind == "i" else []
        bounds = (-min(extents), min(extents) - 1) if extents and min(extents) > 0 else (None, None)
    return Port(name, spec.dtype, spec.shape, *bounds)


def _indexed_extents(name: str, view: ModelView) -> list[int]:
    """The extents of the axes that a tensor's values are indices of, itself or behind views. An open one is below 0."""
    found = list[int]()
    for node in view.users_of(name):
        read = [place for place, given in enumerate(node.input) if given == name]
        if node.op_type in VIEWS and read == [0]:
            found += _indexed_extents(node.output[0], view)
        elif node.op_type in INDEXED and read == [1]:
            shape, indices = view.shape_of(node.input[0]), view.shape_of(name)
            several = node.op_type in ("GatherND", "ScatterND")
            if several and (indices[-1] != 1 or attribute(node, "batch_dims", 0)):
                continue
            found.append(shape[0 if several else attribute(node, "axis", 0)])
    return found
