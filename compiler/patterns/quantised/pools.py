"""Pools of 8-bit integers: a maximum of steps, and averages as depthwise products with ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.quantised import QuantisedPoolParameters, Window
from veltair.compiler.onnx.node_attributes import attribute, padding
from veltair.compiler.patterns.quantised.boundaries import channels_last
from veltair.compiler.patterns.quantised.product_match import ProductMatch
from veltair.compiler.patterns.quantised.quantum import dequantised, quantised_behind


@dataclass(frozen=True, slots=True)
class PoolMatch:
    """A maximum pool from steps to steps of one scale."""

    x: str
    output: str
    window: Window


def find_quantised_pools(view: ModelView, taken: Matches) -> Matches:
    matches = Matches()
    for node in view.nodes:
        if taken.is_inner(node) or not view.matches.is_free(node):
            continue
        if node.op_type == "MaxPool":
            _match_maximum(node, view, matches)
        elif node.op_type == "GlobalAveragePool":
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


def _match_maximum(node: onnx.NodeProto, view: ModelView, matches: Matches) -> None:
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    if len(shape) != 4 or len([name for name in node.output if name]) > 1:
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


def _match_average(node: onnx.NodeProto, view: ModelView, matches: Matches) -> None:
    shape = view.shape_of(node.input[0])
    x, behind = dequantised(node.input[0], view), quantised_behind(node.output[0], view)
    if len(shape) != 4 or x is None or behind is None:
        return
    _, channels, height, width = shape
    match = ProductMatch(
        node.name,
        x.name,
        x.quantum,
        np.ones((height * width, channels), np.int8),
        np.full(channels, x.quantum.scale / (height * width), np.float32),
        np.zeros(channels, np.float32),
        behind[0].output[0],
        window=Window((height, width), (1, 1), (1, 1), (0, 0, 0, 0)),
        depthwise=True,
        rounded=behind[1],
    )
    matches.add(behind[0], match, [node])
