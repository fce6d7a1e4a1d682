"""Pools on blocked activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import Pool2dParameters, PoolKind
from veltair.compiler.onnx.node_attributes import attribute, padding, reduced_axes


def pool(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A maximum or average pool without dilations."""
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    dilations = attribute(node, "dilations", [1, 1])
    if not view.is_map(node.input[0]) or list(dilations) != [1, 1] or len(node.output) > 1:
        return False
    kernel = tuple(attribute(node, "kernel_shape", []))
    strides = tuple(attribute(node, "strides", [1, 1]))
    pads = padding(node, shape[2:], out[2:], kernel, strides, (1, 1))
    if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)) and not attribute(node, "ceil_mode", 0):
        return False
    counted = attribute(node, "count_include_pad", 0)
    stated = attribute(node, "pads", pads if attribute(node, "auto_pad", b"NOTSET") != b"NOTSET" else [0] * 4)
    if counted and any(reached > given for reached, given in zip(pads, stated, strict=True)):
        return False  # rounded up: windows reach beyond the padding, and what lies there does not count
    x = builder.to_blocked(node.input[0])
    y = Activation(node.output[0], view.dtype, out, view.block)
    kind = PoolKind.MAXIMUM if node.op_type == "MaxPool" else PoolKind.AVERAGE
    parameters = Pool2dParameters(kernel, strides, pads, kind, counted)
    flops = int(np.prod(np.abs(out))) * int(np.prod(kernel))
    builder.emit(node.name, "pool2d", [x], [y], parameters, {}, flops)
    return True


def global_pool(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """GlobalAveragePool, or ReduceMean over the plane of a tensor in blocks."""
    if not averages_plane(node, view, builder):
        return False
    shape = view.shape_of(node.input[0])
    x = builder.to_blocked(node.input[0])
    y = Activation(node.output[0], "float32", (*shape[:2], 1, 1))
    out = view.shape_of(node.output[0])
    if len(out) == 2:
        y = replace(y, name=f"{y.name}/1x1")
    builder.emit(node.name, "global_average_pool", [x], [y], flops=int(np.prod(np.abs(shape))))
    if len(out) == 2:
        builder.alias(Activation(node.output[0], "float32", out), y.name)
    return True


def averages_plane(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Whether a GlobalAveragePool has a plane, or a ReduceMean takes the plane of a tensor in blocks."""
    name = node.input[0]
    if not view.is_map(name):
        return False
    if node.op_type == "GlobalAveragePool":
        return True
    made = builder.is_made(name) and builder.tensors[name].block
    return bool(made) and sorted(axis % 4 for axis in reduced_axes(node, view.constants)) == [2, 3]
