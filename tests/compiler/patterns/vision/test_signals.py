"""One-dimensional convolutions run in the kernels of images, in floats and in 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from quantised_models import quantise, save
from run_kernels import run_graph

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.references.quantised_reference import without_jumps

node = helper.make_node
rng = np.random.default_rng(0)


def weight(*shape: int) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def agrees(path: Path, x: NDArray[np.float32], tolerance: float, precision: str = "fp32") -> LayerGraph:
    graph = lower(load_model(path, 4), precision)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for found, right in zip(run_graph(graph, {"x": x}, len(x)), wanted, strict=True):
        assert found.shape == right.shape
        assert np.abs(without_jumps(found, right) - right).max() <= tolerance * np.abs(right).max()
    return graph


def signal_net(path: Path) -> Path:
    """Strided, depthwise, pointwise, dilated and grouped convolutions, a sum, both kinds of pools, a dense layer."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2], pads=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b0"], ["c1"], pads=[1, 1], group=16),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b0"], ["c2"]),
        node("Add", ["c2", "r1"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"], pads=[0, 4], dilations=[2], group=2),
        node("MaxPool", ["c3"], ["p"], kernel_shape=[2], strides=[2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    shapes = {"w0": (16, 3, 5), "b0": (16,), "w1": (16, 1, 3), "w2": (16, 16, 1), "w3": (32, 8, 3), "w4": (5, 32)}
    weights = {name: weight(*shape) for name, shape in shapes.items()} | {"b4": weight(5)}
    return save(path, nodes, weights, ["n", 3, 32], ["n", 5])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_of_signals(tmp_path: Path, batch: int) -> None:
    x = rng.standard_normal((batch, 3, 32)).astype(np.float32)
    graph = agrees(signal_net(tmp_path / "net.onnx"), x, 1e-5)
    assert {layer.op for layer in graph.layers} == {
        *("to_blocked", "conv2d", "depthwise_conv2d", "pool2d", "global_average_pool", "matmul")
    }


def test_a_file_may_have_names_that_the_rewriting_takes(tmp_path: Path) -> None:
    path = signal_net(tmp_path / "net.onnx")
    model, own = onnx.load(path), {"f": "x/row", "w4": "signals/axis_2", "b4": "signals/axis_2+"}
    for each in model.graph.initializer:
        each.name = own.get(each.name, each.name)
    for each in model.graph.node:
        for names in (each.input, each.output):
            names[:] = [own.get(name, name) for name in names]
    onnx.save(model, path)
    agrees(path, rng.standard_normal((2, 3, 32)).astype(np.float32), 1e-5)


def test_in_bfloat16(tmp_path: Path) -> None:
    x = rng.standard_normal((2, 3, 32)).astype(np.float32)
    agrees(signal_net(tmp_path / "net.onnx"), x, 5e-2, "bf16")


@pytest.mark.parametrize("form", ["qdq", "symmetric", "qlinear", "dynamic"])
def test_quantised_signals_are_products_of_integers(tmp_path: Path, form: str) -> None:
    path = quantise(signal_net(tmp_path / "net.onnx"), form)
    x = rng.standard_normal((2, 3, 32)).astype(np.float32)
    ops = [layer.op for layer in agrees(path, x, 1.5e-2).layers]
    assert ops.count("conv2d_int8") == 3 and ops.count("depthwise_int8") >= 1 and "conv2d" not in ops
    assert "generic" not in ops


def between(nodes: Sequence[onnx.NodeProto], out: Sequence[int]) -> tuple[list[onnx.NodeProto], Sequence[int]]:
    """Nodes from c to d between two convolutions, and the shape of the second one's output."""
    first = node("Conv", ["x", "w0", "b0"], ["c"], auto_pad="SAME_UPPER")
    return [first, *nodes, node("Conv", ["d", "w1"], ["y"], kernel_shape=[1])], out


CASES = {
    "a constant of each channel": between([node("Add", ["c", "column"], ["d"])], [4, 20]),
    "a constant of each step": between([node("Mul", ["row", "c"], ["d"])], [4, 20]),
    "a constant of each element": between([node("Sub", ["c", "all"], ["d"])], [4, 20]),
    "one of three dimensions": between([node("Max", ["c", "cube"], ["d"])], [4, 20]),
    "a single number": between([node("Div", ["c", "two"], ["d"])], [4, 20]),
    "slopes": between([node("PRelu", ["c", "column"], ["d"])], [4, 20]),
    "bounds": between([node("Clip", ["c", "zero", "two"], ["d"])], [4, 20]),
    "what other nodes make": between([node("Softmax", ["c"], ["s"], axis=1), node("Add", ["c", "s"], ["d"])], [4, 20]),
    "a mean over steps": between(
        [node("GlobalAveragePool", ["c"], ["g"]), node("Sigmoid", ["g"], ["s"]), node("Mul", ["c", "s"], ["d"])],
        [4, 20],
    ),
    "pools and what joins them": between(
        [
            node("AveragePool", ["c"], ["a"], kernel_shape=[3], strides=[2], pads=[1, 1], count_include_pad=1),
            node("MaxPool", ["c"], ["m"], kernel_shape=[3], strides=[2], pads=[1, 1]),
            node("Concat", ["a", "m"], ["d"], axis=-1),
        ],
        [4, 20],
    ),
    "a transposition and back": between(
        [
            node("Transpose", ["c"], ["t"], perm=[0, 2, 1]),
            node("Tanh", ["t"], ["u"]),
            node("Transpose", ["u"], ["d"], perm=[0, 2, 1]),
        ],
        [4, 20],
    ),
    "padding": between([node("Pad", ["c", "pads"], ["d"], mode="reflect")], [4, 23]),
    "a length that is doubled": between([node("Resize", ["c", "", "scales"], ["d"], mode="nearest")], [4, 40]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_stands_between_two_convolutions(tmp_path: Path, case: str) -> None:
    nodes, out = CASES[case]
    weights: dict[str, Any] = {
        "w0": weight(8, 4, 3),
        "b0": weight(8),
        "w1": weight(4, 8, 1),
        "column": weight(8, 1),
        "row": weight(20),
        "all": weight(8, 20),
        "cube": weight(1, 8, 1),
        "two": np.float32(2),
        "zero": np.float32(0),
        "pads": np.array([0, 0, 3, 0, 0, 0]),
        "scales": np.array([1, 1, 2], np.float32),
    }
    used = {name for one in nodes for name in one.input}
    model = save(
        tmp_path / "net.onnx", nodes, {n: w for n, w in weights.items() if n in used}, ["n", 4, 20], ["n", *out]
    )
    ops = [layer.op for layer in agrees(model, rng.standard_normal((2, 4, 20)).astype(np.float32), 1e-5).layers]
    assert ops.count("conv2d") == 2


def test_outputs_and_other_readers_get_signals(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1, 1]),
        node("Relu", ["c"], ["r"]),
        node("ReduceMax", ["r"], ["y"], axes=[2], keepdims=0),
    ]
    path = save(tmp_path / "net.onnx", nodes, {"w0": weight(8, 4, 3)}, ["n", 4, 20], ["n", 8])
    proto = onnx.load(path)
    for name in ("c", "r"):
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8, 20]))
    onnx.save(proto, path)
    agrees(path, rng.standard_normal((3, 4, 20)).astype(np.float32), 1e-5)


def normalised(groups: int) -> list[onnx.NodeProto]:
    """Two convolutions with a normalisation of groups of channels between them, as PyTorch's exporter writes it."""
    instance = node("InstanceNormalization", ["rows", "ones", "zeros"], ["normal"])
    regrouped = [node("Reshape", ["c0", "groups"], ["rows"]), instance, node("Reshape", ["normal", "shape"], ["back"])]
    direct = [node("InstanceNormalization", ["c0", "scale", "shift"], ["s"])]
    scaled = [node("Mul", ["back", "factor"], ["f"]), node("Add", ["f", "summand"], ["s"])]
    return [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1]),
        *([*regrouped, *scaled] if groups < 32 else direct),
        node("Relu", ["s"], ["r"]),
        node("Conv", ["r", "w1"], ["y"], pads=[1, 1]),
    ]


