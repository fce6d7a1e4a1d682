"""Quantised models are layers of 8-bit integers, and give ONNX Runtime's results at every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from bert import Bert
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from quantised_models import dense_net, grouped_net, image_net, quantise, save
from run_kernels import run_graph

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering
from veltair.profiles.runtime.onnx_layers import exact_session

node = helper.make_node


def lowered(path: Path, precision: str = "fp32") -> LayerGraph:
    lowering = Lowering(precision=precision)
    lowering.model = load_model(path, 4)
    for phase in LOWERING_PHASES:
        phase(lowering)
    return lowering.graph


def greatest_error(path: Path, graph: LayerGraph, feeds: dict[str, NDArray[Any]], batch: int) -> float:
    """Of all outputs, over the greatest value of each."""
    wanted = exact_session(str(path), ort.SessionOptions()).run(None, feeds)
    found = run_graph(graph, feeds, batch)
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, wanted, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("form", ["qdq", "signed", "qlinear", "reduced", "symmetric"])
def test_a_convolutional_net(tmp_path: Path, form: str) -> None:
    path = quantise(image_net(tmp_path / "net.onnx"), form)
    graph = lowered(path, "bf16" if form == "signed" else "fp32")
    # A sum is rounded before its activation and behind it.
    activation = ["table_int8"] if form == "symmetric" else []
    assert [layer.op for layer in graph.layers] == [
        *("quantise", "conv2d_int8", "max_pool_int8", "conv2d_int8", "conv2d_int8", *activation),
        *("depthwise_int8", "mean_int8", "reorder", "matmul_int8", "dequantise"),
    ]
    products = [layer.parameters_as(QuantisedProductParameters) for layer in graph.layers if "bias" in layer.weights]
    # QLinearConv's biases are integers; of the others some are floats, in front of a normalisation.
    assert {each.whole_bias for each in products} == ({True} if form == "qlinear" else {True, False})
    assert products[-1].saturates
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 26, 26)).astype(np.float32)
        assert greatest_error(path, graph, {"x": x}, batch) < 0.02  # a step of the output


@pytest.mark.parametrize("form", ["qlinear", "unsigned", "dynamic"])
def test_grouped_convolutions(tmp_path: Path, form: str) -> None:
    path = quantise(grouped_net(tmp_path / "net.onnx"), form)
    graph = lowered(path, "bf16" if form == "dynamic" else "fp32")
    products = [layer.parameters_as(QuantisedProductParameters) for layer in graph.layers if layer.op == "conv2d_int8"]
    assert [layer.groups for layer in products] == [6, 3, 6]
    assert {layer.wide for layer in products} == {form == "unsigned"}
    x = np.random.default_rng(1).standard_normal((3, 24, 8, 7)).astype(np.float32)
    assert greatest_error(path, graph, {"x": x}, 3) < (1e-5 if form == "dynamic" else 0.02)


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1), (2, 8, 1, 1), (3,), ()])
def test_a_constant_is_added_to_feature_maps(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Behind a convolution whose result is not rounded: to each channel, or what is no bias of it."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3)), "a": rng.standard_normal(shape)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "a"], ["y"])]
    constants = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    path = quantise(save(tmp_path / "net.onnx", nodes, constants, [2, 4, 5, 5], [2, 8, 3, 3]), "dynamic")
    graph = lowered(path)
    assert "conv2d_int8" in [layer.op for layer in graph.layers]
    x = rng.standard_normal((2, 4, 5, 5)).astype(np.float32)
    assert greatest_error(path, graph, {"x": x}, 1) < 1e-5


@pytest.mark.parametrize("form", ["qlinear", "unsigned", "dynamic", "dynamic_unsigned", "reduced", "dynamic_reduced"])
def test_dense_layers(tmp_path: Path, form: str) -> None:
    path = quantise(dense_net(tmp_path / "net.onnx"), form)
    graph = lowered(path)
    assert sum(layer.op == "matmul_int8" for layer in graph.layers) == 2
    assert not any(layer.op in ("matmul", "onnxruntime") for layer in graph.layers)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 50)).astype(np.float32)
        assert greatest_error(path, graph, {"x": x}, batch) < 0.02


def test_an_attention_block_quantised_dynamically(tmp_path: Path) -> None:
    """Scales come from a whole batch, so queries of different clients do not share one."""
    path = tmp_path / "quantised.onnx"
    quantize_dynamic(Bert(1, 2, 32, 8, "n").save(tmp_path / "bert.onnx"), path, weight_type=QuantType.QInt8)
    graph = lowered(path)
    assert sum(layer.op == "matmul_int8" for layer in graph.layers) == 7
    assert not load_model(path, 4).mergeable
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, 2, (3, 8)) for name in ("input_ids", "token_type_ids")}
    feeds["attention_mask"] = (np.arange(8)[None] < [[5], [8], [2]]).astype(np.int64)
    assert greatest_error(path, graph, feeds, 3) < 1e-4


def steps_net(path: Path, zero: int | list[int], dtype: Any = np.int8, reach: int = 255) -> Path:
    """A convolution of steps that come in and go out as they are. Weights lie within `reach` of their zero points."""
    rng = np.random.default_rng(0)
    info, middle = np.iinfo(dtype), np.broadcast_to(zero, 5).reshape(5, 1, 1, 1)
    low, high = np.maximum(middle - reach, info.min), np.minimum(middle + reach, info.max)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(120),
        "w": rng.integers(low, high, (5, 6, 3, 3), endpoint=True).astype(dtype),
        "ws": np.full(np.shape(zero), 0.004, np.float32),
        "wz": np.array(zero, dtype),
        "t": np.float32(0.3),
    }
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["xf"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        node("Conv", ["xf", "wf"], ["c"], pads=[2, 2, 2, 2], dilations=[2, 2]),
        node("QuantizeLinear", ["c", "t", "z"], ["y"]),
    ]
    steps = TensorProto.UINT8
    return save(path, nodes, constants, (steps, ["n", 6, 7, 5]), (steps, ["n", 5, 7, 5]))


@pytest.mark.parametrize(
    ("zero", "dtype", "reach", "wide"),
    [
        pytest.param(0, np.int8, 255, False, id="signed weights"),
        pytest.param(128, np.uint8, 255, False, id="unsigned weights around the middle"),
        pytest.param(3, np.int8, 255, True, id="weights that need 9 bits without their zero point"),
        pytest.param(
            [3, -20, 90, 0, -128], np.int8, 127, False, id="signed weights with a zero point for each channel"
        ),
        pytest.param([0, 255, 128, 7, 99], np.uint8, 127, False, id="unsigned ones"),
    ],
)
def test_steps_as_input_and_output(tmp_path: Path, zero: int | list[int], dtype: Any, reach: int, wide: bool) -> None:
    path = steps_net(tmp_path / "net.onnx", zero, dtype, reach)
    graph = lowered(path)
    products = [layer.parameters_as(QuantisedProductParameters) for layer in graph.layers if layer.op == "conv2d_int8"]
    assert [layer.wide for layer in products] == [wide]
    x = np.random.default_rng(2).integers(0, 256, (3, 6, 7, 5), np.uint8)
    session = exact_session(str(path), ort.SessionOptions())
    found, wanted = run_graph(graph, {"x": x}, 3)[0], session.run(None, {"x": x})[0]
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert len(np.unique(wanted)) > 50


def test_scales_of_half_floats_are_those_of_floats(tmp_path: Path) -> None:
    """The same file in floats gives the right answers: halves are rounded to other steps here and there."""

    def nodes(kind: int) -> list[Any]:
        return [
            node("Cast", ["x"], ["half"], to=kind),
            node("QuantizeLinear", ["half", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("MatMul", ["d", "w"], ["m"]),
            node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
            node("MatMul", ["f", "v"], ["y"]),
        ]

    rng = np.random.default_rng(0)
    weight, last = rng.standard_normal((16, 8)).astype(np.float16), rng.standard_normal((8, 5)).astype(np.float32)
    constants = {"s": np.float16(0.02), "z": np.uint8(128), "w": weight, "v": last}
    wide = constants | {"s": np.float32(constants["s"]), "w": weight.astype(np.float32)}
    ports = ["n", 16], ["n", 5]
    halves = save(tmp_path / "halves.onnx", nodes(TensorProto.FLOAT16), constants, *ports, opset=21)
    floats = save(tmp_path / "floats.onnx", nodes(TensorProto.FLOAT), wide, *ports, opset=21)
    graph = lowered(halves)
    assert "onnxruntime" not in {layer.op for layer in graph.layers} and graph.layers[-1].op == "matmul"
    x = rng.standard_normal((3, 16)).astype(np.float32)
    assert greatest_error(floats, graph, {"x": x}, 3) < 1e-5


def branches() -> tuple[Sequence[onnx.NodeProto], list[Any]]:
    """Both operands of a sum are products; another reader wants floats."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
        node("DequantizeLinear", ["w", "s", "wz"], ["wf"]),
        node("MatMul", ["xf", "wf"], ["a"]),
        node("QuantizeLinear", ["a", "t", "z"], ["aq"]),
        node("DequantizeLinear", ["aq", "t", "z"], ["af"]),
        node("MatMul", ["xf", "wf"], ["b"]),
        node("QuantizeLinear", ["b", "t", "z"], ["bq"]),
        node("DequantizeLinear", ["bq", "t", "z"], ["bf"]),
        node("Add", ["af", "bf"], ["sum"]),
        node("QuantizeLinear", ["sum", "t", "z"], ["sq"]),
        node("DequantizeLinear", ["sq", "t", "z"], ["sf"]),
        node("Softmax", ["xf"], ["soft"]),
        node("Add", ["sf", "soft"], ["y"]),
    ]
    return nodes, ["n", 2, 8]


