"""From ONNX nodes to layers: anchors with their epilogues, layouts, and generic regions for the rest.

Nodes are visited in topological order. A node that has a kernel of its own becomes a layer and swallows the
element-wise nodes behind it; neighbouring nodes that have none wait in a region, which is imported as a whole
when the next layer of ours, or the end, is reached. Halos are settled last, from what all consumers of a tensor ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.bags import REDUCTIONS, bags_with
from veltair.compiler.epilogue import Epilogue
from veltair.compiler.generic import import_region
from veltair.compiler.graph import Graph
from veltair.compiler.ir import Activation, Halo, LayerSpec
from veltair.compiler.node import attribute, padding, times
from veltair.compiler.onnx_model import OnnxModel
from veltair.errors import ModelError
from veltair.profiles.artifact import Port

FOLDED = 4  # up to so many input channels (an image), a convolution takes them as one innermost block
FEW_ROWS = 4  # up to so many, a dense layer is bound by reading its weights, and half of the bytes is half of the time
DENSE_GROUPS = 8  # so many groups are computed as one convolution with zeros between them
VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}


def lower(model: OnnxModel, precision: str) -> Graph:
    """Lower a loaded model. `precision` is "fp32" or "bf16". Raises ModelError naming what cannot be taken."""
    return _Lowering(model, precision).run()


class _Lowering:
    def __init__(self, model: OnnxModel, precision: str) -> None:
        self.model = model
        self.constants: Mapping[str, NDArray[Any]] = model.initializers
        self.dtype, self.block = ("uint16", 32) if precision == "bf16" else ("float32", 16)
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in model.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.output_names = {port.name for port in model.outputs}
        self.known = {
            port.name: Activation(port.name, port.dtype, port.shape) for port in model.inputs
        }  # every tensor in the layout that it was made in
        self.layers: list[LayerSpec] = []
        self.views: dict[str, str] = {}
        self.halos: dict[str, Halo] = {}
        self.region: list[onnx.NodeProto] = []
        self.done: set[int] = set()  # ids of nodes that a layer has swallowed

    def run(self) -> Graph:
        anchors = {
            "Conv": self._conv, "MaxPool": self._pool, "AveragePool": self._pool,
            "GlobalAveragePool": self._global_pool, "Gemm": self._matmul, "MatMul": self._matmul,
            "Gather": self._bags, "Concat": self._concat, "Add": self._elementwise, "Sum": self._elementwise,
            "Relu": self._elementwise, "Clip": self._elementwise, "BatchNormalization": self._elementwise,
        }  # fmt: skip
        for node in self.model.nodes:
            if id(node) in self.done:
                continue
            taken = node.op_type in anchors and anchors[node.op_type](node)
            if not taken and not (node.op_type in VIEWS and self._view(node)):
                self.region.append(node)
        self._flush()
        for name in self.output_names:
            self._plain(name)
        self._own_outputs()
        return self._finish()

    def _own_outputs(self) -> None:
        """Every output has memory of its own: a view of an input or of another output is copied."""
        taken = {port.name for port in self.model.inputs}
        for port in self.model.outputs:
            base = self.views.get(port.name, port.name)
            if base in taken:
                view = f"{port.name}/view"
                self._rename(port.name, view)
                self.views.pop(port.name, None)
                self.views[view] = base
                copy = Activation(port.name, port.dtype, port.shape)
                self._emit(self._spec(copy.name, "copy", [self.known[view]], [copy], {}, {}, 0))
            taken.add(base)

    def _finish(self) -> Graph:
        """Give every blocked tensor the halo that its consumers asked for."""

        def final(tensor: Activation) -> Activation:
            return replace(tensor, halo=self.halos[tensor.name]) if tensor.name in self.halos else tensor

        layers = tuple(
            replace(layer, inputs=tuple(map(final, layer.inputs)), outputs=tuple(map(final, layer.outputs)))
            for layer in self.layers
        )
        activations = {t.name: t for layer in layers for t in (*layer.inputs, *layer.outputs)}
        for name in self.views:
            activations.setdefault(name, self.known[name])
        inputs = tuple(self._port(spec.name) for spec in self.model.inputs)
        outputs = tuple(Port(s.name, s.dtype, s.shape) for s in self.model.outputs)
        for port in (*inputs, *outputs):
            activations.setdefault(port.name, Activation(port.name, port.dtype, port.shape))
        return Graph(layers, self.views, activations, inputs, outputs, self.model.max_batch)

    def _port(self, name: str) -> Port:
        """An input; where it is the ids of a Gather, its values are bounded by the shortest table."""
        spec = next(s for s in self.model.inputs if s.name == name)
        rows = [
            self._shape(node.input[0])[attribute(node, "axis", 0)]
            for node in self.users.get(name, [])
            if node.op_type == "Gather" and node.input[1] == name
        ]
        bounds = (0, min(rows) - 1) if rows and min(rows) > 0 else (None, None)
        return Port(name, spec.dtype, spec.shape, *bounds)

    # Tensors.

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.model.values[name].shape

    def _only_user(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if no other and no output of the model does."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.output_names else None

    def _emit(self, spec: LayerSpec) -> None:
        self._flush()
        self.layers.append(spec)
        for tensor in spec.outputs:
            self.known[tensor.name] = tensor

    def _blocked(self, name: str, block: int | None = None) -> Activation:
        """The tensor in blocks; converted by a layer of its own where it is row-major."""
        tensor = self._plain_or_known(name)
        if tensor.block:
            return tensor
        block = block or self.block
        twin = f"{name}/blocked{block}"
        if twin not in self.known:
            if len(tensor.shape) != 4 or tensor.dtype != "float32":
                raise ModelError(f"tensor {name!r}: expected (N, C, H, W) of float32, found {tensor}")
            blocked = Activation(twin, self.dtype, tensor.shape, block)
            self._emit(self._spec(twin, "to_blocked", [tensor], [blocked], {}, {}, 0))
        return self.known[twin]

    def _plain(self, name: str) -> Activation:
        """The tensor row-major, under its own name if it was made so."""
        tensor = self._plain_or_known(name)
        if not tensor.block:
            return tensor
        # The row-major twin of a model's output is the output itself.
        twin = name if name in self.output_names else f"{name}/plain"
        if twin == name:
            moved = f"{name}/blocked"
            self._rename(name, moved)
            tensor = self.known[moved]
        if twin not in self.known:
            plain = Activation(twin, "float32", tensor.shape)
            self._emit(self._spec(twin, "to_plain", [tensor], [plain], {}, {}, 0))
        return self.known[twin]

    def _rename(self, old: str, new: str) -> None:
        """Give a tensor that was already made another name."""

        def moved(tensor: Activation) -> Activation:
            return replace(tensor, name=new) if tensor.name == old else tensor

        self.layers = [
            replace(s, inputs=tuple(map(moved, s.inputs)), outputs=tuple(map(moved, s.outputs))) for s in self.layers
        ]
        self.known[new] = moved(self.known.pop(old))
        if old in self.halos:
            self.halos[new] = self.halos.pop(old)

    def _plain_or_known(self, name: str) -> Activation:
        if name not in self.known:
            self._flush()
        if name not in self.known and name in self.constants:
            raise ModelError(f"tensor {name!r}: a constant stands where a computed tensor is expected")
        return self.known[name]

    def _made(self, name: str) -> bool:
        return name in self.known and name not in self.constants

    def _ask_halo(self, tensor: Activation, halo: Halo) -> None:
        self.halos[tensor.name] = self.halos.get(tensor.name, Halo()).union(halo)

    def _spec(
        self, name: str, op: str, inputs: list[Activation], outputs: list[Activation],
        attributes: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], flops: int,
    ) -> LayerSpec:  # fmt: skip
        return LayerSpec(
            name, op, tuple(inputs), tuple(outputs), attributes, weights, flops, max_batch=self.model.max_batch
        )

    # Anchors: each takes its node and returns True, or leaves it to the region.

    def _conv(self, node: onnx.NodeProto) -> bool:
        shape, weight = self._shape(node.input[0]), self.constants.get(node.input[1])
        bias = self.constants.get(node.input[2]) if len(node.input) > 2 else None
        if len(shape) != 4 or weight is None or (len(node.input) > 2 and bias is None):
            return False
        group, channels = attribute(node, "group", 1), weight.shape[0]
        depthwise = group == shape[1] == channels and group > 1
        if group != 1 and not depthwise:
            if group > DENSE_GROUPS:
                return False
            weight = _dense(weight, group)
        kernel = tuple(weight.shape[2:])
        strides = tuple(attribute(node, "strides", [1, 1]))
        dilations = tuple(attribute(node, "dilations", [1, 1]))
        out = self._shape(node.output[0])
        pads = padding(node, shape[2:], out[2:], kernel, strides, dilations)
        if min(pads) < 0:
            return False
        x = self._blocked(node.input[0], shape[1] if shape[1] <= FOLDED and not depthwise else None)
        epilogue = Epilogue.behind(node, self)
        right = pads[3]
        if self.dtype == "uint16" and x.block < self.block:
            right += -(-self.block // shape[1]) + 1  # a folded tile row reads on past the last column
        self._ask_halo(x, Halo(pads[0], pads[1], pads[2], right))
        kind = "depthwise_conv2d" if depthwise else "conv2d_amx" if self.dtype == "uint16" else "conv2d"
        y = Activation(epilogue.output, self.dtype, out, self.block)
        flops = 2 * int(np.prod(np.abs(out))) * int(np.prod(weight.shape[1:]))
        attributes = {
            "kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads,
            "activation": epilogue.activation,
        }  # fmt: skip
        weights = {
            "weight": np.asarray(weight, np.float32),
            "bias": np.zeros(channels, np.float32) if bias is None else np.asarray(bias, np.float32),
        }
        inputs = [x] if epilogue.residual is None else [x, epilogue.residual]
        self._emit(self._spec(node.name, kind, inputs, [y], attributes, weights, flops))
        self.done.update(epilogue.swallowed)
        return True

    def _pool(self, node: onnx.NodeProto) -> bool:
        shape, out = self._shape(node.input[0]), self._shape(node.output[0])
        dilations = attribute(node, "dilations", [1, 1])
        if len(shape) != 4 or list(dilations) != [1, 1] or len(node.output) > 1:
            return False
        kernel = tuple(attribute(node, "kernel_shape", []))
        strides = tuple(attribute(node, "strides", [1, 1]))
        pads = padding(node, shape[2:], out[2:], kernel, strides, (1, 1))
        if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)) and not attribute(node, "ceil_mode", 0):
            return False
        x = self._blocked(node.input[0])
        y = Activation(node.output[0], self.dtype, out, self.block)
        attributes = {
            "kernel": kernel, "strides": strides, "pads": pads, "kind": "max" if node.op_type == "MaxPool" else "avg",
            "count_include_pad": attribute(node, "count_include_pad", 0),
        }  # fmt: skip
        flops = int(np.prod(np.abs(out))) * int(np.prod(kernel))
        self._emit(self._spec(node.name, "pool2d", [x], [y], attributes, {}, flops))
        return True

    def _global_pool(self, node: onnx.NodeProto) -> bool:
        shape = self._shape(node.input[0])
        if len(shape) != 4:
            return False
        x = self._blocked(node.input[0])
        y = Activation(node.output[0], "float32", self._shape(node.output[0]))
        self._emit(self._spec(node.name, "global_average_pool", [x], [y], {}, {}, int(np.prod(np.abs(shape)))))
        return True

    def _concat(self, node: onnx.NodeProto) -> bool:
        shapes = [self._shape(name) for name in node.input]
        if len(shapes[0]) != 4 or attribute(node, "axis", 0) != 1 or not all(map(self._made, node.input)):
            return False
        if any(s[1] % self.block for s in shapes[:-1]) or not all(
            self.known[n].block == self.block for n in node.input
        ):
            return False
        y = Activation(node.output[0], self.dtype, self._shape(node.output[0]), self.block)
        self._emit(self._spec(node.name, "concat", [self.known[n] for n in node.input], [y], {}, {}, 0))
        return True

    def _elementwise(self, node: onnx.NodeProto) -> bool:
        """On its own, where its inputs are in blocks already: behind no anchor, or between two consumers."""
        tensors = [name for name in node.input if name and name not in self.constants]
        if not all(map(self._made, tensors)) or not all(self.known[n].block == self.block for n in tensors):
            return False
        weights: dict[str, NDArray[Any]] = {}
        steps: tuple[str, ...] = ()
        if node.op_type in ("Add", "Sum"):
            if len(tensors) != len(node.input) or len({self._shape(name) for name in tensors}) > 1:
                return False
            steps = tuple(f"add:{i}" for i in range(1, len(tensors)))
        elif node.op_type == "BatchNormalization":
            gamma, beta, mean, variance = (self.constants.get(name) for name in node.input[1:5])
            if gamma is None or beta is None or mean is None or variance is None:
                return False
            scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
            weights = {"scale": scale.astype(np.float32), "shift": (beta - mean * scale).astype(np.float32)}
            steps = ("affine",)
        else:
            activation = Epilogue.activation_of(node, self.constants)
            if activation is None:
                return False
            steps = (activation,)
        epilogue = Epilogue.behind(node, self, residual=False)
        if epilogue.activation != "none":
            steps = (*steps, epilogue.activation)
        y = Activation(epilogue.output, self.dtype, self._shape(node.output[0]), self.block)
        count = int(np.prod(np.abs(y.shape)))
        inputs = [self.known[n] for n in tensors]
        self._emit(self._spec(node.name, "elementwise", inputs, [y], {"steps": steps}, weights, count))
        self.done.update(epilogue.swallowed)
        return True

    def _matmul(self, node: onnx.NodeProto) -> bool:
        weight = self.constants.get(node.input[1])
        shape, out = self._shape(node.input[0]), self._shape(node.output[0])
        if weight is None or weight.ndim != 2 or len(shape) < 2 or node.input[0] in self.constants:
            return False
        bias: NDArray[Any] = np.zeros(out[-1], np.float32)
        if node.op_type == "Gemm":
            if attribute(node, "transA", 0):
                return False
            weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
            if len(node.input) > 2 and node.input[2]:
                found = self.constants.get(node.input[2])
                if found is None or found.size not in (1, out[-1]):
                    return False
                bias = bias + found.reshape(-1) * np.float32(attribute(node, "beta", 1.0))
        x = self._plain(node.input[0])
        if x.dtype != "float32":
            return False
        epilogue = Epilogue.behind(node, self, residual=False, bias=len(node.input) < 3)
        if epilogue.bias is not None:
            bias = bias + epilogue.bias
        rows = times(shape[:-1])
        x = self._reshaped(x, (rows, shape[-1]))
        y = Activation(epilogue.output, "float32", (rows, out[-1]))
        flops = 2 * abs(rows) * int(np.prod(weight.shape))
        weights = {"weight": np.ascontiguousarray(weight, np.float32), "bias": bias.astype(np.float32)}
        attributes = {
            "activation": epilogue.activation,
            "storage": "bf16" if self.dtype == "uint16" and 0 < rows <= FEW_ROWS else "fp32",
        }
        if len(out) != 2:
            y = replace(y, name=f"{epilogue.output}/rows")
        self._emit(self._spec(node.name, "matmul", [x], [y], attributes, weights, flops))
        if len(out) != 2:
            self._add_view(Activation(epilogue.output, "float32", out), y.name)
        self.done.update(epilogue.swallowed)
        return True

    def _bags(self, node: onnx.NodeProto) -> bool:
        """All bags of one kind as one layer; the others' nodes count as done when they are met."""
        bags = bags_with(node, self.model, self._only_user)
        if not bags:
            return False
        (count, lookups), width = bags[0].ids.shape, int(bags[0].table.shape[1])
        outputs = [Activation(bag.reduction.output[0], "float32", (count, width)) for bag in bags]
        inputs = [self._plain(bag.ids.name) for bag in bags]
        attributes = {"reduce": REDUCTIONS[bags[0].reduction.op_type]}
        weights = {f"table{i}": bag.table for i, bag in enumerate(bags)}
        flops = abs(count) * lookups * width * len(bags)
        self._emit(self._spec(node.name, "embedding_bag", inputs, outputs, attributes, weights, flops))
        for bag in bags:
            self.done.update((id(bag.gather), id(bag.reduction)))
        return True

    # Views and regions.

    def _view(self, node: onnx.NodeProto) -> bool:
        """A node that only renames memory."""
        source = node.input[0]
        if source in self.constants or any(name in self.region_outputs() for name in node.input):
            return False
        if not self._made(source):
            return False
        shape = self._shape(node.output[0])
        if node.output[0] in self.output_names and source in {p.name for p in self.model.inputs}:
            return False  # an input handed through is copied by the region's identity
        tensor = self._plain(source)
        self._add_view(Activation(node.output[0], tensor.dtype, shape), tensor.name)
        return True

    def region_outputs(self) -> set[str]:
        return {name for node in self.region for name in node.output}

    def _reshaped(self, tensor: Activation, shape: tuple[int, ...]) -> Activation:
        if tensor.shape == shape:
            return tensor
        view = replace(tensor, name=f"{tensor.name}/{'x'.join(map(str, shape))}", shape=shape)
        self._add_view(view, tensor.name)
        return view

    def _add_view(self, view: Activation, base: str) -> None:
        self.views[view.name] = self.views.get(base, base)
        self.known[view.name] = view

    def _flush(self) -> None:
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
        plain = {name: self._plain(name) for name in inputs}
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
            self._add_view(view, renamed.get(base, base))


def _dense(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """A grouped convolution's weights (OC, IC / group, KH, KW) as those of one group, zero outside the diagonal.

    Costs `group` times the products, which vectors do faster than a plain schedule does the few.
    """
    oc, ic = weight.shape[:2]
    dense = np.zeros((oc, ic * group, *weight.shape[2:]), weight.dtype)
    each = oc // group
    for g in range(group):
        dense[g * each : (g + 1) * each, g * ic : (g + 1) * ic] = weight[g * each : (g + 1) * each]
    return dense
