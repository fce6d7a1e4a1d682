"""EfficientNet-B0 (Tan and Le 2019, table 1), as torchvision's: 5,288,548 parameters."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import PLAIN_LIFT, ConvGraph, image_model
from veltair.zoo.moments import TensorMoments

# expansion, kernel, channels, blocks, stride of the first block
STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 224, 224) -> logits (1, 1000), opset 17, batch norms not folded; same seed, same bytes."""
    g = ConvGraph(np.random.default_rng(seed))
    x = g.silu(g.conv_norm(g.image("input", 3), "stem", 32, kernel=3, stride=2), "stem.silu")
    for stage, (expansion, kernel, channels, blocks, stride) in enumerate(STAGES, 1):
        for block in range(blocks):
            name = f"block{stage}.{block}"
            x = _mbconv(g, x, name, expansion, kernel, channels, stride if block == 0 else 1)
    x = g.silu(g.conv_norm(x, "head", 1280, kernel=1), "head.silu")
    return image_model("efficientnet_b0", g, {g.classify(x, "classifier", 1000): (1, 1000)}, qos_ms=60)


def _mbconv(
    g: ConvGraph, x: TensorMoments, name: str, expansion: int, kernel: int, channels: int, stride: int
) -> TensorMoments:
    hidden = x.channels * expansion
    y = x
    if expansion != 1:
        y = g.silu(g.conv_norm(y, f"{name}.expand", hidden, kernel=1, lift=PLAIN_LIFT), f"{name}.expand.silu")
    y = g.conv_norm(y, f"{name}.depthwise", hidden, kernel, stride, groups=hidden, lift=PLAIN_LIFT)
    y = g.squeeze_excite(g.silu(y, f"{name}.depthwise.silu"), f"{name}.se", x.channels // 4)
    residual = stride == 1 and x.channels == channels
    y = g.conv_norm(y, f"{name}.project", channels, kernel=1, gain=0.5 if residual else 1.0)
    return g.add(y, x, f"{name}.sum") if residual else y
