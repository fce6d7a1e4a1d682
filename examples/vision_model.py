"""A vision model of your own: build a small network, compile it, and check its answers in this process.

    python examples/vision_model.py                # searches each layer for a while
    python examples/vision_model.py --trials 0     # compiles at once, without a search

The network is written with `onnx.helper`, so that the example needs nothing beyond veltair. A PyTorch module goes the
same way, as `veltair.compile` exports it:

    module = torchvision.models.resnet18(weights="DEFAULT")
    artifact = veltair.compile(module, "artifacts/resnet18", example=torch.zeros(1, 3, 224, 224), qos_ms=50)
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import veltair

CHANNELS, CLASSES, SIZE = (16, 32), 10, 32


def network(seed: int = 0) -> onnx.ModelProto:
    """image float32 (1, 3, 32, 32) -> scores (1, 10): two convolutions, an average over the image, a dense layer."""
    rng = np.random.default_rng(seed)
    nodes, weights, x, inputs = [], [], "image", 3
    for number, outputs in enumerate(CHANNELS):
        kernel = rng.standard_normal((outputs, inputs, 3, 3), dtype=np.float32) / np.sqrt(9 * inputs, dtype=np.float32)
        weights.append(numpy_helper.from_array(kernel, f"kernel{number}"))
        nodes += [
            helper.make_node("Conv", [x, f"kernel{number}"], [f"conv{number}"], pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("Relu", [f"conv{number}"], [f"relu{number}"]),
        ]
        x, inputs = f"relu{number}", outputs
    dense = rng.standard_normal((inputs, CLASSES), dtype=np.float32)
    weights.append(numpy_helper.from_array(dense, "dense"))
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["scores"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "small_vision", [image], [scores], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile a vision model of your own and check its answers.")
    parser.add_argument("--trials", type=int, help="candidates to measure of each layer (default: some)")
    trials = parser.parse_args().trials
    model = network()
    image = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        artifact = veltair.compile(model, Path(folder) / "small_vision", qos_ms=5, trials=trials, precision="fp32")
        print(artifact.summary())
        with veltair.load(artifact) as compiled:
            scores = compiled(image)["scores"]
    [expected] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"image": image})
    print(f"class {scores.argmax()}; off from ONNX Runtime by at most {np.abs(scores - expected).max():.1e}")
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
