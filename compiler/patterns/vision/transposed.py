"""Transposed convolutions as convolutions whose channels become pixels.

With a stride of s, the outputs that lie s apart read the same taps of the filter: they are an ordinary convolution of
the input, and there are s x s of them in a plane. All are one convolution with s x s times the channels, and
DepthToSpace puts its channels where they belong. Taps that some of the outputs do not read are zero. A batch norm
behind is part of the weights, and activations are computed before the channels move, where they are an epilogue.

The same move of a PixelShuffle, which wants the channels of a pixel side by side, is brought into the order in which
blocks of channels move whole.

Of quantised files the steps of the filters are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import all_attributes, attribute, text_attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.onnx.quantised.nodes import QuantisedConstant
from veltair.compiler.patterns.batch_norm import scale_and_shift
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.quantised.quantum import centred_steps, dequantised, quantum_of
from veltair.compiler.patterns.vision.signals import UNARY

MAX_WEIGHT_BYTES = 64 << 20  # of the convolution; filters of bilinear enlargement by 32 would take more
ACTIVATIONS = UNARY - {"BatchNormalization", "Cast", "GlobalAveragePool", "Identity"}


@dataclass(frozen=True, slots=True)
class PhasedAxis:
    """How one axis is computed. `phase`, `tap`: of the convolution, for each tap of the transposed one."""

    stride: int
    phase: tuple[int, ...]
    tap: tuple[int, ...]
    taps: int
    pads: tuple[int, int]
    outputs: int  # of the convolution; with `stride` of them each, they reach as far as the result or beyond it

    @classmethod
    def of(cls, taps: int, stride: int, dilation: int, pad: int, extent: int, result: int) -> PhasedAxis:
        """Output stride * q + phase reads input q + offset through a tap.

        >>> PhasedAxis.of(taps=4, stride=2, dilation=1, pad=1, extent=8, result=16)
        PhasedAxis(stride=2, phase=(1, 0, 1, 0), tap=(2, 1, 1, 0), taps=3, pads=(1, 1), outputs=8)
        """
        if extent == 1:
            stride = result  # of one input, whatever the stride: each output reads one tap
        phases = [(tap * dilation - pad) % stride for tap in range(taps)]
        offsets = [(phase + pad - tap * dilation) // stride for tap, phase in enumerate(phases)]
        outputs = -(-result // stride)
        first, last = min(*offsets, 0), max(*offsets, extent - outputs, 0)
        places = tuple(offset - first for offset in offsets)
        return cls(stride, tuple(phases), places, last - first + 1, (-first, outputs - extent + last), outputs)


def transposed_as_convolutions(view: ModelView) -> OnnxModel:
    """The model with such convolutions in place of transposed ones; the same one where it has none."""
    found = ModelRewriting(view)
    replaced = set[int]()
    for node in view.nodes:
        if id(node) in replaced:
            continue
        if node.op_type == "ConvTranspose" and (axes := _axes(node, view)) is not None:
            replaced.update(map(id, _convolve(node, axes, found)))
        elif behind := _shuffled(node, view):
            replaced.update(map(id, _reorder(node, behind, found)))
        else:
            found.nodes.append(node)
    return found.model() if replaced else view.model


def _axes(node: onnx.NodeProto, view: ModelView) -> list[PhasedAxis] | None:
    """None where weights are computed, or too large for one convolution."""
    weight = view.constants.get(node.input[1])
    bias = view.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1, np.float32)
    shape, out = view.shape_of(node.input[0]), view.shape_of(node.output[0])
    if weight is None or bias is None or weight.dtype != np.float32 or is_opaque(node) or min(shape[1:]) < 1:
        return None
    kernel, spatial = weight.shape[2:], len(shape) - 2
    strides, dilations = (attribute(node, name, [1] * spatial) for name in ("strides", "dilations"))
    before = _pads_before(node, shape[2:], out[2:], kernel)
    axes = [
        PhasedAxis.of(*numbers) for numbers in zip(kernel, strides, dilations, before, shape[2:], out[2:], strict=True)
    ]
    size = math.prod(axis.taps * axis.stride for axis in axes) * math.prod(weight.shape[:2])
    return axes if size * 4 <= MAX_WEIGHT_BYTES and min(out[1:]) > 0 else None


def _pads_before(
    node: onnx.NodeProto, shape: Sequence[int], out: Sequence[int], kernel: Sequence[int]
) -> Sequence[int]:
    """What is cut away before each axis (ONNX, ConvTranspose: pads, output_shape and auto_pad)."""
    spatial = len(shape)
    auto = text_attribute(node, "auto_pad", "NOTSET")
    if auto == "NOTSET" and not attribute(node, "output_shape", []):
        return list(attribute(node, "pads", [0] * 2 * spatial))[:spatial]
    if auto == "VALID":
        return [0] * spatial
    strides, dilations = (attribute(node, name, [1] * spatial) for name in ("strides", "dilations"))
    more = attribute(node, "output_padding", [0] * spatial)
    whole = [
        (n - 1) * s + m + (k - 1) * d + 1 for n, s, m, k, d in zip(shape, strides, more, kernel, dilations, strict=True)
    ]
    cut = [max(w - o, 0) for w, o in zip(whole, out, strict=True)]
    return [c // 2 if auto == "SAME_UPPER" else c - c // 2 for c in cut]


def _convolve(node: onnx.NodeProto, axes: Sequence[PhasedAxis], found: ModelRewriting) -> list[onnx.NodeProto]:
    """Write the convolution, the activations behind it, and the move of its channels; the nodes that these replace."""
    view = found.view
    weight, groups = view.constants[node.input[1]], attribute(node, "group", 1)
    channels = weight.shape[1] * groups
    bias = np.zeros(channels, np.float32)
    if len(node.input) > 2 and node.input[2]:
        bias = view.constants[node.input[2]]
    taken, name = [node], node.output[0]
    user = view.only_user(name)
    norm = None if user is None or user.op_type != "BatchNormalization" else scale_and_shift(user, view.constants)
    if user is not None and norm is not None and not any(user.output[1:]):
        grouped = norm[0].reshape(groups, 1, -1, *[1] * len(axes))
        weight = (weight.reshape(groups, -1, *weight.shape[1:]) * grouped).reshape(weight.shape)
        bias = bias * norm[0] + norm[1]
        taken, name = [*taken, user], user.output[0]
    batch, result = view.shape_of(node.output[0])[0], view.shape_of(node.output[0])[2:]
    phases = math.prod(axis.stride for axis in axes)
    wide = (batch, channels * phases, *(axis.outputs for axis in axes))
    blocks_move = groups == 1 and len(axes) == 2 and axes[0].stride == axes[1].stride

    def of_phases(each: NDArray[Any]) -> NDArray[Any]:
        """Numbers of channels, for the channels of the convolution."""
        return np.tile(each, phases) if blocks_move else np.repeat(each, phases)

    pads = [*(axis.pads[0] for axis in axes), *(axis.pads[1] for axis in axes)]
    arguments = _filters(weight, axes, groups, blocks_move), of_phases(bias).astype(np.float32)
    source = found.add("Conv", [node.input[0]], f"{node.output[0]}/phases", wide, *arguments, pads=pads, group=groups)
    quantised = _quantised(node, view) if norm is None else None
    if quantised is not None:
        scale = np.broadcast_to(quantised.scale, quantised.steps.shape[1])
        found.quantised[found.nodes[-1].input[1]] = QuantisedConstant(
            _filters(quantised.steps, axes, groups, blocks_move),
            of_phases(np.tile(scale, groups)),
            np.zeros(1, np.int8),
            axis=0,
        )
    source, name, more = _activated(source, name, wide, found)
    _move(source, name, (batch, channels, *result), axes, found, blocks_move=blocks_move)
    return [*taken, *more]


def _quantised(node: onnx.NodeProto, view: ModelView) -> QuantisedConstant | None:
    """The filters as steps without zero points, where the convolution multiplies steps by them."""
    given = view.model.quantised.get(node.input[1])
    if given is None or dequantised(node.input[0], view) is None or (given.scale.size > 1 and given.axis != 1):
        return None
    zero = given.zero.reshape(-1, *[1] * (given.steps.ndim - 2)) if given.zero.size > 1 else given.zero
    steps = centred_steps(given.steps, zero)
    return replace(given, steps=steps) if steps.dtype == np.int8 else None


def _filters(weight: NDArray[Any], axes: Sequence[PhasedAxis], groups: int, blocks_move: bool) -> NDArray[Any]:
    """Of (IC, OC / groups, taps …) those of the convolution: (OC x phases, IC / groups, taps …).

    blocks_move: whether the channels of a phase are side by side, or the phases of a channel.
    """
    ic, each = weight.shape[0] // groups, weight.shape[1]
    strides, taps = [axis.stride for axis in axes], [axis.taps for axis in axes]
    found = np.zeros((groups, each, *strides, ic, *taps), weight.dtype)
    given = weight.reshape(groups, ic, each, *weight.shape[2:])
    for place in np.ndindex(*weight.shape[2:]):
        phase = tuple(axis.phase[k] for axis, k in zip(axes, place, strict=True))
        tap = tuple(axis.tap[k] for axis, k in zip(axes, place, strict=True))
        found[(slice(None), slice(None), *phase, slice(None), *tap)] = given[(..., *place)].transpose(0, 2, 1)
    phased = found.reshape(groups, each, -1, ic, *taps)
    if blocks_move:
        phased = phased.transpose(2, 0, 1, *range(3, phased.ndim))
    return np.ascontiguousarray(phased).reshape(-1, ic, *taps)


def _activated(
    source: str, name: str, shape: Sequence[int], found: ModelRewriting
) -> tuple[str, str, list[onnx.NodeProto]]:
    """The activations that alone read a tensor, of the convolution's outputs; what they give, and the nodes."""
    view, taken = found.view, list[onnx.NodeProto]()
    while (user := view.only_user(name)) is not None and user.op_type in ACTIVATIONS and not is_opaque(user):
        if user.input[0] != name or not all(
            n in view.constants and view.constants[n].size == 1 for n in user.input[1:] if n
        ):
            break
        result = f"{user.output[0]}/phases"
        source = found.add(user.op_type, [source, *user.input[1:]], result, shape, **all_attributes(user))
        name = user.output[0]
        taken.append(user)
    return source, name, taken


