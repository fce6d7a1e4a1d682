"""Signals, (batch, channels, steps), as images of one row: their convolutions then are those of images.

No kernel is written for one-dimensional convolutions. With an axis of one row in front of the steps, the design spaces
of images take them, in floats as in 8-bit integers. What lies between two convolutions gets the axis too, so that
blocks of channels and epilogues last; elsewhere the axis costs nothing, since a tensor with it is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import helper

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.vision.group_norm import normalises_planes

ROW = 2  # where the axis is
CONVOLUTIONS = frozenset({"Conv", "ConvInteger"})
POOLS = frozenset({"MaxPool", "AveragePool"})
# Of one tensor, element by element or channel by channel; other inputs are single numbers, or one for each channel.
UNARY = frozenset(
    {
        *("Abs", "Cast", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh"),
        *("BatchNormalization", "GlobalAveragePool"),
    }
)
BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"})
ROUNDINGS = frozenset({"QuantizeLinear", "DequantizeLinear"})
WINDOWS: Mapping[str, Callable[[list[int]], list[int]]] = {
    "kernel_shape": lambda given: [1, *given],
    "strides": lambda given: [1, *given],
    "dilations": lambda given: [1, *given],
    "pads": lambda given: [0, given[0], 0, given[1]],
}


@dataclass(slots=True)
class _Rewriting(ModelRewriting):
    """The new model so far. `wide`: the names of tensors with the axis, by those without it."""

    wide: dict[str, str] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)  # tensors that have lost the axis again
    axes: dict[int, str] = field(default_factory=dict)  # the constants that name an axis

    def with_axis(self, name: str) -> str:
        """The tensor, or constant of weights, with the axis."""
        if name not in self.wide:
            self.wide[name] = self.declare(name)
            constant = self.view.constants.get(name)
            if constant is None:
                self.change("Unsqueeze", name, self.wide[name])
                self.plain.add(name)
            else:
                self.constants[self.wide[name]] = np.expand_dims(constant, ROW)
                if kept := self.view.model.quantised.get(name):
                    steps, axis = np.expand_dims(kept.steps, ROW), kept.axis + (kept.axis >= ROW)
                    self.quantised[self.wide[name]] = replace(kept, steps=steps, axis=axis)
        return self.wide[name]

    def declare(self, name: str) -> str:
        """The name of the tensor with the axis, whose type and shape are known from then on."""
        spec, wide = self.view.values[name], self.free_name(f"{name}/row")
        shape = (*spec.shape[:ROW], 1, *spec.shape[ROW:])
        self.values[wide] = replace(spec, name=wide, shape=shape)
        return wide

    def without_axis(self, name: str) -> None:
        """Make the tensor that somebody reads as it was."""
        if name in self.wide and name not in self.plain and name not in self.view.constants:
            self.change("Squeeze", self.wide[name], name)
            self.plain.add(name)

    def change(self, op: str, name: str, result: str, axis: int = ROW) -> None:
        """Add or remove an axis of one."""
        if axis not in self.axes:
            self.axes[axis] = self.constant(f"signals/axis_{axis}", np.array([axis], np.int64))
        self.nodes.append(helper.make_node(op, [name, self.axes[axis]], [result], name=f"{result}/{op.lower()}"))


def signals_as_images(view: ModelView) -> OnnxModel:
    """The model with such an axis wherever a convolution asks for it; the same one where none does."""
    if not any(_is_convolution(node, view) for node in view.nodes):
        return view.model
    roundings = _roundings_before(view)
    found, written = _Rewriting(view), set[int]()
    for node in view.nodes:
        if id(node) in written:
            continue
        wide = _is_convolution(node, view) or id(node) in roundings or _passes_on(node, found)
        if wide:
            found.nodes.append(_widened(node, found))
        elif _puts_channels_last(node, found):
            _transpose(node, found)
        elif regrouped := _regrouped(node, found):
            _regroup(regrouped, found)
            written.update(map(id, regrouped))
        else:
            for name in view.read_by(node):
                found.without_axis(name)
            found.nodes.append(node)
    for name in sorted(view.output_names):
        found.without_axis(name)
    return found.model()


def _is_convolution(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a one-dimensional convolution has constant weights, of floats or 8-bit integers."""
    if node.op_type not in CONVOLUTIONS or is_opaque(node):
        return False
    weight = view.constants.get(node.input[1])
    known = node.op_type == "ConvInteger" or all(name in view.constants for name in node.input[1:] if name)
    dtypes = ("float32",) if node.op_type == "Conv" else ("uint8", "int8")
    return weight is not None and weight.ndim == ROW + 1 and known and view.values[node.input[0]].dtype in dtypes


def _roundings_before(view: ModelView) -> set[int]:
    """The roundings whose steps a convolution reads, by the id of the node: patterns find them right in front of it."""
    found = set[int]()
    for node in view.nodes:
        if _is_convolution(node, view):
            maker = view.makers.get(node.input[0])
            while maker is not None and _rounds_all_alike(maker, view):
                found.add(id(maker))
                maker = view.makers.get(maker.input[0])
    return found


