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
