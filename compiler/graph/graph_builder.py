"""The layer graph while it is built: every tensor in the layout that it was made in, and the layers so far.

Patterns (`compiler/patterns/`) read the model through a `ModelView` and change the graph only through a `GraphBuilder`.
Nodes that no pattern takes are deferred: they are imported together once the next layer of a pattern, or the end, is
reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.graph.layer_graph import NodeImporter, Slice
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters import LayerParameters
from veltair.errors import ModelError

NO_PARAMETERS = LayerParameters()
EIGHT_BITS = frozenset({"uint8", "int8"})


class GraphBuilder:
    """Emits, replaces, aliases and places the tensors and layers of one model.

    ::

        builder = GraphBuilder(view, TableStorage(), import_region)
        builder.emit("relu_0", "elementwise", [builder.tensor("x")], [y], ElementwiseParameters(("relu",)))
    """

    def __init__(self, view: ModelView, tables: TableStorage, import_nodes: NodeImporter) -> None:
        self.tables = tables
        self._view, self._import_nodes = view, import_nodes
        self._tensors = {port.name: Activation(port.name, port.dtype, port.shape) for port in view.inputs}
        self._input_names = set(self._tensors)
        self._layers: list[LayerSpec] = []
        self._views: dict[str, str] = {}
        self._slices: dict[str, Slice] = {}
        self._halos: dict[str, Halo] = {}
        self._renamed: dict[str, Activation] = {}  # by an earlier name
        self._deferred: list[onnx.NodeProto] = []
        self._taken: set[int] = set()  # ids of nodes that a layer has swallowed

    @property
    def tensors(self) -> Mapping[str, Activation]:
        """Every tensor that was made, in the layout that it was made in."""
        return MappingProxyType(self._tensors)

    @property
    def layers(self) -> Sequence[LayerSpec]:
        return self._layers

    @property
    def views(self) -> Mapping[str, str]:
        """Name of a view -> name of the tensor whose memory it shares."""
        return MappingProxyType(self._views)

    @property
    def slices(self) -> Mapping[str, Slice]:
        return MappingProxyType(self._slices)

    @property
    def halos(self) -> Mapping[str, Halo]:
        return MappingProxyType(self._halos)

    @property
    def input_names(self) -> Set[str]:
        """Tensors that exist before the first node runs."""
        return self._input_names

    @property
    def deferred_outputs(self) -> Set[str]:
        return {name for node in self._deferred for name in node.output}

    def is_made(self, name: str) -> bool:
        return name in self._tensors and name not in self._view.constants

    def is_taken(self, node: onnx.NodeProto) -> bool:
        return id(node) in self._taken or self._view.matches.is_inner(node)

    def tensor(self, name: str) -> Activation:
        """The tensor as it was made. Raises ModelError for a constant."""
        if name not in self._tensors:
            self.import_deferred()
        if name not in self._tensors and name in self._view.constants:
            raise ModelError(f"tensor {name!r}: a constant stands where a computed tensor is expected")
        return self._tensors[name]

    def to_blocked(self, name: str, block: int | None = None) -> Activation:
        """The tensor in blocks; converted by a layer of its own where it is row-major."""
        tensor = self.tensor(name)
        if tensor.block and tensor.dtype not in EIGHT_BITS:
            return tensor
        block = block or self._view.block
        twin = f"{name}/blocked{block}"
        if twin not in self._tensors:
            if len(tensor.shape) != 4 or min(tensor.shape[1:]) < 1 or tensor.dtype != "float32":
                raise ModelError(f"tensor {name!r}: expected (N, C, H, W) of float32, found {tensor}")
            blocked = Activation(twin, self._view.dtype, tensor.shape, block)
            self.emit(twin, "to_blocked", [tensor], [blocked])
        return self._tensors[twin]

    def rows(self, name: str) -> Activation:
        """The tensor row-major, in bfloat16 if it was made so."""
        return self.to_row_major(name) if self.tensor(name).block else self._tensors[name]

    def to_bf16(self, tensor: Activation) -> Activation:
        """A row-major tensor of float32 in bfloat16; one of bfloat16 as it is."""
        if tensor.dtype == "uint16":
            return tensor
        twin = f"{tensor.name}/narrow"
        if twin not in self._tensors:
            narrow = replace(tensor, name=twin, dtype="uint16")
            self.emit(twin, "cast", [tensor], [narrow])
        return self._tensors[twin]

    def to_row_major(self, name: str) -> Activation:
        """The tensor row-major and of its ONNX type, under its own name if it was made so."""
        tensor, values = self.tensor(name), self._view.values
        wide = tensor.dtype != "uint16" or (name in values and values[name].dtype == "uint16")
        if not tensor.block and wide:
            return tensor
        twin = name if name in self._view.output_names else f"{name}/plain"  # that of an output is the output itself
        if twin == name and self._deferred:  # they may read the output, and make its copy
            self.import_deferred()
            return self.to_row_major(name)
        if twin == name:
            self.rename(name, moved := f"{name}/blocked")
            tensor = self._tensors[moved]
        if twin not in self._tensors:
            steps = tensor.dtype in EIGHT_BITS  # with their channels last
            plain = Activation(twin, tensor.dtype if steps else "float32", tensor.shape)
            self.emit(twin, "reorder" if steps else "to_plain" if tensor.block else "cast", [tensor], [plain])
        return self._tensors[twin]

    def reshape(self, tensor: Activation, shape: tuple[int, ...]) -> Activation:
        """A view of a row-major tensor in another shape."""
        tensor = self._current(tensor)
        if tensor.shape == shape:
            return tensor
        view = replace(tensor, name=f"{tensor.name}/{'x'.join(map(str, shape))}", shape=shape)
        self.alias(view, tensor.name)
        return view

    def emit(
        self,
        name: str,
        op: str,
        inputs: Sequence[Activation],
        outputs: Sequence[Activation],
        parameters: LayerParameters = NO_PARAMETERS,
        weights: Mapping[str, NDArray[Any]] = MappingProxyType({}),
        flops: int = 0,
    ) -> None:
        """Append a layer, behind those of the deferred nodes. `flops` are those at batch 1 of a dynamic batch."""
        self.append(
            LayerSpec(name, op, tuple(inputs), tuple(outputs), weights, flops, self._view.max_batch, parameters)
        )

    def append(self, spec: LayerSpec) -> None:
        """Append a layer that is complete already."""
        self.import_deferred()
        self._append(replace(spec, inputs=tuple(map(self._current, spec.inputs))))

    def replace_layer(self, old: LayerSpec, new: LayerSpec) -> None:
        """Put another layer in a layer's place; its outputs are those of the new one."""
        self._layers = [new if spec is old else spec for spec in self._layers]
        self._tensors.update({tensor.name: tensor for tensor in new.outputs})

    def remove_layer(self, spec: LayerSpec) -> None:
        """Take a layer out whose outputs another one is going to make, under other names."""
        self._layers = [other for other in self._layers if other is not spec]
        for tensor in spec.outputs:
            del self._tensors[tensor.name]

    def begin(self, layers: Iterable[LayerSpec]) -> None:
        """Append layers in front of the model, which give inputs: one that bears the layer's name, or several."""
        for spec in layers:
            self.append(spec)
            first, inputs = spec.outputs[0], {spec.name} & self._view.values.keys() or {t.name for t in spec.outputs}
            if first.name not in inputs:
                self.alias(replace(first, name=spec.name, shape=self._view.shape_of(spec.name)), first.name)
            self._input_names |= inputs

    def take(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Mark nodes that a layer has swallowed: they need none of their own."""
        self._taken.update(map(id, nodes))

    def defer(self, node: onnx.NodeProto) -> None:
        """Leave a node that no pattern takes to the importer."""
        self._deferred.append(node)

    def alias(self, view: Activation, base: str) -> None:
        """Add a view of a tensor's memory."""
        self._views[view.name] = self._views.get(base, base)
        self._tensors[view.name] = view

    def copy_output(self, name: str) -> None:
        """Have a copy made under an output's name; the tensor that bears it so far is renamed."""
        base, source = self._views.get(name, name), f"{name}/view"
        self.rename(name, source)
        if base in {port.name for port in self._view.inputs}:
            self._views[source] = base
        copy = Activation(name, self._view.values[name].dtype, self._view.shape_of(name))
        self.emit(name, "copy", [self._tensors[source]], [copy])

    def rename(self, old: str, new: str) -> None:
        """Give a tensor that was already made another name."""

        def moved(tensor: Activation) -> Activation:
            return replace(tensor, name=new) if tensor.name == old else tensor

        self._layers = [
            replace(s, inputs=tuple(map(moved, s.inputs)), outputs=tuple(map(moved, s.outputs))) for s in self._layers
        ]
        self._renamed[old] = self._tensors[new] = moved(self._tensors.pop(old))
        self._views = {new if k == old else k: new if v == old else v for k, v in self._views.items()}
        if old in self._halos:
            self._halos[new] = self._halos.pop(old)
        slices = {new if piece == old else piece: where for piece, where in self._slices.items()}
        self._slices = {p: replace(where, whole=new) if where.whole == old else where for p, where in slices.items()}

    def _current(self, tensor: Activation) -> Activation:
        """The tensor under the name that it has by now.

        Once deferred nodes are imported that read an output row-major, the one in blocks is renamed.
        """
        moved, found = self._renamed.get(tensor.name), self._tensors.get(tensor.name)
        if moved is None or (found is not None and (found.block, found.dtype) == (tensor.block, tensor.dtype)):
            return tensor
        return self._current(replace(tensor, name=moved.name))

    def add_whole(self, tensor: Activation) -> None:
        """Add a tensor that no layer makes as a whole: others make its slices."""
        self._tensors[tensor.name] = tensor

    def place(self, name: str, where: Slice) -> bool:
        """Have a tensor made right where it is wanted, if it has no place yet and its memory is ours to choose."""
        base = self._views.get(name, name)
        if base not in self.movable_tensors():
            return False
        self._slices[base] = where
        return True

    def place_new(self, name: str, where: Slice) -> None:
        """Settle where a tensor lies that a layer is about to make."""
        self._slices[name] = where

    def movable_tensors(self) -> set[str]:
        """Tensors that layers make, whole or in slices, and that have no fixed place so far."""
        made = {tensor.name for layer in self._layers for tensor in layer.outputs}
        wholes = {where.whole for where in self._slices.values()}
        return (made | wholes) - set(self._slices) - self._view.output_names

    def request_halo(self, tensor: Activation, halo: Halo) -> None:
        """Have a tensor made with at least this halo."""
        tensor = self._current(tensor)
        self._halos[tensor.name] = self._halos.get(tensor.name, Halo()).union(halo)

    def import_deferred(self) -> None:
        """Import the nodes that were deferred as layers of generated code."""
        nodes, self._deferred = self._deferred, []
        if not nodes:
            return
        made = {name for node in nodes for name in node.output}
        inside = {id(node) for node in nodes}
        view = self._view
        wanted = dict.fromkeys(name for node in nodes for name in view.read_by(node) if name not in made)
        inputs = [name for name in wanted if name not in view.constants]
        outputs = [
            name
            for node in nodes
            for name in node.output
            if name and (name in view.output_names or any(id(user) not in inside for user in view.users_of(name)))
        ]
        plain = {name: self.to_row_major(name) for name in inputs}
        region = self._import_nodes(
            nodes, view.values, view.constants, inputs, outputs, view.max_batch, view.model.opset
        )
        renamed = {name: tensor.name for name, tensor in plain.items()}

        def moved(tensor: Activation) -> Activation:
            return replace(tensor, name=renamed.get(tensor.name, tensor.name))

        for layer in region.layers:
            self._append(replace(layer, inputs=tuple(map(moved, layer.inputs))))
        for alias, base in region.views:
            self.alias(alias, renamed.get(base, base))

    def _append(self, spec: LayerSpec) -> None:
        self._layers.append(spec)
        for tensor in spec.outputs:
            self._tensors[tensor.name] = tensor