def _move(
    source: str,
    name: str,
    shape: Sequence[int],
    axes: Sequence[PhasedAxis],
    found: ModelRewriting,
    *,
    blocks_move: bool,
) -> None:
    """Put channels where their pixels are, and cut away what lies beyond the result."""
    batch, channels, *result = shape
    strides, outputs = [axis.stride for axis in axes], [axis.outputs for axis in axes]
    reached = [stride * count for stride, count in zip(strides, outputs, strict=True)]
    whole = name if reached == result else f"{name}/whole"
    if math.prod(strides) == 1:
        found.rename_last(whole)
    elif blocks_move:
        found.add("DepthToSpace", [source], whole, (batch, channels, *reached), blocksize=strides[0])
    else:
        parts = [batch, channels, *strides, *outputs]
        found.reshape(source, f"{whole}/parts", parts)
        count = len(axes)
        order = [0, 1, *(axis for i in range(count) for axis in (2 + count + i, 2 + i))]
        found.add("Transpose", [f"{whole}/parts"], f"{whole}/ordered", [parts[axis] for axis in order], perm=order)
        found.reshape(f"{whole}/ordered", whole, (batch, channels, *reached))
    if whole != name:
        places = np.arange(len(axes)) + 2
        ends = np.array(result, np.int64)
        found.add("Slice", [whole], name, shape, np.zeros(len(axes), np.int64), ends, places)


