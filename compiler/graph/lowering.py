"""A model on its way from ONNX nodes to layers: every tensor in the layout it was made in, and the layers so far.

Anchors (`compiler/anchors/`) read and extend it. Nodes that no anchor takes wait in a region, which is imported as a
whole when the next layer of ours, or the end, is reached. Halos are settled last, from what all consumers ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.embedding.table_storage import Tables
from veltair.compiler.features.feature_layout import Layout
from veltair.compiler.graph.layer_graph import Graph, Slice
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.stitch.regions import import_region
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import Port


class Lowering:
    """`dtype` and `block` are those of blocked activations: float32 and 16, or uint16 (bfloat16 bits) and 32."""

    def __init__(self, model: OnnxModel, precision: str, tables: Tables) -> None:
        self.model, self.tables = model, tables
        self.constants: Mapping[str, NDArray[Any]] = model.initializers
        self.dtype, self.block = ("uint16", 32) if precision == "bf16" else ("float32", 16)
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in model.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.makers = {name: node for node in model.nodes for name in node.output if name}
        self.output_names = {port.name for port in model.outputs}
        self.known = {
            port.name: Activation(port.name, port.dtype, port.shape) for port in model.inputs
        }  # every tensor in the layout that it was made in
        self.given = set(self.known)  # tensors that are there before the first node
        self.layers: list[LayerSpec] = []
        self.views: dict[str, str] = {}
        self.slices: dict[str, Slice] = {}
        self.halos: dict[str, Halo] = {}
        self.region: list[onnx.NodeProto] = []
        self.done: set[int] = set()  # ids of nodes that a layer has swallowed
        self.features: Layout | None = None  # raw ones, which columns read
        self.patterns: dict[int, Any] = {}  # what was found around a node, by its id: its anchor makes a layer of all

    def begin(self, layers: Sequence[LayerSpec], features: Layout) -> None:
        """Layers in front of the model, which give what it takes for inputs."""
        self.features = features
        for spec in layers:
            self.emit(spec)
            (made,), shape = spec.outputs, self.shape_of(spec.name)
            if made.name != spec.name:
                self.add_view(replace(made, name=spec.name, shape=shape), made.name)
            self.given.add(spec.name)

    # Tensors.

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.model.values[name].shape

    def only_user(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if no other and no output of the model does."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.output_names else None

    def emit(self, spec: LayerSpec) -> None:
        self.flush()
        self.layers.append(spec)
        for tensor in spec.outputs:
            self.known[tensor.name] = tensor

    def blocked(self, name: str, block: int | None = None) -> Activation:
        """The tensor in blocks; converted by a layer of its own where it is row-major."""
        tensor = self.tensor(name)
        if tensor.block:
            return tensor
        block = block or self.block
        twin = f"{name}/blocked{block}"
        if twin not in self.known:
            if len(tensor.shape) != 4 or tensor.dtype != "float32":
                raise ModelError(f"tensor {name!r}: expected (N, C, H, W) of float32, found {tensor}")
            blocked = Activation(twin, self.dtype, tensor.shape, block)
            self.emit(self.spec(twin, "to_blocked", [tensor], [blocked], {}, {}, 0))
        return self.known[twin]

    def rows(self, name: str) -> Activation:
        """The tensor row-major, in bfloat16 if it was made so."""
        return self.plain(name) if self.tensor(name).block else self.known[name]

    def narrowed(self, tensor: Activation) -> Activation:
        """A row-major tensor of float32 in bfloat16; one of bfloat16 as it is."""
        if tensor.dtype == "uint16":
            return tensor
        twin = f"{tensor.name}/narrow"
        if twin not in self.known:
            narrow = replace(tensor, name=twin, dtype="uint16")
            self.emit(self.spec(twin, "cast", [tensor], [narrow], {}, {}, 0))
        return self.known[twin]

    def plain(self, name: str) -> Activation:
        """The tensor row-major and of its ONNX type, under its own name if it was made so."""
        tensor = self.tensor(name)
        wide = tensor.dtype != "uint16" or (name in self.model.values and self.model.values[name].dtype == "uint16")
        if not tensor.block and wide:
            return tensor
        # The row-major twin of a model's output is the output itself.
        twin = name if name in self.output_names else f"{name}/plain"
        if twin == name:
            moved = f"{name}/blocked"
            self.rename(name, moved)
            tensor = self.known[moved]
        if twin not in self.known:
            plain = Activation(twin, "float32", tensor.shape)
            self.emit(self.spec(twin, "to_plain" if tensor.block else "cast", [tensor], [plain], {}, {}, 0))
        return self.known[twin]

    def rename(self, old: str, new: str) -> None:
        """Give a tensor that was already made another name."""

        def moved(tensor: Activation) -> Activation:
            return replace(tensor, name=new) if tensor.name == old else tensor

        self.layers = [
            replace(s, inputs=tuple(map(moved, s.inputs)), outputs=tuple(map(moved, s.outputs))) for s in self.layers
        ]
        self.known[new] = moved(self.known.pop(old))
        self.views = {new if k == old else k: new if v == old else v for k, v in self.views.items()}
        if old in self.halos:
            self.halos[new] = self.halos.pop(old)
        slices = {new if piece == old else piece: where for piece, where in self.slices.items()}
        self.slices = {p: replace(where, whole=new) if where.whole == old else where for p, where in slices.items()}

    def tensor(self, name: str) -> Activation:
        if name not in self.known:
            self.flush()
        if name not in self.known and name in self.constants:
            raise ModelError(f"tensor {name!r}: a constant stands where a computed tensor is expected")
        return self.known[name]

    def is_made(self, name: str) -> bool:
        return name in self.known and name not in self.constants

    def ask_halo(self, tensor: Activation, halo: Halo) -> None:
        self.halos[tensor.name] = self.halos.get(tensor.name, Halo()).union(halo)

    def spec(
        self, name: str, op: str, inputs: list[Activation], outputs: list[Activation],
        attributes: Mapping[str, Any] | LayerParameters, weights: Mapping[str, NDArray[Any]], flops: int,
    ) -> LayerSpec:  # fmt: skip
        typed, untyped = (
            (attributes, {}) if isinstance(attributes, LayerParameters) else (LayerParameters(), attributes)
        )
        ins, outs, most = tuple(inputs), tuple(outputs), self.model.max_batch
        return LayerSpec(name, op, ins, outs, untyped, weights, flops, most, typed)

    # Views and regions.

    def region_outputs(self) -> set[str]:
        return {name for node in self.region for name in node.output}

    def reshaped(self, tensor: Activation, shape: tuple[int, ...]) -> Activation:
        if tensor.shape == shape:
            return tensor
        view = replace(tensor, name=f"{tensor.name}/{'x'.join(map(str, shape))}", shape=shape)
        self.add_view(view, tensor.name)
        return view

    def add_view(self, view: Activation, base: str) -> None:
        self.views[view.name] = self.views.get(base, base)
        self.known[view.name] = view

    def place(self, name: str, where: Slice) -> bool:
        """Have a tensor made right where it is wanted, if it has no place yet and its memory is ours to choose."""
        base = self.views.get(name, name)
        if base not in self.movable():
            return False
        self.slices[base] = where
        return True

    def movable(self) -> set[str]:
        """Tensors that layers make, whole or in slices, and that have no fixed place so far."""
        made = {tensor.name for layer in self.layers for tensor in layer.outputs}
        return (made | {where.whole for where in self.slices.values()}) - set(self.slices) - self.output_names

    def flush(self) -> None:
        """Import the nodes that wait in the region."""
        nodes, self.region = self.region, []
        if not nodes:
            return
        made = {name for node in nodes for name in node.output}
        inside = {id(node) for node in nodes}
        wanted = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
        inputs = [name for name in wanted if name not in self.constants]
        outputs = [
            name
            for node in nodes
            for name in node.output
            if name and (name in self.output_names or any(id(user) not in inside for user in self.users.get(name, [])))
        ]
        plain = {name: self.plain(name) for name in inputs}
        region = import_region(
            nodes, self.model.values, self.constants, inputs, outputs, self.model.max_batch, self.model.opset
        )
        renamed = {name: tensor.name for name, tensor in plain.items()}

        def moved(tensor: Activation) -> Activation:
            return replace(tensor, name=renamed.get(tensor.name, tensor.name))

        for layer in region.layers:
            spec = replace(layer, inputs=tuple(map(moved, layer.inputs)))
            self.layers.append(spec)
            for tensor in spec.outputs:
                self.known[tensor.name] = tensor
        for view, base in region.views:
            self.add_view(view, renamed.get(base, base))

    # The end.

    def graph(self) -> Graph:
        """The layers, once every node was taken or waits in the region."""
        self.flush()
        for name in self.output_names:
            self.plain(name)
        self._own_outputs()
        return self._finish()

    def _own_outputs(self) -> None:
        """Every output has memory of its own: a view of an input or of another output, or what shares its memory with
        a concatenated tensor, is copied."""
        inputs = {port.name for port in self.model.inputs}
        taken = inputs | set(self.slices) | {where.whole for where in self.slices.values()}
        for port in self.model.outputs:
            base = self.views.get(port.name, port.name)
            if base in taken:
                source = f"{port.name}/view"
                self.rename(port.name, source)
                if self.views.pop(port.name, None) or base in inputs:
                    self.views[source] = base
                copy = Activation(port.name, port.dtype, port.shape)
                self.emit(self.spec(copy.name, "copy", [self.known[source]], [copy], {}, {}, 0))
            taken.add(base)

    def _finish(self) -> Graph:
        """Give every blocked tensor the halo that its consumers asked for; a whole and its slices have one halo."""
        groups: dict[str, list[str]] = {}
        for piece, where in self.slices.items():
            whole = where.whole
            while whole in self.slices:
                whole = self.slices[whole].whole
            groups.setdefault(whole, [whole]).append(piece)
        for members in groups.values():
            halo = Halo()
            for name in members:
                halo = halo.union(self.halos.get(name, Halo()))
            if halo != Halo():
                self.halos.update(dict.fromkeys(members, halo))

        def final(tensor: Activation) -> Activation:
            return replace(tensor, halo=self.halos[tensor.name]) if tensor.name in self.halos else tensor

        layers = tuple(
            replace(layer, inputs=tuple(map(final, layer.inputs)), outputs=tuple(map(final, layer.outputs)))
            for layer in self.layers
        )
        activations = {t.name: t for layer in layers for t in (*layer.inputs, *layer.outputs)}
        for name in (*self.views, *(where.whole for where in self.slices.values())):
            activations.setdefault(name, final(self.known[name]))
        inputs = tuple(self._port(spec.name) for spec in self.model.inputs)
        outputs = tuple(Port(s.name, s.dtype, s.shape) for s in self.model.outputs)
        for port in (*inputs, *outputs):
            activations.setdefault(port.name, Activation(port.name, port.dtype, port.shape))
        raw, banks = (self.features.inputs, self.features.banks) if self.features else ((), ())
        inputs = (*raw, *inputs)
        return Graph(layers, self.views, self.slices, activations, inputs, outputs, self.model.max_batch, banks)

    def _port(self, name: str) -> Port:
        """An input; where it is the ids of a Gather, its values are bounded by the shortest table."""
        spec = next(s for s in self.model.inputs if s.name == name)
        rows = [
            self.shape_of(node.input[0])[attribute(node, "axis", 0)]
            for node in self.users.get(name, [])
            if node.op_type == "Gather" and node.input[1] == name
        ]
        bounds = (0, min(rows) - 1) if rows and min(rows) > 0 else (None, None)
        return Port(name, spec.dtype, spec.shape, *bounds)
