"""What lies between roundings of quantised files stays 8-bit integers: tables, pairs, concatenations and moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from patterns.test_quantised import greatest_error, lowered
from quantised_models import quantise, save

node = helper.make_node


def weight(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.2).astype(np.float32)


def silu(name: str, result: str) -> list[onnx.NodeProto]:
    return [node("Sigmoid", [name], [f"{name}/gate"]), node("Mul", [name, f"{name}/gate"], [result])]


def check(path: Path, form: str, feed: Sequence[int], expected: set[str], *, limit: float = 0.03) -> list[str]:
    """Compiles the quantised file, whose layers have these operations alone, and compares it at two batches."""
    quantised = quantise(path, form)
    graph = lowered(quantised)
    operations = [layer.op for layer in graph.layers]
    assert set(operations) == expected
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, *feed)).astype(np.float32)
        assert greatest_error(quantised, graph, {"x": x}, batch) < limit
    return operations


@pytest.mark.parametrize("form", ["qdq", "signed", "qlinear"])
def test_activations_of_their_own_are_tables(tmp_path: Path, form: str) -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        *silu("c0", "s0"),
        node("Conv", ["s0", "w1"], ["c1"]),
        *silu("c1", "s1"),
        node("Conv", ["s1", "w2"], ["y"]),
    ]
    weights = {"w0": weight(20, 3, 3, 3), "w1": weight(24, 20, 1, 1), "w2": weight(9, 24, 1, 1)}
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 9, 8], ["n", 9, 9, 8])
    operations = check(path, form, (3, 9, 8), {"quantise", "conv2d_int8", "table_int8", "dequantise"})
    assert operations.count("table_int8") == 2


def test_concatenations_and_enlarged_maps_are_moved_as_steps(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4, strides=[2, 2]),
        *silu("c0", "s0"),
        node("Conv", ["s0", "w1"], ["c1"]),
        node("Resize", ["s0", "", "twice"], ["u"], mode="nearest", coordinate_transformation_mode="asymmetric"),
        node("Resize", ["c1", "", "twice"], ["v"], mode="nearest", coordinate_transformation_mode="asymmetric"),
        node("Concat", ["u", "x", "v"], ["k"], axis=1),
        node("Conv", ["k", "w2"], ["y"], pads=[1] * 4),
    ]
    weights = {
        "w0": weight(20, 3, 3, 3),
        "w1": weight(17, 20, 1, 1),
        "w2": weight(8, 40, 3, 3),
        "twice": np.array([1, 1, 2, 2], np.float32),
    }
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 8, 10], ["n", 8, 8, 10])
    expected = {"quantise", "conv2d_int8", "table_int8", "pick_pixels", "concat_int8", "dequantise"}
    operations = check(path, "qdq", (3, 8, 10), expected)
    assert (operations.count("pick_pixels"), operations.count("concat_int8")) == (2, 1)


@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_two_tensors_of_steps(tmp_path: Path, operator: str) -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        *silu("c0", "s0"),
        node("Conv", ["s0", "w1"], ["c1"]),
        *silu("c1", "s1"),
        node(operator, ["s0", "s1"], ["t"]),
        node("Relu", ["t"], ["r"]),
        node("Conv", ["r", "w2"], ["y"]),
    ]
    weights = {"w0": weight(20, 3, 3, 3), "w1": weight(20, 20, 1, 1), "w2": weight(9, 20, 1, 1)}
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 5, 6], ["n", 9, 5, 6])
    check(path, "qdq", (3, 5, 6), {"quantise", "conv2d_int8", "table_int8", "pair_int8", "dequantise"})


@pytest.mark.parametrize("mean", ["GlobalAveragePool", "ReduceMean"])
def test_gates_of_channels(tmp_path: Path, mean: str) -> None:
    """Squeeze and excitation."""
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        node("Relu", ["c0"], ["r0"]),
        node(mean, ["r0"], ["g"], **({"axes": [2, 3]} if mean == "ReduceMean" else {})),
        node("Conv", ["g", "w1"], ["c1"]),
        node("Sigmoid", ["c1"], ["s"]),
        node("Mul", ["s", "r0"], ["m"]),
        node("Conv", ["m", "w2"], ["y"]),
    ]
    weights = {"w0": weight(20, 3, 3, 3), "w1": weight(20, 20, 1, 1), "w2": weight(9, 20, 1, 1)}
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 5, 6], ["n", 9, 5, 6])
    operations = check(path, "qdq", (3, 5, 6), {"quantise", "conv2d_int8", "mean_int8", "pair_int8", "dequantise"})
    assert operations.count("pair_int8") == 1


def test_gelu_between_products_of_text_is_a_table(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w0"], ["a"]),
        node("Div", ["a", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["a", "p"], ["q"]),
        node("Mul", ["q", "half"], ["h"]),
        node("MatMul", ["h", "w1"], ["y"]),
    ]
    numbers = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    weights = {"w0": weight(24, 40), "w1": weight(40, 10), **numbers}
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 7, 24], ["n", 7, 10])
    operations = check(path, "qdq", (7, 24), {"quantise", "matmul_int8", "table_int8", "dequantise"})
    assert operations.count("table_int8") == 1


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_a_pixel_shuffle_moves_steps(tmp_path: Path, mode: str) -> None:
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        node("DepthToSpace", ["c0"], ["d"], blocksize=2, mode=mode),
        node("Conv", ["d", "w1"], ["y"]),
    ]
    weights = {"w0": weight(48, 3, 3, 3), "b0": weight(48), "w1": weight(9, 12, 1, 1)}
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 5, 6], ["n", 9, 10, 12])
    check(path, "qdq", (3, 5, 6), {"quantise", "conv2d_int8", "depth_to_space", "dequantise"})


@pytest.mark.parametrize("form", ["qdq", "signed", "unsigned"])
def test_a_transposed_convolution_multiplies_steps(tmp_path: Path, form: str) -> None:
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        node("ConvTranspose", ["c0", "w1", "b1"], ["t"], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
        node("Relu", ["t"], ["r"]),
        node("Conv", ["r", "w2"], ["y"]),
    ]
    weights = {
        "w0": weight(20, 3, 3, 3),
        "b0": weight(20),
        "w1": weight(20, 17, 3, 3),
        "b1": weight(17),
        "w2": weight(9, 17, 1, 1),
    }
    path = save(tmp_path / "net.onnx", nodes, weights, ["n", 3, 5, 6], ["n", 9, 10, 12])
    quantised = quantise(path, form)
    graph = lowered(quantised)
    operations = [layer.op for layer in graph.layers]
    if form != "unsigned":  # their steps need 9 bits without the zero points: floats
        assert operations == ["quantise", "conv2d_int8", "conv2d_int8", "depth_to_space", "conv2d_int8", "dequantise"]
    x = np.random.default_rng(0).standard_normal((3, 3, 5, 6)).astype(np.float32)
    assert greatest_error(quantised, graph, {"x": x}, 3) < 0.03


def test_a_function_between_floats_stays_in_their_kernel(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["m"]), node("Softmax", ["m"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, {}, ["n", 40], ["n", 40])
    graph = lowered(quantise(path, "qdq"))
    assert "table_int8" not in [layer.op for layer in graph.layers]


def rounded_chain(nodes: Sequence[onnx.NodeProto], name: str) -> list[onnx.NodeProto]:
    """The nodes between an input of steps x and an output of steps y; `name` is what they give."""
    return [
        node("DequantizeLinear", ["x", "s", "z"], ["x/f"]),
        *nodes,
        node("QuantizeLinear", [name, "s", "z"], ["y"]),
    ]


STEPS = {"s": np.float32(0.02), "z": np.uint8(128)}


def chain_agrees(path: Path, nodes: Sequence[onnx.NodeProto], shape: list[Any], gives: list[Any], weights: Any) -> None:
    save(path, nodes, STEPS | weights, (onnx.TensorProto.UINT8, shape), (onnx.TensorProto.UINT8, gives))
    x = np.random.default_rng(0).integers(0, 256, [2, *shape[1:]], np.uint8)
    assert greatest_error(path, lowered(path), {"x": x}, 2) == 0


def test_a_function_that_reads_each_value_twice_is_found_at_once(tmp_path: Path) -> None:
    """Forty doublings: 2**40 ways back to the input."""
    doubled = [node("Mul", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(40)]
    nodes = rounded_chain([node("Tanh", ["x/f"], ["v0"]), *doubled], "v40")
    chain_agrees(tmp_path / "net.onnx", nodes, ["n", 17], ["n", 17], {})


def test_a_long_chain_of_functions_is_several_tables(tmp_path: Path) -> None:
    nodes: list[onnx.NodeProto] = []
    for i in range(60):
        source = "x" if i == 0 else f"q{i}"
        result = "y" if i == 59 else f"q{i + 1}"
        nodes += [
            node("DequantizeLinear", [source, "s", "z"], [f"f{i}"]),
            node("Sin", [f"f{i}"], [f"t{i}"]),
            node("QuantizeLinear", [f"t{i}", "s", "z"], [result]),
        ]
    chain_agrees(tmp_path / "net.onnx", nodes, ["n", 17], ["n", 17], {})


def test_a_rounding_moves_in_front_of_any_number_of_moves(tmp_path: Path) -> None:
    flips = {"start": np.array([-1]), "end": np.array([-9]), "axis": np.array([3]), "back": np.array([-1])}
    slices = [node("Slice", [f"v{i}", *flips], [f"v{i + 1}"]) for i in range(1201)]
    nodes = rounded_chain([node("Concat", ["x/f", "x/f"], ["v0"], axis=1), *slices], "v1201")
    chain_agrees(tmp_path / "net.onnx", nodes, ["n", 3, 2, 4], ["n", 6, 2, 4], flips)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pixels_of_floats_are_picked_in_their_blocks(tmp_path: Path, precision: str) -> None:
    """Enlarged, thinned out and turned round; channels that are turned round are no such pixels."""
    constants = {
        "w0": weight(40, 3, 3, 3),
        "w1": weight(24, 40, 1, 1),
        "scales": np.array([1, 1, 2, 3], np.float32),
        "start": np.array([1, -1]),
        "end": np.array([100, -100]),
        "rows": np.array([2, 3]),
        "steps": np.array([2, -1]),
        "last": np.array([-1]),
        "first": np.array([-100]),
        "channels": np.array([1]),
        "back": np.array([-1]),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1] * 4),
        node("Resize", ["c", "", "scales"], ["u"], mode="nearest", nearest_mode="floor"),
        node("Slice", ["u", "start", "end", "rows", "steps"], ["v"]),
        node("Slice", ["v", "last", "first", "channels", "back"], ["r"]),
        node("Conv", ["r", "w1"], ["y"]),
    ]
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 3, 5, 4], ["n", 24, 5, 12])
    graph = lowered(path, precision)
    assert [layer.op for layer in graph.layers].count("pick_pixels") == 2
    x = np.random.default_rng(0).standard_normal((3, 3, 5, 4)).astype(np.float32)
    assert greatest_error(path, graph, {"x": x}, 3) < (1e-5 if precision == "fp32" else 0.02)
