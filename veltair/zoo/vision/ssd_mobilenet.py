"""SSD-300 on MobileNet v1 for the 91 classes of COCO, as MLPerf's (TensorFlow's ssd_mobilenet_v1_coco_2018_01_28).

Convolutions pad as TensorFlow does ("same": at stride 2 the odd pixel goes below and to the right). The graph ends
before box decoding and non-maximum suppression: it returns codes relative to the 1917 default boxes, and the
classes' scores.
"""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import PLAIN_LIFT, ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

CLASSES, BOXES, SIZE = 91, 1917, 300
# Channels and stride of each depthwise separable convolution; two of them are also feature maps of the heads.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
TAKEN = (11, 13)
EXTRAS = ((256, 512), (128, 256), (128, 256), (64, 128))  # channels of a 1x1 and of a 3x3 convolution of stride 2
ANCHORS = (3, 6, 6, 6, 6, 6)  # boxes per position of each feature map
EPSILON = 1e-3


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 300, 300) -> boxes (1, 1917, 4), scores (1, 1917, 91) in 0 … 1, the background first; opset 17,
    batch norms not folded; same seed, same bytes."""
    g = ConvGraph(np.random.default_rng(seed))
    size = SIZE
    features = []

    def conv(x: TensorMoments, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1) -> TensorMoments:
        nonlocal size
        size, pads = _same(size, kernel, stride)
        y = g.conv_norm(x, name, out, kernel, stride, groups, pads=pads, epsilon=EPSILON, lift=PLAIN_LIFT)
        return g.relu6(y, f"{name}.clip")

    x = conv(g.image("input", 3), "conv0", 32, 3, 2)
    for i, (channels, stride) in enumerate(BLOCKS, 1):
        x = conv(x, f"conv{i}.depthwise", x.channels, 3, stride, groups=x.channels)
        x = conv(x, f"conv{i}.pointwise", channels, 1)
        if i in TAKEN:
            features.append(x)
    for i, (narrow, wide) in enumerate(EXTRAS, 14):
        x = conv(conv(x, f"conv{i}.1", narrow, 1), f"conv{i}.2", wide, 3, 2)
        features.append(x)
    scores = g.node("Sigmoid", [_head(g, features, "classes", CLASSES, gain=2.0)], "scores")
    boxes = _head(g, features, "boxes", 4, gain=1.0)
    return image_model("ssd_mobilenet", g, {boxes: (1, BOXES, 4), scores: (1, BOXES, CLASSES)}, qos_ms=100, size=SIZE)


def _same(size: int, kernel: int, stride: int) -> tuple[int, list[int]]:
    """TensorFlow's "same" padding: size of the result, and (top, left, bottom, right)."""
    out = -(-size // stride)
    pad = max(0, (out - 1) * stride + kernel - size)
    return out, [pad // 2, pad // 2, pad - pad // 2, pad - pad // 2]


def _head(g: ConvGraph, features: list[TensorMoments], name: str, width: int, gain: float) -> str:
    """(1, 1917, width): a 1x1 convolution on every feature map, its result transposed so that anchors follow pixels."""
    parts = []
    for i, (x, anchors) in enumerate(zip(features, ANCHORS, strict=True)):
        y = g.conv(x, f"{name}.{i}", anchors * width, kernel=1, gain=gain)
        g.node("Transpose", [y.name], f"{name}.{i}.last", perm=[0, 2, 3, 1])
        flat = g.constant(f"{name}.{i}.together", np.array([1, -1, width], np.int64))
        parts.append(g.node("Reshape", [f"{name}.{i}.last", flat], f"{name}.{i}.flat"))
    return g.node("Concat", parts, name, axis=1)
