"""Three-dimensional convolutions run in the kernels of images, and give what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from quantised_models import save
from run_kernels import run_graph

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

node = helper.make_node
rng = np.random.default_rng(0)
UNSTATED = ["n", None, None, None, None]  # extents that are inferred
CONVOLUTIONS = {"conv2d", "depthwise_conv2d", "conv2d_bf16"}


def weight(*shape: int) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def agrees(path: Path, batch: int, tolerance: float = 1e-5, precision: str = "fp32") -> LayerGraph:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((batch, *session.get_inputs()[0].shape[1:])).astype(np.float32)
    graph = lower(load_model(path, 4), precision)
    for found, right in zip(run_graph(graph, {"x": x}, batch), session.run(None, {"x": x}), strict=True):
        assert found.shape == right.shape
        assert np.abs(found - right).max() <= tolerance * np.abs(right).max()
    return graph


def one_convolution(path: Path, shape: list[int], filters: tuple[int, ...], **attributes: Any) -> Path:
    """Behind an activation, since a convolution that reads the input and gives the output has no neighbours."""
    nodes = [
        node("Neg", ["x"], ["v"]),
        node("Conv", ["v", "w", "b"], ["c"], "conv", **attributes),
        node("Tanh", ["c"], ["y"]),
    ]
    return save(path, nodes, {"w": weight(*filters), "b": weight(filters[0])}, ["n", *shape], UNSTATED)


CASES: dict[str, tuple[list[int], tuple[int, ...], dict[str, Any]]] = {
    "all three axes": ([3, 5, 9, 8], (8, 3, 3, 3, 3), {"pads": [1] * 6}),
    "strides": ([4, 6, 9, 8], (8, 4, 3, 3, 3), {"pads": [1] * 6, "strides": [2, 2, 2]}),
    "strides that leave rows": ([4, 4, 11, 8], (8, 4, 1, 2, 3), {"strides": [1, 3, 2]}),
    "dilations": ([4, 7, 9, 9], (8, 4, 3, 3, 2), {"dilations": [2, 2, 3], "pads": [2, 2, 1, 0, 1, 2]}),
    "a frame at a time": ([3, 4, 9, 8], (8, 3, 1, 5, 5), {"pads": [0, 2, 2] * 2, "strides": [2, 2, 2]}),
    "a pixel at a time": ([4, 6, 5, 7], (8, 4, 3, 1, 1), {"pads": [1, 0, 0, 1, 0, 0], "strides": [2, 1, 1]}),
    "a point, of every other pixel": ([4, 4, 5, 7], (8, 4, 1, 1, 1), {"strides": [2, 2, 3]}),
    "rows alone": ([4, 4, 9, 7], (8, 4, 1, 3, 1), {"pads": [0, 2, 0, 0, 0, 0]}),
    "patches": ([3, 4, 8, 8], (8, 3, 2, 4, 4), {"strides": [2, 4, 4]}),
    "all frames": ([4, 3, 6, 6], (8, 4, 3, 3, 3), {"pads": [0, 1, 1] * 2}),
    "groups": ([8, 4, 6, 6], (16, 4, 3, 3, 3), {"pads": [1] * 6, "group": 2}),
    "a channel at a time": ([16, 4, 7, 6], (16, 1, 3, 3, 3), {"pads": [1] * 6, "group": 16, "strides": [1, 2, 2]}),
    "SAME_UPPER": ([3, 4, 7, 6], (8, 3, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [1, 2, 2]}),
    "SAME_LOWER": ([3, 4, 7, 6], (8, 3, 2, 4, 3), {"auto_pad": "SAME_LOWER"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_agrees(tmp_path: Path, case: str) -> None:
    shape, filters, attributes = CASES[case]
    graph = agrees(one_convolution(tmp_path / "net.onnx", shape, filters, **attributes), 2)
    assert any(layer.op in CONVOLUTIONS for layer in graph.layers)


def test_a_window_within_padding_stays_with_tvm(tmp_path: Path) -> None:
    path = one_convolution(tmp_path / "net.onnx", [3, 4, 6, 6], (8, 3, 1, 3, 3), pads=[0, 3, 3] * 2)
    assert not any(layer.op in CONVOLUTIONS for layer in agrees(path, 2).layers)


def residual_net(path: Path) -> Path:
    """Two blocks of a network of clips, as R(2+1)D has them, a pool over frames and a dense layer."""
    nodes = [
        node("Conv", ["x", "w0", "b"], ["c0"], pads=[0, 1, 1] * 2, strides=[1, 2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b"], ["c1"], pads=[1, 0, 0] * 2),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b"], ["c2"], pads=[1] * 6),
        node("Clip", ["c2", "zero", "six"], ["r2"]),
        node("Conv", ["r2", "w2", "b"], ["c3"], pads=[1] * 6),
        node("Add", ["c3", "r2"], ["s"]),
        node("Mul", ["s", "scale"], ["m"]),
        node("Relu", ["m"], ["r3"]),
        node("MaxPool", ["r3"], ["p"], kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
        node("Mul", ["p", "channels"], ["q"]),
        node("GlobalAveragePool", ["q"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3"], ["y"], transB=1),
    ]
    shapes = {"w0": (16, 3, 1, 3, 3), "w1": (16, 16, 3, 1, 1), "w2": (16, 16, 3, 3, 3), "w3": (5, 16), "b": (16,)}
    constants: dict[str, Any] = {name: weight(*shape) for name, shape in shapes.items()}
    constants |= {"zero": np.float32(0), "six": np.float32(6), "scale": np.full((1, 1, 1, 1, 1), 0.5, np.float32)}
    return save(path, nodes, constants | {"channels": weight(16, 1, 1, 1)}, ["n", 3, 4, 12, 12], ["n", 5])


@pytest.mark.parametrize("batch", [1, 3])
def test_activations_and_sums_are_epilogues(tmp_path: Path, batch: int) -> None:
    graph = agrees(residual_net(tmp_path / "net.onnx"), batch)
    convolutions = [layer for layer in graph.layers if layer.op in CONVOLUTIONS]
    assert len(convolutions) == 4
    assert sum(len(layer.inputs) == 2 for layer in convolutions) == 1  # the sum


def test_in_bfloat16(tmp_path: Path) -> None:
    agrees(residual_net(tmp_path / "net.onnx"), 2, 5e-2, "bf16")


def test_a_norm_over_the_image_does_not_see_rows_between_frames(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 6),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Softmax", ["c"], ["s"], axis=3),
        node("Add", ["s", "g"], ["y"]),
    ]
    agrees(save(tmp_path / "net.onnx", nodes, {"w": weight(8, 3, 3, 3, 3)}, ["n", 3, 3, 5, 5], UNSTATED), 2)


def test_outputs_of_the_model_are_volumes(tmp_path: Path) -> None:
    path = residual_net(tmp_path / "net.onnx")
    proto = onnx.load(path)
    for name in ("c0", "r0", "c1", "c2", "s", "r3"):
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, UNSTATED))
    onnx.save(proto, path)
    agrees(path, 2)