@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_normalisation_of_groups_stays_between_convolutions(tmp_path: Path, groups: int, precision: str) -> None:
    constants = {
        "w0": weight(32, 3, 3),
        "w1": weight(16, 32, 3),
        "scale": weight(32),
        "shift": weight(32),
        "factor": weight(32, 1),
        "summand": weight(32, 1),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
        "groups": np.array([0, groups, -1]),
        "shape": np.array([0, 32, 40]),
    }
    nodes = normalised(groups)
    read = {name for each in nodes for name in each.input}
    used = {name: value for name, value in constants.items() if name in read}
    path = save(tmp_path / "net.onnx", nodes, used, ["n", 3, 40], ["n", 16, 40])
    x = rng.standard_normal((2, 3, 40)).astype(np.float32)
    graph = agrees(path, x, 1e-4 if precision == "fp32" else 5e-2, precision)
    product = "conv2d" if precision == "fp32" else "conv2d_bf16"
    assert [layer.op for layer in graph.layers] == ["to_blocked", product, "group_norm", product, "to_plain"]


def test_a_layer_normalisation_of_the_steps(tmp_path: Path) -> None:
    """It has no axis among its attributes: the last one."""
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1]),
        node("LayerNormalization", ["c0", "ones", "zeros"], ["s"]),
        node("Conv", ["s", "w1"], ["y"], pads=[1, 1]),
    ]
    constants = {"w0": weight(32, 3, 3), "w1": weight(16, 32, 3), "ones": np.ones(40, np.float32)}
    constants["zeros"] = np.zeros(40, np.float32)
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 3, 40], ["n", 16, 40])
    graph = agrees(path, rng.standard_normal((2, 3, 40)).astype(np.float32), 1e-4)
    assert [layer.op for layer in graph.layers] == ["to_blocked", "conv2d", "group_norm", "conv2d", "to_plain"]
