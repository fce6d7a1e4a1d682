"""ResNet-50 v1.5 (He et al. 2015; stride on the 3x3 convolution), as torchvision's: 25,557,032 parameters."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first block
EXPANSION = 4


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 224, 224) -> logits (1, 1000), opset 17, batch norms not folded; same seed, same bytes."""
    g = ConvGraph(np.random.default_rng(seed))
    x = g.relu(g.conv_norm(g.image("input", 3), "stem", 64, kernel=7, stride=2), "stem.relu")
    x = g.max_pool(x, "stem.pool", kernel=3, stride=2, pads=(1, 1, 1, 1))
    for stage, (width, blocks, stride) in enumerate(STAGES, 1):
        for block in range(blocks):
            x = _bottleneck(g, x, f"layer{stage}.{block}", width, stride if block == 0 else 1, block == 0)
    return image_model("resnet50", g, {g.classify(x, "fc", 1000): (1, 1000)}, qos_ms=100)


def _bottleneck(g: ConvGraph, x: TensorMoments, name: str, width: int, stride: int, project: bool) -> TensorMoments:
    y = g.relu(g.conv_norm(x, f"{name}.1", width, kernel=1), f"{name}.1.relu")
    y = g.relu(g.conv_norm(y, f"{name}.2", width, kernel=3, stride=stride), f"{name}.2.relu")
    # A small scale before the sum keeps the residual stream from growing from block to block.
    y = g.conv_norm(y, f"{name}.3", width * EXPANSION, kernel=1, gain=0.5)
    if not project:
        return g.add_relu(x, y, name)
    shortcut = g.conv_norm(x, f"{name}.project", width * EXPANSION, 1, stride)
    return g.relu(g.add(y, shortcut, f"{name}.sum"), f"{name}.relu")
