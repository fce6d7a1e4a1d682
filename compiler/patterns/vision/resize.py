"""Resize of feature maps by linear interpolation: each pixel is a mean of two rows and two columns."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import ResizeParameters
from veltair.compiler.onnx.node_attributes import text_attribute
from veltair.compiler.onnx.node_evaluation import NodeEvaluator
from veltair.compiler.patterns.epilogue import Epilogue
from veltair.compiler.patterns.vision.channels_first import is_read_in_blocks
from veltair.compiler.patterns.vision.picked_pixels import arguments_of_one

MOST_PIXELS = 1 << 24  # of the image that tells how a node interpolates
TOLERANCE = 1e-4  # between a node's result and what two taps give, of values up to one
Taps = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]  # the first, the second, and its share


def resize(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A tensor in blocks, or one whose result is read in blocks, that is enlarged or made smaller, with the epilogue
    behind it."""
    name, shape = node.input[0], view.shape_of(node.output[0])
    if not builder.is_made(name) or len(shape) != 4 or text_attribute(node, "mode", "nearest") != "linear":
        return False
    x = builder.tensors[name]
    comes = not x.block and x.dtype == "float32" and x.shape[1] % LANES == 0 and is_read_in_blocks(node.output[0], view)
    if not (comes or (x.block, x.dtype) == (view.block, view.dtype)) or x.shape[:2] != shape[:2]:
        return False
    taps = _taps(node, view)
    if taps is None:
        return False
    x = builder.to_blocked(name)
    (above, below, down), (left, right, across) = taps
    epilogue = Epilogue.behind(node, view, builder)
    y = Activation(epilogue.output, view.dtype, shape, view.block)
    weights = {"above": above, "below": below, "down": down, "left": left, "right": right, "across": across}
    flops = 6 * int(np.prod(np.abs(shape)))
    builder.emit(node.name, "resize", epilogue.operands(x), [y], ResizeParameters(epilogue.activation), weights, flops)
    builder.take(epilogue.swallowed)
    return True


def _taps(node: onnx.NodeProto, view: ModelView) -> list[Taps] | None:
    """Those of the rows and of the columns; None where the node is told more than extents, or gives something else."""
    arguments = [view.constants.get(name) if name else None for name in node.input[1:]]
    if any(value is None and name for value, name in zip(arguments, node.input[1:], strict=True)):
        return None
    extents, results = view.shape_of(node.input[0])[2:], view.shape_of(node.output[0])[2:]
    if not 0 < np.prod(results) <= MOST_PIXELS or not 0 < np.prod(extents) <= MOST_PIXELS:
        return None
    given = arguments[1] if len(arguments) > 1 else None
    scales = [out / size for size, out in zip(extents, results, strict=True)]
    if given is not None and given.size == 4:
        scales = given.astype(np.float64)[2:].tolist()
    mode = text_attribute(node, "coordinate_transformation_mode", "half_pixel")
    taps = [_axis_taps(mode, *sizes) for sizes in zip(extents, results, scales, strict=True)]
    image = np.random.default_rng(0).random(extents, np.float32)
    found = NodeEvaluator(view.model.opset).run(node, [image[None, None], *arguments_of_one(node, arguments)])
    if found is None or found[0].shape != (1, 1, *results):
        return None
    ours = _interpolated(_interpolated(image, taps[0], 0), taps[1], 1)
    return taps if float(np.abs(ours - found[0][0, 0]).max()) < TOLERANCE else None


def _axis_taps(mode: str, size: int, result: int, scale: float) -> Taps:
    """Where each output of an axis lies between two inputs (ONNX, Resize: coordinate_transformation_mode)."""
    places = np.arange(result, dtype=np.float64)
    match mode:
        case "asymmetric":
            places = places / scale
        case "align_corners":
            places = places * (size - 1) / max(result - 1, 1)
        case "half_pixel_symmetric":
            places = size / 2 * (1 - result / (scale * size)) + (places + 0.5) / scale - 0.5
        case "pytorch_half_pixel" if result == 1:
            places = places * 0
        case _:
            places = (places + 0.5) / scale - 0.5
    places = np.clip(places, 0, size - 1)
    first = np.floor(places).astype(np.int32)
    return first, np.minimum(first + 1, size - 1).astype(np.int32), (places - first).astype(np.float32)


def _interpolated(image: NDArray[np.float32], taps: Taps, axis: int) -> NDArray[np.float32]:
    """Along an axis, the values between two taps."""
    first, second, share = taps
    shape = [-1 if place == axis else 1 for place in range(image.ndim)]
    begin, end = (np.take(image, places, axis) for places in (first, second))
    return begin + (end - begin) * share.reshape(shape)
