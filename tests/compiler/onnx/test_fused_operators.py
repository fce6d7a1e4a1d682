"""Operators of ONNX Runtime's own set: fused ones become standard nodes, others a layer of theirs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run

from veltair.compiler.onnx.folding.fused_operators import expand_fused
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

OURS = "com.microsoft"
random = np.random.default_rng(9)


def normal(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32) / np.float32(2)


def fused(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), domain=OURS, **attributes)


IMAGE, ROWS, STEPS, STACK = ("n", 3, 9, 9), ("n", 8), ("n", 5, 8), ("n", 2, 4, 6)
WEIGHTS = {"w": normal(5, 3, 3, 3), "cb": normal(5), "m": normal(8, 6), "mt": normal(6, 8), "c": normal(6)}
WEIGHTS |= {"b": normal(8), "gamma": normal(8), "beta": normal(8), "skip": normal(1, 5, 8)}
CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
FUSED: dict[str, tuple[onnx.NodeProto, tuple[Any, ...]]] = {
    "Gelu": (fused("Gelu", "r"), ROWS),
    "BiasGelu": (fused("BiasGelu", "r b"), ROWS),
    "FastGelu": (fused("FastGelu", "r"), ROWS),
    "FastGelu with a bias": (fused("FastGelu", "r b"), ROWS),
    "QuickGelu": (fused("QuickGelu", "r", alpha=1.5), ROWS),
    "SkipLayerNormalization": (fused("SkipLayerNormalization", "r skip gamma beta", epsilon=1e-5), STEPS),
    "without beta, with bias": (fused("SkipLayerNormalization", "r skip gamma  b"), STEPS),
    "with its sum": (fused("SkipLayerNormalization", "r skip gamma beta b", "y   s", epsilon=1e-5), STEPS),
    "FusedMatMul": (fused("FusedMatMul", "r m", alpha=0.125), ROWS),
    "transposed": (fused("FusedMatMul", "r mt", transB=1), ROWS),
    "of a transpose": (fused("FusedMatMul", "t mt", transA=1), STACK),
    "stacks": (fused("FusedMatMul", "r x", alpha=2.0, transB=1), STACK),
    "FusedConv": (fused("FusedConv", "r w cb", activation="Relu", **CONV), IMAGE),
    "a sum before its activation": (fused("FusedConv", "r w cb z", activation="Relu", **CONV), IMAGE),
    "LeakyRelu": (fused("FusedConv", "r w", activation="LeakyRelu", activation_params=[0.2], **CONV), IMAGE),
    "Clip": (fused("FusedConv", "r w cb", activation="Clip", activation_params=[-0.5, 0.5], **CONV), IMAGE),
    "HardSigmoid": (
        fused("FusedConv", "r w", activation="HardSigmoid", activation_params=[0.3, 0.4], **CONV),
        IMAGE,
    ),
    "FusedGemm": (fused("FusedGemm", "r m c", activation="Relu", alpha=0.5), ROWS),
    "FusedGemm, HardSigmoid": (
        fused("FusedGemm", "r m c", activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4),
        ROWS,
    ),
    "FusedGemm, LeakyRelu": (
        fused("FusedGemm", "r mt c", transB=1, activation="LeakyRelu", activation_alpha=0.1),
        ROWS,
    ),
}


def save(path: Path, nodes: list[onnx.NodeProto], shape: tuple[Any, ...], constants: dict[str, Any]) -> Path:
    outputs = [name for node in nodes for name in node.output if name in ("y", "s")]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), *nodes],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * len(shape)) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OURS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def compare(path: Path, shape: tuple[Any, ...]) -> list[str]:
    """Returns the operators of the layers."""
    session = ort.InferenceSession(str(path))
    layers: list[str] = []
    for batch in (1, 3):
        x = normal(batch, *shape[1:])
        outputs, layers = run(path, {"x": x}, "fp32", batch)
        for found, expected in zip(outputs, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    return layers


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators_are_standard_ones(tmp_path: Path, name: str) -> None:
    node, shape = FUSED[name]
    before = [helper.make_node("Conv", ["r", "w"], ["z"], **CONV)] if "z" in node.input else []
    before += [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2])] if "t" in node.input else []
    path = save(tmp_path / "net.onnx", [*before, node], shape, WEIGHTS)
    assert "onnxruntime" not in compare(path, shape)
    assert load_model(path, 4).mergeable


def test_an_operator_without_standard_nodes_is_left_alone(tmp_path: Path) -> None:
    """What follows it is ours, and patterns do not take it for the operator of the same name."""
    nodes = [
        fused("Gelu", "r", "g"),
        fused("MatMulNBits", "g q s", "h", K=16, N=6, bits=4, block_size=16, accuracy_level=4),
    ]
    nodes += [helper.make_node("MatMul", ["h", "m"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    quantised = {"q": random.integers(0, 256, (6, 1, 8)).astype(np.uint8), "s": normal(6), "m": normal(6, 6)}
    path = save(tmp_path / "net.onnx", nodes, ("n", 16), quantised)
    layers = compare(path, ("n", 16))
    assert layers.count("onnxruntime") == 1
    assert layers.index("onnxruntime") < layers.index("matmul")


@pytest.mark.parametrize("kind", ["Clip", "Softplus"])
def test_an_activation_that_has_no_standard_node(kind: str) -> None:
    """A product with bounds has them in other attributes than a convolution."""
    assert expand_fused(fused("FusedGemm", "a b c", activation=kind), {"a": 2, "b": 2, "c": 1}) is None


def test_an_option_that_has_no_standard_node(tmp_path: Path) -> None:
    nodes = [fused("FusedMatMul", "r x", "h", transBatchA=1, transBatchB=1), helper.make_node("Relu", ["h"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, (4, 4, 4), {})
    session = ort.InferenceSession(str(path))
    x = normal(4, 4, 4)
    outputs, layers = run(path, {"x": x}, "fp32", 1)
    np.testing.assert_allclose(outputs[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert layers.count("onnxruntime") == 1 and len(layers) > 1


def test_a_bias_that_the_optimiser_moved_behind_a_product_is_the_products_again(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["p"], name="p"),
        helper.make_node(
            "SkipLayerNormalization", ["p", "x", "gamma", "beta", "b"], ["y"], name="y", domain=OURS, epsilon=1e-5
        ),
    ]
    constants = {"weight": normal(8, 8), **{name: WEIGHTS[name] for name in ("gamma", "beta", "b")}}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [5, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OURS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    layers = lower(load_model(tmp_path / "m.onnx"), "fp32").layers
    assert [layer.op for layer in layers] == ["matmul", "layer_norm"]
