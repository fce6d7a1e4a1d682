"""Transpositions as exporters spell them, in fewer nodes, so that patterns know one spelling.

PyTorch's exporters write the transposition of each matrix of a stack as Reshape, Transpose, Reshape, with the stack's
axes merged meanwhile, one transposition behind another, and reshapes that change nothing. What else changes nothing is
left out likewise, since a layer that is none has copies from and to blocks of channels around it: GhostNet takes the
first 16 of 16 channels, by 32 slices, SegFormer resizes a feature map to its own size, a network for larger images
takes means of one pixel, and axes are put in by one node and taken away by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.types import TensorSpec

_FAR = np.iinfo(np.int32).max  # an end of a slice behind every axis
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# What has the same shape has the same elements: one that is reduced, or taken from blocks of one, is itself.
_SHAPE_TELLS = (
    *("DepthToSpace", "Expand", "GlobalAveragePool", "GlobalMaxPool", "Identity", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "SpaceToDepth", "Split", "Tile"),
)
# Where a resize by 1 reads each pixel where it is: `tf_half_pixel_for_nn` reads half a pixel further on.
_ON_PIXELS = (b"align_corners", b"asymmetric", b"half_pixel", b"half_pixel_symmetric", b"pytorch_half_pixel")
_OF_SEVERAL = ("Concat", "Max", "Mean", "Min", "Sum")


def simplify_transpositions(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    outputs: Set[str],
    constants: Mapping[str, NDArray[Any]],
) -> list[onnx.NodeProto]:
    """The nodes, with every transposition in one node where that can be told, and some that nobody reads any more.

    nodes: in topological order; what they read changes in place.
    values: of every tensor; constants: of those that are known.
    outputs: of the model.
    """
    kept = set(outputs).union(*map(captured_names, nodes))
    makers: dict[str, onnx.NodeProto] = {}
    same: dict[str, str] = {}  # what a node gives that changes nothing, and what it reads
    viewed: dict[str, str] = {}  # a tensor of other extents, and the one whose elements it has in the same order
    found = []
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)
        simple = _merged(node, makers, values)
        makers |= dict.fromkeys(simple.output, simple)
        found.append(simple)
        if simple.domain not in ("", "ai.onnx") or not simple.input or simple.input[0] in constants:
            continue
        result, source = simple.output[0], simple.input[0]
        if is_view := simple.op_type in _VIEWS:
            start = viewed.get(source, source)
            # Heads that an attention merges, and the next one splits again, are read as the attention gives them.
            if start not in makers or makers[start].op_type != "Transpose":
                source = viewed[result] = start
        if (
            result not in kept
            and (is_view or _changes_nothing(simple, makers, values, constants))
            and values[source].shape == values[result].shape
        ):
            same[result] = source
    return found


def _changes_nothing(
    node: onnx.NodeProto,
    makers: Mapping[str, onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
) -> bool:
    """Whether a node gives its first input, if its result has the shape of that."""
    match node.op_type:
        case "Slice":
            return _is_whole(node, values[node.input[0]].shape, constants)
        case "Resize" | "Upsample":
            return _keeps_pixels(node, constants)
        case "Transpose":
            order, maker = _axes(node, values) or [], makers.get(node.input[0])
            # One between two reshapes becomes one node with them.
            return order == sorted(order) and (maker is None or maker.op_type not in _VIEWS)
        case "AveragePool" | "MaxPool":
            return set(attribute(node, "kernel_shape", [])) == {1} and set(attribute(node, "strides", [1])) == {1}
        case several if several in _OF_SEVERAL:
            return len(node.input) == 1
        case other:
            return other in _SHAPE_TELLS


def _is_whole(node: onnx.NodeProto, shape: Sequence[int], constants: Mapping[str, NDArray[Any]]) -> bool:
    """Whether a Slice takes all there is.

    An end that happens to lie behind the batch at the sizes that were tried may lie within it at others, so there the
    end has to be beyond every batch.
    """
    starts, ends, axes, steps = (constants.get(name) for name in (*node.input[1:], "", "")[:4])
    if starts is None or ends is None or (steps is None) != (len(node.input) < 5 or not node.input[4]):
        return False
    if axes is None and len(node.input) > 3 and node.input[3]:
        return False
    sliced = range(len(starts)) if axes is None else [axis % len(shape) for axis in axes.tolist()]
    whole = all(
        shape[axis] >= 0 or (start == 0 and end >= _FAR)
        for axis, start, end in zip(sliced, starts.tolist(), ends.tolist(), strict=True)
    )
    return whole and (steps is None or bool((steps == 1).all()))


def _keeps_pixels(node: onnx.NodeProto, constants: Mapping[str, NDArray[Any]]) -> bool:
    """Whether a Resize that gives as many pixels as it reads gives those: 14 pixels times 1.01 are 14 others."""
    if attribute(node, "coordinate_transformation_mode", b"asymmetric") not in _ON_PIXELS:
        return False
    if len(node.input) > 3 and node.input[3]:  # sizes, not scales
        return bool(attribute(node, "keep_aspect_ratio_policy", b"stretch") == b"stretch")
    scales = constants.get([name for name in node.input if name][-1])
    return scales is not None and scales.size > 0 and bool((scales == 1).all())


def _merged(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], values: Mapping[str, TensorSpec]
) -> onnx.NodeProto:
    """One Transpose that gives what the node gives, of what lies before it; the node itself where there is none."""
    if node.op_type not in ("Transpose", "Reshape") or node.domain not in ("", "ai.onnx"):
        return node
    axes = _axes(node, values)
    start, axes = (node.input[0], axes) if axes is not None else _around_merged_axes(node, makers, values)
    if axes is None:
        return node
    before = makers.get(start)  # it is one node already, if it is a transposition
    if before is not None and (earlier := _axes(before, values)) is not None:
        start, axes = before.input[0], [earlier[axis] for axis in axes]
    if start == node.input[0]:
        return node
    return helper.make_node("Transpose", [start], list(node.output), name=node.name, perm=axes)


def _axes(node: onnx.NodeProto, values: Mapping[str, TensorSpec]) -> list[int] | None:
    """The order of a Transpose; None for another node."""
    if node.op_type != "Transpose":
        return None
    rank = len(values[node.input[0]].shape)
    return list(attribute(node, "perm", [*range(rank)][::-1]))


def _around_merged_axes(
    last: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], values: Mapping[str, TensorSpec]
) -> tuple[str, list[int] | None]:
    """What a Reshape transposes, and in which order, if a Transpose between two reshapes leaves merged axes in front.

    (…, H, T, D) -> (… H, T, D) -> (… H, D, T) -> (…, H, D, T). The order is None where it is not so.
    """
    middle = makers.get(last.input[0])
    first = makers.get(middle.input[0]) if middle is not None and middle.op_type == "Transpose" else None
    if middle is None or first is None or first.op_type != "Reshape":
        return "", None
    whole, merged = values[first.input[0]].shape, values[middle.input[0]].shape
    given, order = values[last.output[0]].shape, _axes(middle, values)
    lead = len(whole) - len(merged) + 1  # axes that are merged
    if order is None or order[0] != 0 or lead < 1 or len(given) != len(whole):
        return "", None
    if whole[lead:] != merged[1:] or product_of(whole[:lead]) != merged[0]:
        return "", None
    axes = [*range(lead), *(axis + lead - 1 for axis in order[1:])]
    if tuple(whole[axis] for axis in axes) != given:
        return "", None
    return first.input[0], axes