def _rounds_all_alike(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether one scale belongs to all of a signal."""
    if node.op_type == "DynamicQuantizeLinear":
        return not is_opaque(node)
    single = all(name in view.constants and view.constants[name].size == 1 for name in node.input[1:] if name)
    return node.op_type in ROUNDINGS and not is_opaque(node) and single and node.input[0] not in view.constants


def _passes_on(node: onnx.NodeProto, found: _Rewriting) -> bool:
    """Whether a node that reads a tensor with the axis can compute with it."""
    view = found.view
    computed = [name for name in node.input if name and name not in view.constants]
    if is_opaque(node) or not any(name in found.wide for name in computed):
        return False
    ranks = {len(view.shape_of(name)) for name in (*computed, node.output[0])}
    if not ranks <= ({0, 1, ROW + 1} if node.op_type in BROADCASTING else {ROW + 1}):
        return False
    if len([name for name in node.output if name]) > 1:
        return False
    constants = [view.constants[name] for name in node.input[1:] if name in view.constants]
    if node.op_type in ROUNDINGS:
        return _rounds_all_alike(node, view)
    if node.op_type in UNARY:
        return len(computed) == 1 and all(value.ndim < 2 for value in constants)
    if node.op_type in BROADCASTING:
        return all(view.constants[name].ndim <= ROW + 1 for name in node.input if name in view.constants)
    if node.op_type == "Concat":
        return len(computed) == len(node.input)
    if node.op_type == "LayerNormalization":
        return normalises_planes(node, view)
    return node.op_type in POOLS


def _widened(node: onnx.NodeProto, found: _Rewriting) -> onnx.NodeProto:
    """The node between tensors with the axis; single outputs beside the first stay as they are."""
    view, inputs = found.view, list(node.input)
    weights = node.op_type in CONVOLUTIONS
    for place, name in enumerate(node.input):
        constant = view.constants.get(name)
        if constant is None:
            if name and len(view.shape_of(name)) == ROW + 1:
                inputs[place] = found.with_axis(name)
        elif constant.ndim == ROW + 1:
            inputs[place] = found.with_axis(name)
        elif node.op_type == "LayerNormalization":
            inputs[place] = found.constant(f"{name}/outer_row", np.expand_dims(constant, 0))
        elif constant.ndim == ROW and node.op_type in BROADCASTING:
            inputs[place] = _with_inner_axis(name, found)
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for entry in node.attribute:
        value = helper.get_attribute_value(entry)
        if (weights or node.op_type in POOLS) and entry.name in WINDOWS:
            entry = helper.make_attribute(entry.name, WINDOWS[entry.name](list(value)))
        elif entry.name == "axis" and node.op_type == "Concat":
            axis = value % (ROW + 1)
            entry = helper.make_attribute(entry.name, axis + (axis >= ROW))
        if entry.name != "axis" or node.op_type != "LayerNormalization":
            result.attribute.append(entry)
    if node.op_type == "LayerNormalization":
        result.attribute.append(helper.make_attribute("axis", ROW))
    result.input[:] = inputs
    output = node.output[0]
    found.wide[output] = result.output[0] = found.declare(output)
    return result


def _puts_channels_last(node: onnx.NodeProto, found: _Rewriting) -> bool:
    """Whether a node brings a tensor with the axis to (batch, steps, channels)."""
    signal = node.op_type == "Transpose" and node.input[0] in found.wide
    return signal and list(attribute(node, "perm", [])) == [0, 2, 1]


def _transpose(node: onnx.NodeProto, found: _Rewriting) -> None:
    """The node as it is for images, which layers with blocks of channels know; its result has no axis."""
    spec = found.view.values[node.output[0]]
    wide = found.free_name(f"{spec.name}/row")
    found.values[wide] = replace(spec, name=wide, shape=(spec.shape[0], 1, *spec.shape[1:]))
    inputs = [found.wide[node.input[0]]]
    found.nodes.append(helper.make_node("Transpose", inputs, [wide], name=node.name, perm=[0, 2, 3, 1]))
    found.change("Squeeze", wide, spec.name, axis=1)


def _regrouped(node: onnx.NodeProto, found: _Rewriting) -> list[onnx.NodeProto]:
    """The nodes that normalise groups of channels of a tensor with the axis, from one Reshape to another."""
    view = found.view
    if node.op_type != "Reshape" or node.input[0] not in found.wide or node.input[0] in view.constants:
        return []
    shape, nodes = view.shape_of(node.input[0]), [node]
    while (user := view.free_user(nodes[-1].output[0])) is not None:
        nodes.append(user)
        if user.op_type == "Reshape":
            normalises = any(normalises_planes(each, view) for each in nodes)
            return nodes if normalises and view.shape_of(user.output[0]) == shape else []
        scales = user.op_type in ("Mul", "Add") and any(name in view.constants for name in user.input)
        if not (scales or normalises_planes(user, view)):
            return []
    return []


def _regroup(nodes: Sequence[onnx.NodeProto], found: _Rewriting) -> None:
    """Write them so that they read the tensor with the axis, and give one."""
    first, *middle, last = nodes
    new = onnx.NodeProto()
    new.CopyFrom(first)
    new.input[0] = found.wide[first.input[0]]
    found.nodes += [new, *middle]
    name = last.output[0]
    found.wide[name] = found.declare(name)
    found.reshape(last.input[0], found.wide[name], found.values[found.wide[name]].shape)


def _with_inner_axis(name: str, found: _Rewriting) -> str:
    """A constant of (channels, steps) with the axis between them."""
    return found.constant(f"{name}/inner_row", np.expand_dims(found.view.constants[name], 1))