def _shuffled(node: onnx.NodeProto, view: ModelView) -> list[onnx.NodeProto]:
    """What lies behind a convolution up to a PixelShuffle, with nothing between but a rounding; empty otherwise."""
    known = node.op_type == "Conv" and all(name in view.constants for name in node.input[1:] if name)
    if not known or attribute(node, "group", 1) != 1 or is_opaque(node):
        return []
    behind: list[onnx.NodeProto] = []
    for kinds in (("QuantizeLinear", "DepthToSpace"), ("DequantizeLinear", "DepthToSpace"), ("DepthToSpace",)):
        user = view.only_user((behind or [node])[-1].output[0])
        if user is None or user.op_type not in kinds or is_opaque(user):
            return []
        behind.append(user)
        if user.op_type == "DepthToSpace":
            return behind if attribute(user, "mode", b"DCR") == b"CRD" else []
        if quantum_of(user, view) is None:
            return []
    return []


def _reorder(node: onnx.NodeProto, behind: Sequence[onnx.NodeProto], found: ModelRewriting) -> list[onnx.NodeProto]:
    """Write all of them with the channels of each pixel's place side by side; the nodes that these replace."""
    view, (*roundings, user) = found.view, behind
    size = attribute(user, "blocksize", 1)
    shape, wide = view.shape_of(user.output[0]), view.shape_of(node.output[0])
    order = np.arange(wide[1]).reshape(-1, size * size).T.reshape(-1)
    arguments = [view.constants[name][order] for name in node.input[1:] if name]
    name = f"{node.output[0]}/phases"
    source = found.add("Conv", [node.input[0]], name, wide, *arguments, **all_attributes(node))
    given = view.model.quantised.get(node.input[1])
    if given is not None and (given.scale.size == 1 or given.axis == 0):
        scale, zero = (each[order] if each.size > 1 else each for each in (given.scale, given.zero))
        weight = found.nodes[-1].input[1]
        found.quantised[weight] = replace(given, steps=given.steps[order], scale=scale, zero=zero)
    for rounding in roundings:
        result, dtype = f"{rounding.output[0]}/phases", view.values[rounding.output[0]].dtype
        source = found.add(rounding.op_type, [source, *rounding.input[1:]], result, wide, dtype=dtype)
    found.add("DepthToSpace", [source], user.output[0], shape, blocksize=size)
    return [node, *behind]
