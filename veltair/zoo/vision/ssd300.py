"""SSD-300 on VGG-16 for the 91 classes of COCO (Liu et al. 2015), as torchvision's ssd300_vgg16: 35,641,826 parameters.

The graph ends before boxes are decoded and non-maximum suppression runs. Its outputs are the offsets from the 8732
default boxes, and the scores of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from veltair.zoo.conv_graph import PLAIN_LIFT, ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

CLASSES, BOXES = 91, 8732
# VGG-16: channels and convolutions of a stage. A pooling follows all but the last; the third rounds up (75 -> 38).
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
# Channels of a 1x1 and of a 3x3 convolution, stride and padding of the latter.
EXTRAS = ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
ANCHORS = (4, 6, 6, 6, 4, 4)  # boxes per position of each feature map
SIZES = (38, 19, 10, 5, 3, 1)


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 300, 300) -> boxes (1, 8732, 4), scores (1, 8732, 91); opset 17; same seed, same bytes.

    Scores sum to one over the classes, the first of which is the background.
    """
    g = ConvGraph(np.random.default_rng(seed))
    x = g.image("input", 3)
    features = []
    for stage, (channels, convolutions) in enumerate(STAGES, 1):
        if stage > 1:
            x = g.max_pool(x, f"pool{stage - 1}", kernel=2, stride=2, ceil=stage == 4)
        for i in range(1, convolutions + 1):
            x = _conv(g, x, f"conv{stage}_{i}", channels, 3)
        if stage == 4:
            features.append(_normalised(g, x, "conv4_norm"))
    x = g.max_pool(x, "pool5", kernel=3, stride=1, pads=(1, 1, 1, 1))
    x = _conv(g, x, "fc6", 1024, 3, dilation=6)
    x = _conv(g, x, "fc7", 1024, 1)
    features.append(x)
    for i, (narrow, wide, stride, pad) in enumerate(EXTRAS, 8):
        x = _conv(g, x, f"conv{i}_1", narrow, 1)
        x = _conv(g, x, f"conv{i}_2", wide, 3, stride, [pad] * 4)
        features.append(x)
    scores = g.node("Softmax", [_head(g, features, "classes", CLASSES, gain=1.5)], "scores", axis=-1)
    boxes = _head(g, features, "boxes", 4, gain=0.5)
    return image_model("ssd300", g, {boxes: (1, BOXES, 4), scores: (1, BOXES, CLASSES)}, qos_ms=500, size=300)


def _conv(
    g: ConvGraph,
    x: TensorMoments,
    name: str,
    out: int,
    kernel: int,
    stride: int = 1,
    pads: Sequence[int] | None = None,
    dilation: int = 1,
) -> TensorMoments:
    return g.relu(g.conv(x, name, out, kernel, stride, pads=pads, dilation=dilation, lift=PLAIN_LIFT), f"{name}.relu")


def _normalised(g: ConvGraph, x: TensorMoments, name: str) -> TensorMoments:
    """ParseNet's L2 normalisation: each pixel's channels are scaled to length one, then by learned factors near 20."""
    scale = 20 * g.rng.uniform(0.8, 1.2, x.channels)
    factors = g.constant(f"{name}.scale", scale.astype(np.float32)[None, :, None, None])
    g.node("ReduceL2", [x.name], f"{name}.length", axes=[1], keepdims=1)
    least = g.constant(f"{name}.least", np.array(1e-12, np.float32))
    g.node("Clip", [f"{name}.length", least], f"{name}.clipped")
    g.node("Shape", [x.name], f"{name}.shape")
    g.node("Expand", [f"{name}.clipped", f"{name}.shape"], f"{name}.expanded")
    g.node("Div", [x.name, f"{name}.expanded"], f"{name}.unit")
    g.node("Mul", [factors, f"{name}.unit"], name)
    ratio = scale / np.sqrt(x.square.sum())
    return TensorMoments(name, x.mean * ratio, x.var * ratio**2)


def _head(g: ConvGraph, features: list[TensorMoments], name: str, width: int, gain: float) -> str:
    """(1, 8732, width): a 3x3 convolution on every feature map, its result transposed so that anchors follow pixels."""
    parts = []
    for i, (x, anchors, size) in enumerate(zip(features, ANCHORS, SIZES, strict=True)):
        y = g.conv(x, f"{name}.{i}", anchors * width, kernel=3, gain=gain)
        apart = g.constant(f"{name}.{i}.apart", np.array([1, anchors, width, size, size], np.int64))
        g.node("Reshape", [y.name, apart], f"{name}.{i}.anchors")
        g.node("Transpose", [f"{name}.{i}.anchors"], f"{name}.{i}.last", perm=[0, 3, 4, 1, 2])
        flat = g.constant(f"{name}.{i}.together", np.array([1, -1, width], np.int64))
        parts.append(g.node("Reshape", [f"{name}.{i}.last", flat], f"{name}.{i}.flat"))
    return g.node("Concat", parts, name, axis=1)
