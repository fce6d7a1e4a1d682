"""Tiny YOLOv2 for the 20 classes of VOC (Redmon and Farhadi 2016; darknet's yolov2-tiny-voc): 15,861,773 parameters."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.zoo.conv_graph import ConvGraph, image_model

CHANNELS = (16, 32, 64, 128, 256, 512, 1024, 1024)
POOLED = 6  # the first convolutions, which a pooling follows; the last pooling has stride 1 and keeps the size
BOXES, CLASSES = 5, 20
SLOPE = 0.1


def build(seed: int) -> onnx.ModelProto:
    """float32 (1, 3, 416, 416) -> grid (1, 125, 13, 13); opset 17, batch norms not folded; same seed, same bytes.

    The grid holds x, y, w, h, objectness and 20 classes of each of 5 boxes, before any sigmoid.
    """
    g = ConvGraph(np.random.default_rng(seed))
    x = g.image("input", 3)
    for i, channels in enumerate(CHANNELS, 1):
        x = g.leaky_relu(g.conv_norm(x, f"conv{i}", channels, kernel=3), f"conv{i}.leaky", SLOPE)
        if i < POOLED:
            x = g.max_pool(x, f"pool{i}", kernel=2, stride=2)
        elif i == POOLED:
            x = g.max_pool(x, f"pool{i}", kernel=2, stride=1, pads=(0, 0, 1, 1))
    outputs = BOXES * (5 + CLASSES)
    x = g.conv(x, "grid", outputs, kernel=1)
    return image_model("tiny_yolov2", g, {x.name: (1, outputs, 13, 13)}, qos_ms=100, size=416)
