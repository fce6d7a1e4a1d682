"""Convolutions with constant weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.codegen.bf16_rounding import round_filters
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation, Halo
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import Conv2dParameters, window_share
from veltair.compiler.onnx.node_attributes import attribute, padding
from veltair.compiler.patterns.epilogue import Epilogue
from veltair.compiler.patterns.vision.channel_shuffle import shuffle_behind
from veltair.compiler.patterns.vision.live_taps import live_taps
from veltair.compiler.patterns.vision.tap_windows import tap_windows

MAX_FOLDED_CHANNELS = 4  # up to this many input channels (an image), a convolution takes them as one innermost block
# Up to this many groups are computed as one convolution with zeros between them, if a channel shuffle comes behind that
# cannot be made when the outputs are stored: in bfloat16, or of other groups.
MAX_DENSE_GROUPS = 8
MIN_POOLED_BYTES = 2 << 20  # of an image's outputs; smaller ones are still in L2 when a pool of its own reads them


def conv(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A convolution with its epilogue, and a channel shuffle or a pool over 2 x 2 behind it where that pays."""
    shape, weight = view.shape_of(node.input[0]), view.constants.get(node.input[1])
    bias = view.constants.get(node.input[2]) if len(node.input) > 2 else None
    if not view.is_map(node.input[0]) or weight is None or (len(node.input) > 2 and bias is None):
        return False
    group, channels = attribute(node, "group", 1), weight.shape[0]
    depthwise = group == shape[1] == channels and group > 1
    kernel = tuple(weight.shape[2:])
    strides = tuple(attribute(node, "strides", [1, 1]))
    dilations = tuple(attribute(node, "dilations", [1, 1]))
    out = view.shape_of(node.output[0])
    pads = padding(node, shape[2:], out[2:], kernel, strides, dilations)
    if min(pads) < 0:
        return False
    weight, dilations, pads = live_taps(weight, shape[2:], out[2:], strides, dilations, pads)
    kernel = tuple(weight.shape[2:])
    x = builder.to_blocked(node.input[0], shape[1] if shape[1] <= MAX_FOLDED_CHANNELS and not depthwise else None)
    epilogue = Epilogue.behind(node, view, builder)
    output, swallowed = epilogue.output, epilogue.swallowed
    mixable = epilogue.residual is None and not depthwise
    shuffle = shuffle_behind(output, view) if mixable else None
    shuffled = shuffle is not None and shuffle.groups == group > 1 and view.dtype == "float32"
    if shuffle is not None and shuffled:
        output, swallowed = shuffle.output, (*swallowed, *shuffle.nodes)
    elif shuffle is not None and group <= MAX_DENSE_GROUPS:
        weight, group = _as_one_group(weight, group), 1
        weight, bias = weight[shuffle.order], None if bias is None else bias[shuffle.order]
        output, swallowed = shuffle.output, (*swallowed, *shuffle.nodes)
    right = pads[3]
    if view.dtype == "uint16" and x.block < view.block:
        right += -(-view.block // shape[1]) + 1  # a folded tile row reads on past the last column
    builder.request_halo(x, Halo(pads[0], pads[1], pads[2], right))
    kind = "depthwise_conv2d" if depthwise else "conv2d_bf16" if view.dtype == "uint16" else "conv2d"
    pooled = _pool_behind(output, epilogue, view) if kind == "conv2d_bf16" else None
    if pooled is not None:
        output, swallowed = pooled.output[0], (*swallowed, pooled)
    y = Activation(output, view.dtype, view.shape_of(output), view.block)
    windows = tap_windows(weight, LANES) if group == 1 and x.block % LANES == 0 else ()
    flops = round(2 * int(np.prod(np.abs(out))) * int(np.prod(weight.shape[1:])) * window_share(windows, kernel))
    parameters = Conv2dParameters(
        kernel,
        strides,
        dilations,
        pads,
        epilogue.activation,
        groups=1 if depthwise else group,
        shuffled=shuffled,
        pooled=None if pooled is None else (out[2], out[3]),
        windows=windows,
    )
    weight = np.asarray(weight, np.float32)
    weights = {
        "weight": round_filters(weight) if kind == "conv2d_bf16" else weight,
        "bias": np.zeros(channels, np.float32) if bias is None else np.asarray(bias, np.float32),
    }
    builder.emit(node.name, kind, epilogue.operands(x), [y], parameters, weights, flops)
    builder.take(swallowed)
    return True


def _pool_behind(name: str, epilogue: Epilogue, view: ModelView) -> onnx.NodeProto | None:
    """The maximum pool over 2 x 2 that may be taken of the sums, if the outputs before it would not stay in L2."""
    user = view.free_user(name)
    if user is None or user.op_type != "MaxPool" or len(user.output) > 1 or epilogue.residual is not None:
        return None
    kind, *numbers = epilogue.activation.split(":")
    monotonic = kind in ("none", "relu", "clip") or (kind == "leaky" and float(numbers[0]) >= 0)
    (_, channels, *size), out = view.shape_of(name), view.shape_of(user.output[0])
    square = all(list(attribute(user, key, [1, 1])) == [2, 2] for key in ("kernel_shape", "strides"))
    if not monotonic or not square or list(attribute(user, "dilations", [1, 1])) != [1, 1]:
        return None
    if any(padding(user, tuple(size), out[2:], (2, 2), (2, 2), (1, 1))[:2]):
        return None
    large = channels * int(np.prod(size)) * 2 >= MIN_POOLED_BYTES
    return user if large else None


def _as_one_group(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """A grouped convolution's weights (OC, IC / group, KH, KW) as those of one group, zero outside the diagonal.

    Costs up to `group` times the products, and its output channels may come in any order.
    """
    oc, ic = weight.shape[:2]
    dense = np.zeros((oc, ic * group, *weight.shape[2:]), weight.dtype)
    each = oc // group
    for g in range(group):
        dense[g * each : (g + 1) * each, g * ic : (g + 1) * ic] = weight[g * each : (g + 1) * each]
    return dense
