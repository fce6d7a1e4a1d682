"""Steps of 8 bits that are reshaped, transposed, cut or split between roundings stay steps and lie as they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from patterns.test_quantised import greatest_error, lowered
from patterns.test_steps import STEPS, check, silu, weight
from quantised_models import save

node = helper.make_node


def test_heads_of_attention_are_steps_in_another_order(tmp_path: Path) -> None:
    """The tool rounds what is reshaped or transposed to the steps that it came from."""
    nodes = []
    for name in ("query", "key", "value"):
        order = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", ["x", f"{name}/w"], [f"{name}/all"]),
            node("Reshape", [f"{name}/all", "apart"], [f"{name}/split"]),
            node("Transpose", [f"{name}/split"], [f"{name}/heads"], perm=order),
        ]
    nodes += [
        node("MatMul", ["query/heads", "key/heads"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "value/heads"], ["context"]),
        node("Transpose", ["context"], ["tokens"], perm=[0, 2, 1, 3]),
        node("Reshape", ["tokens", "together"], ["joined"]),
        node("MatMul", ["joined", "w"], ["a"]),
        node("Reshape", ["a", "pairs"], ["p"]),
        *silu("p", "s"),
        node("Reshape", ["s", "together"], ["back"]),
        node("MatMul", ["back", "w"], ["y"]),
    ]
    shapes = {"apart": [0, 20, 2, 16], "together": [0, 20, 32], "pairs": [0, 10, 64]}
    weights = {f"{name}/w": weight(32, 32) for name in ("query", "key", "value")} | {"w": weight(32, 32)}
    constants = weights | {name: np.array(shape) for name, shape in shapes.items()}
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 20, 32], ["n", 20, 32])
    floats = {"batched_matmul", "stitched"}  # the scores and their softmax
    operations = check(
        path, "qdq", (20, 32), {"quantise", "matmul_int8", "transpose", "table_int8", "dequantise"} | floats
    )
    assert [operations.count(op) for op in ("matmul_int8", "transpose", "table_int8", "quantise")] == [5, 4, 1, 2]


def between_maps_and_tokens(rank: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """A convolution, a product of its pixels, a convolution: the tokens have one axis of pixels, or two."""
    forth, back = ([0, 2, 1], [0, 2, 1]) if rank == 3 else ([0, 2, 3, 1], [0, 3, 1, 2])
    nodes = [node("Conv", ["x", "w0"], ["c"], pads=[1] * 4)]
    nodes += [node("Reshape", ["c", "flat"], ["f"])] if rank == 3 else []
    nodes += [
        node("Transpose", ["f" if rank == 3 else "c"], ["t"], perm=forth),
        node("MatMul", ["t", "w1"], ["m"]),
        node("Add", ["t", "m"], ["a"]),
        node("Transpose", ["a"], ["u"], perm=back),
    ]
    nodes += [node("Reshape", ["u", "square"], ["v"])] if rank == 3 else []
    nodes += [node("Conv", ["v" if rank == 3 else "u", "w2"], ["y"], pads=[1] * 4)]
    weights = {"w0": weight(20, 3, 3, 3), "w1": weight(20, 20), "w2": weight(24, 20, 3, 3)}
    shapes = {"flat": np.array([0, 20, 48]), "square": np.array([0, 20, 6, 8])}
    return nodes, weights | (shapes if rank == 3 else {})


@pytest.mark.parametrize("rank", [3, 4])
def test_tokens_of_steps_lie_as_feature_maps_do(tmp_path: Path, rank: int) -> None:
    """Channels of steps are last in memory: between the two nothing moves."""
    nodes, constants = between_maps_and_tokens(rank)
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 3, 6, 8], ["n", 24, 6, 8])
    expected = {"quantise", "conv2d_int8", "matmul_int8", "dequantise"}
    assert check(path, "qdq", (3, 6, 8), expected).count("conv2d_int8") == 2


@pytest.mark.parametrize("operator", ["Split", "Slice"])
def test_parts_of_steps_are_steps(tmp_path: Path, operator: str) -> None:
    """Query, key and value out of one product."""
    parts = ["p0", "p1", "p2"]
    nodes = [node("MatMul", ["x", "w0"], ["a"])]
    if operator == "Split":
        nodes += [node("Split", ["a"], parts, axis=2)]
    else:
        nodes += [node("Slice", ["a", f"s{i}", f"s{i + 1}", "axis"], [part]) for i, part in enumerate(parts)]
    nodes += [node("MatMul", [part, "w1"], [f"{part}/m"]) for part in parts]
    nodes += [node("Add", ["p0/m", "p1/m"], ["b"]), node("Add", ["b", "p2/m"], ["y"])]
    bounds = {f"s{i}": np.array([32 * i]) for i in range(4)} | {"axis": np.array([2])}
    constants = {"w0": weight(24, 96), "w1": weight(32, 32)} | (bounds if operator == "Slice" else {})
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 7, 24], ["n", 7, 32])
    operations = check(path, "qdq", (7, 24), {"quantise", "matmul_int8", "generic", "dequantise"})
    assert [operations.count(op) for op in ("quantise", "matmul_int8", "dequantise")] == [1, 4, 1]


def test_a_function_looks_through_any_number_of_moves(tmp_path: Path) -> None:
    """For a neighbour that computes on integers, which there is none of."""
    flips = {"start": np.array([-1]), "end": np.array([-9]), "axis": np.array([1]), "back": np.array([-1])}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("Sin", ["f"], ["g"]),
        node("QuantizeLinear", ["g", "s", "z"], ["v0"]),
        *(node("Slice", [f"v{i}", *flips], [f"v{i + 1}"]) for i in range(1201)),
        node("DequantizeLinear", ["v1201", "s", "z"], ["y"]),
    ]
    path = save(tmp_path / "net.onnx", nodes, STEPS | flips, ["n", 4], ["n", 4])
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    assert greatest_error(path, lowered(path), {"x": x}, 2) < 0.02  # a step
