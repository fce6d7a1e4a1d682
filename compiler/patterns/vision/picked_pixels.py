"""Resize, Slice and Pad of feature maps that take pixels as they are: the numbers of rows and columns are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import text_attribute
from veltair.compiler.onnx.node_evaluation import NodeEvaluator


def pick_pixels(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A tensor in blocks whose rows and columns are rows and columns of another one."""
    source, shape = node.input[0], view.shape_of(node.output[0])
    if not builder.is_made(source) or not builder.tensors[source].block or len(shape) != 4:
        return False
    x = builder.tensors[source]
    whole = x.dtype == view.dtype and x.block == view.block
    if not whole and x.dtype not in EIGHT_BITS:
        return False
    if node.op_type == "Resize" and text_attribute(node, "mode", "nearest") != "nearest":
        return False
    if node.op_type == "Pad" and text_attribute(node, "mode", "constant") == "constant":
        return False
    if shape[:2] != x.shape[:2] or (node.op_type == "Slice" and not _cuts_planes(node, view)):
        return False
    places = _places(node, view)
    if places is None:
        return False
    y = Activation(node.output[0], x.dtype, shape, x.block)
    builder.emit(node.name, "pick_pixels", [x], [y], weights=dict(zip(("rows", "columns"), places, strict=True)))
    return True


def _cuts_planes(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a Slice leaves samples and channels as they are: it could turn their order round."""
    axes = view.constants.get(node.input[3]) if len(node.input) > 3 else None
    return axes is not None and all(axis % 4 > 1 for axis in axes.tolist())


def _places(node: onnx.NodeProto, view: ModelView) -> list[NDArray[np.int32]] | None:
    """The row and the column that each one is, as ONNX Runtime takes them from images of their numbers."""
    arguments = [view.constants.get(name) if name else None for name in node.input[1:]]
    if any(value is None and name for value, name in zip(arguments, node.input[1:], strict=True)):
        return None
    height, width = view.shape_of(node.input[0])[2:]
    image = np.arange(height * width, dtype=np.float32)
    if image.size >= 1 << 24 or not image.size:  # floats no longer hold the numbers
        return None
    evaluator = NodeEvaluator(view.model.opset)
    found = evaluator.run(node, [image.reshape(1, 1, height, width), *arguments_of_one(node, arguments)])
    out = view.shape_of(node.output[0])[2:]
    if found is None or found[0].shape != (1, 1, *out) or not found[0].size:
        return None
    rows, columns = np.divmod(found[0][0, 0].astype(np.int32), width)
    same = (rows == rows[:, :1]).all() and (columns == columns[:1]).all()
    return [rows[:, 0], columns[0]] if same else None


def arguments_of_one(node: onnx.NodeProto, arguments: list[Any]) -> list[Any]:
    """The arguments for an image of one channel: the extents that Resize is told are those of the whole batch."""
    if node.op_type == "Resize" and len(arguments) > 2 and arguments[2] is not None and arguments[2].size == 4:
        sizes = arguments[2].copy()
        sizes[:2] = 1
        return [*arguments[:2], sizes]
    return arguments
