"""GoogLeNet (Inception v1, Szegedy et al. 2014, table 1) in torchvision's variant: 6,624,904 parameters.

It has batch norms, 3x3 convolutions in place of the paper's 5x5, poolings that round up, and no auxiliary heads.
"""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import PLAIN_LIFT, ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

# Channels: 1x1; reduction for the 3x3, 3x3; reduction for the 5x5, 5x5; projection of the pooling. A single number is
# the window of a pooling at stride 2.
BLOCKS: dict[str, tuple[int, int, int, int, int, int] | int] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "pool3": 3,
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "pool4": 2,
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
EPSILON = 1e-3


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 224, 224) -> logits (1, 1000), opset 17, batch norms not folded; same seed, same bytes."""
    g = ConvGraph(np.random.default_rng(seed))
    x = _conv(g, g.image("input", 3), "conv1", 64, kernel=7, stride=2)
    x = g.max_pool(x, "pool1", kernel=3, stride=2, ceil=True)
    x = _conv(g, _conv(g, x, "conv2", 64, kernel=1), "conv3", 192, kernel=3)
    x = g.max_pool(x, "pool2", kernel=3, stride=2, ceil=True)
    for name, block in BLOCKS.items():
        if isinstance(block, int):
            x = g.max_pool(x, name, kernel=block, stride=2, ceil=True)
        else:
            x = _inception(g, x, f"inception{name}", block)
    return image_model("googlenet", g, {g.classify(x, "fc", 1000): (1, 1000)}, qos_ms=100)


def _inception(g: ConvGraph, x: TensorMoments, name: str, widths: tuple[int, int, int, int, int, int]) -> TensorMoments:
    one, reduce3, three, reduce5, five, project = widths
    branches = [
        _conv(g, x, f"{name}.1", one, kernel=1),
        _conv(g, _conv(g, x, f"{name}.2.0", reduce3, kernel=1), f"{name}.2.1", three, kernel=3),
        _conv(g, _conv(g, x, f"{name}.3.0", reduce5, kernel=1), f"{name}.3.1", five, kernel=3),
    ]
    pooled = g.max_pool(x, f"{name}.4.pool", kernel=3, stride=1, pads=(1, 1, 1, 1), ceil=True)
    return g.concat([*branches, _conv(g, pooled, f"{name}.4", project, kernel=1)], name)


def _conv(g: ConvGraph, x: TensorMoments, name: str, out: int, kernel: int, stride: int = 1) -> TensorMoments:
    return g.relu(g.conv_norm(x, name, out, kernel, stride, epsilon=EPSILON, lift=PLAIN_LIFT), f"{name}.relu")
