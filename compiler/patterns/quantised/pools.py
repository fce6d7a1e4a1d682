"""Pools of 8-bit integers: the greatest steps of windows, and the mean of planes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.quantised import QuantisedPoolParameters, ReorderParameters, Window
from veltair.compiler.onnx.node_attributes import attribute, padding, reduced_axes
from veltair.compiler.patterns.quantised.boundaries import channels_last
from veltair.compiler.patterns.quantised.quantum import QuantisedTensor, Quantum, dequantised, quantised_behind

MOST_PIXELS = 1 << 23  # of a plane, whose sum of steps is an int32


@dataclass(frozen=True, slots=True)
class PoolMatch:
    """A maximum pool from steps to steps of one scale."""

    x: str
    output: str
    window: Window


@dataclass(frozen=True, slots=True)
class MeanMatch:
    """The mean of each plane of `x`, rounded."""

    x: QuantisedTensor
    output: str
    rounded: Quantum


def find_quantised_pools(view: ModelView, taken: Matches) -> Matches:
    matches = Matches()
    for node in view.nodes:
        if taken.is_inner(node) or not view.matches.is_free(node):
            continue
        if node.op_type == "MaxPool":
            _match_maximum(node, view, matches)
        elif node.op_type == "GlobalAveragePool" or _is_mean_of_planes(node, view):
            _match_average(node, view, matches)
    return matches


def max_pool(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A maximum pool, if it is of steps; its match is filed under the node that gives them."""
    found = view.matches.at(node, PoolMatch)
    if found is None:
        return False
    x, shape = channels_last(found.x, view, builder), view.shape_of(found.output)
    y = Activation(found.output, x.dtype, shape, shape[1])
    builder.emit(node.name, "max_pool_int8", [x], [y], QuantisedPoolParameters(found.window))
    return True


def plane_mean(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """The mean of planes of steps, filed under the node that rounds it."""
    found = view.matches.at(node, MeanMatch)
    if found is None:
        return False
    x, out = channels_last(found.x.name, view, builder), view.shape_of(found.output)
    name = found.output if len(out) == 4 else f"{found.output}/1x1"
    y = Activation(name, found.rounded.dtype, (*x.shape[:2], 1, 1), x.shape[1])
    weights = {"input": found.x.quantum.array, "output": found.rounded.array}
    builder.emit(node.name, "mean_int8", [x], [y], ReorderParameters(), weights)
    if len(out) != 4:  # a plane of one pixel is its channels
        builder.alias(Activation(found.output, y.dtype, out), name)
    return True


def _match_maximum(node: onnx.NodeProto, view: ModelView, matches: Matches) -> None:
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    if not view.is_map(node.input[0]) or len([name for name in node.output if name]) > 1:
        return
    kernel = tuple(attribute(node, "kernel_shape", []))
    strides, dilations = (tuple(attribute(node, name, [1, 1])) for name in ("strides", "dilations"))
    window = Window(kernel, strides, dilations, padding(node, shape[2:], out[2:], kernel, strides, dilations))
    if view.values[node.input[0]].dtype in ("uint8", "int8") and node.input[0] not in view.constants:
        matches.add(node, PoolMatch(node.input[0], node.output[0], window))
        return
    x, behind = dequantised(node.input[0], view), quantised_behind(node.output[0], view)
    if x is not None and behind is not None and behind[1] == x.quantum:
        matches.add(behind[0], PoolMatch(x.name, behind[0].output[0], window), [node])


def _is_mean_of_planes(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a node is what PyTorch's exporter writes for a mean of rows and columns."""
    if node.op_type != "ReduceMean" or not view.is_map(node.input[0]):
        return False
    return sorted(axis % 4 for axis in reduced_axes(node, view.constants)) == [2, 3]


def _match_average(node: onnx.NodeProto, view: ModelView, matches: Matches) -> None:
    x, behind = dequantised(node.input[0], view), quantised_behind(node.output[0], view)
    shape = view.shape_of(node.input[0])
    if view.is_map(node.input[0]) and shape[2] * shape[3] <= MOST_PIXELS and x is not None and behind is not None:
        matches.add(behind[0], MeanMatch(x, behind[0].output[0], behind[1]), [node])
