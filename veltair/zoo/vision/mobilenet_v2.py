"""MobileNet-V2 1.0 (Sandler et al. 2018, table 2), as torchvision's: 3,504,872 parameters."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

# expansion, channels, blocks, stride of the first block
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 224, 224) -> logits (1, 1000), opset 17, batch norms not folded; same seed, same bytes."""
    g = ConvGraph(np.random.default_rng(seed))
    x = g.relu6(g.conv_norm(g.image("input", 3), "stem", 32, kernel=3, stride=2), "stem.clip")
    for stage, (expansion, channels, blocks, stride) in enumerate(STAGES, 1):
        for block in range(blocks):
            x = _inverted_residual(g, x, f"block{stage}.{block}", expansion, channels, stride if block == 0 else 1)
    x = g.relu6(g.conv_norm(x, "head", 1280, kernel=1), "head.clip")
    return image_model("mobilenet_v2", g, {g.classify(x, "classifier", 1000): (1, 1000)}, qos_ms=50)


def _inverted_residual(
    g: ConvGraph, x: TensorMoments, name: str, expansion: int, channels: int, stride: int
) -> TensorMoments:
    hidden = x.channels * expansion
    y = x
    if expansion != 1:
        y = g.relu6(g.conv_norm(y, f"{name}.expand", hidden, kernel=1), f"{name}.expand.clip")
    depthwise = g.conv_norm(y, f"{name}.depthwise", hidden, kernel=3, stride=stride, groups=hidden)
    y = g.relu6(depthwise, f"{name}.depthwise.clip")
    residual = stride == 1 and x.channels == channels
    y = g.conv_norm(y, f"{name}.project", channels, kernel=1, gain=0.5 if residual else 1.0)
    return g.add(x, y, f"{name}.sum") if residual else y