def twice() -> tuple[Sequence[onnx.NodeProto], list[Any]]:
    """A sum of a product with itself, and an activation that is no monotonic one."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
        node("DequantizeLinear", ["w", "s", "wz"], ["wf"]),
        node("MatMul", ["xf", "wf"], ["m"]),
        node("Tanh", ["m"], ["a"]),
        node("QuantizeLinear", ["a", "s", "z"], ["aq"]),
        node("DequantizeLinear", ["aq", "s", "z"], ["af"]),
        node("Add", ["af", "af"], ["sum"]),
        node("QuantizeLinear", ["sum", "t", "z"], ["sq"]),
        node("DequantizeLinear", ["sq", "t", "z"], ["y"]),
    ]
    return nodes, ["n", 2, 8]


@pytest.mark.parametrize("net", [branches, twice])
def test_sums_behind_products(tmp_path: Path, net: Callable[[], tuple[Sequence[onnx.NodeProto], list[Any]]]) -> None:
    nodes, shape = net()
    weight = np.random.default_rng(0).integers(-127, 128, (8, 8), np.int8)
    constants = {"s": np.float32(0.02), "t": np.float32(0.1), "z": np.uint8(128), "w": weight, "wz": np.int8(0)}
    path = save(tmp_path / "net.onnx", nodes, constants, shape, shape)
    graph = lowered(path)
    assert any(layer.op == "matmul_int8" for layer in graph.layers)
    x = np.random.default_rng(3).standard_normal((3, 2, 8)).astype(np.float32)
    assert greatest_error(path, graph, {"x": x}, 3) < 0.02
