"""Layers that ONNX Runtime runs: which nodes become one, their results in a model, and what happens to bad values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decision_stumps import stump
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.profiles.runtime import onnx_layers

Nodes = list[onnx.NodeProto]
node = helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def save(
    path: Path,
    nodes: Nodes,
    inputs: dict[str, tuple[int, list[Any]]],
    output: tuple[int, list[Any]],
    constants: dict[str, NDArray[Any]] | None = None,
) -> Path:
    """A model with the output `y`, whose shape the file states."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", *output)],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    versions = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 3}  # trees as they are here end with version 5
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def lstm() -> Nodes:
    return [node("LSTM", ["x3", "w", "r", "b", "", "", "", "p"], ["s"], hidden_size=4)]


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["r"], [f"{op}_out"])], op, [], [onnx.ValueInfoProto(name=f"{op}_out")])


def quantised() -> tuple[Nodes, dict[str, NDArray[Any]]]:
    constants = {
        "scale": np.float32(0.02),
        "zero": np.uint8(128),
        "q": np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2),
    }
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        node("ConvInteger", ["xq", "q", "zero", "zero"], ["yq"]),
        node("Cast", ["yq"], ["y"], to=FLOAT),
    ]
    return nodes, {name: np.asarray(value) for name, value in constants.items()}


STUMP: dict[str, Any] = {  # 1 where the third number is at most 0.5, else 2
    **stump(feature=2, value=0.5),
    "n_targets": 1,
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}
CASES: dict[str, tuple[Nodes, list[Any], list[Any], dict[str, NDArray[Any]]]] = {
    "an operator that TVM lacks, between others": (
        [node("Relu", ["x"], ["r"]), node("Det", ["r"], ["d"]), node("Mul", ["d", "two"], ["y"])],
        ["n", 3, 4, 4],
        ["n", 3],
        {"two": np.float32(2)},
    ),
    "shapes that depend on values": (
        [
            node("NonZero", ["x"], ["at"]),
            node("ReduceMax", ["at"], ["most"], keepdims=0),
            node("Cast", ["most"], ["scale"], to=FLOAT),
            node("Mul", ["x", "scale"], ["y"]),
        ],
        ["n", 6],
        ["n", 6],
        {},
    ),
    "a branch that values choose": (
        [
            node("Relu", ["x"], ["r"]),
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["positive"]),
            node("If", ["positive"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp")),
        ],
        ["n", 6],
        ["n", 6],
        {"zero": np.float32(0)},
    ),
    "an operator of ONNX Runtime's own": (
        [
            node(
                "MatMulNBits",
                ["x", "q", "s"],
                ["g"],
                domain="com.microsoft",
                K=16,
                N=6,
                bits=4,
                block_size=16,
                accuracy_level=4,
            ),
            node("Relu", ["g"], ["y"]),
        ],
        ["n", 16],
        ["n", 6],
        {"q": np.arange(48, dtype=np.uint8).reshape(6, 1, 8), "s": normal(6)},
    ),
    "the greatest of trees": (
        [
            node("TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", aggregate_function="MAX", **STUMP),
            node("Neg", ["t"], ["y"]),
        ],
        ["n", 6],
        ["n", 1],
        {},
    ),
    "a convolution whose sums are left as integers": (
        quantised()[0],
        ["n", 1, 4, 4],
        ["n", 1, 3, 3],
        quantised()[1],
    ),
    "a cell that our kernels refuse": (
        [
            node("Reshape", ["x", "to"], ["x3"]),
            *lstm(),
            node("Reshape", ["s", "back"], ["y"]),
        ],
        [5, 3],
        [5, 4],
        {
            "to": np.array([5, 1, 3]),
            "back": np.array([5, 4]),
            "w": normal(1, 16, 3),
            "r": normal(1, 16, 4),
            "b": normal(1, 32),
            "p": normal(1, 12),
        },
    ),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_onnx_runtime(tmp_path: Path, name: str, batch: int) -> None:
    nodes, takes, gives, constants = CASES[name]
    path = save(tmp_path / "net.onnx", nodes, {"x": (FLOAT, takes)}, (FLOAT, gives), constants)
    shape = [batch if dim == "n" else dim for dim in takes]
    feeds = {"x": np.random.default_rng(batch).standard_normal(shape).astype(np.float32)}
    outputs, _ = run(path, feeds, "fp32", batch)
    np.testing.assert_allclose(outputs[0], ort.InferenceSession(str(path)).run(None, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_what_falls_back_says_why_and_can_be_refused(tmp_path: Path, name: str) -> None:
    nodes, takes, gives, constants = CASES[name]
    path = save(tmp_path / "net.onnx", nodes, {"x": (FLOAT, takes)}, (FLOAT, gives), constants)
    fallen = [layer for layer in lower(load_model(path), "fp32").layers if layer.op == "onnxruntime"]
    assert len(fallen) == 1 and fallen[0].parameters.note.startswith("ONNX Runtime: ")
    with pytest.raises(ModelError):
        lower(load_model(path, fallback=False), "fp32", fallback=False)


def test_neighbours_of_such_a_node_stay_ours(tmp_path: Path) -> None:
    nodes, takes, gives, constants = CASES["an operator that TVM lacks, between others"]
    path = save(tmp_path / "net.onnx", nodes, {"x": (FLOAT, takes)}, (FLOAT, gives), constants)
    layers = lower(load_model(path), "fp32").layers
    assert [layer.op for layer in layers] == ["stitched", "onnxruntime", "stitched"]


def test_an_axis_that_is_an_input(tmp_path: Path) -> None:
    inputs = {"x": (FLOAT, [2, 3, 4]), "axes": (INT64, [1])}
    path = save(
        tmp_path / "net.onnx", [node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)], inputs, (FLOAT, [2, 1, 4])
    )
    feeds = {"x": normal(2, 3, 4), "axes": np.array([1])}
    outputs, _ = run(path, feeds, "fp32", 1)
    np.testing.assert_allclose(outputs[0], feeds["x"].sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(RuntimeError, match="shape"):  # a query whose values lead to another shape than is stated
        run(path, feeds | {"axes": np.array([0])}, "fp32", 1)
    with onnx_layers.on_drawn_inputs():  # as when it is timed, or warmed up
        run(path, feeds | {"axes": np.array([0])}, "fp32", 1)


def test_sessions_go_with_the_last_who_holds_them() -> None:
    content = helper.make_model(
        helper.make_graph(
            [node("Relu", ["x"], ["y"])],
            "net",
            [helper.make_tensor_value_info("x", FLOAT, [2])],
            [helper.make_tensor_value_info("y", FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    ).SerializeToString()
    framed = onnx_layers.frame_model(content)
    one, other = onnx_layers.hold_layer(framed), onnx_layers.hold_layer(framed.copy())
    assert one is other and framed[:32].tobytes() in onnx_layers._layers
    del one, other
    assert framed[:32].tobytes() not in onnx_layers._layers


def test_a_resize_by_sizes_keeps_the_batch(tmp_path: Path) -> None:
    """To a single pixel with aligned corners, which TVM refuses; 1 stood for the batch, and two samples failed."""
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "rest"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["r"], mode="linear", coordinate_transformation_mode="align_corners"),
        node("Add", ["x", "r"], ["y"]),
    ]
    shape = (FLOAT, ["n", 2, 7, 7])
    path = save(tmp_path / "net.onnx", nodes, {"x": shape}, shape, {"rest": np.array([2, 1, 1])})
    for batch in (1, 3):
        feeds = {"x": normal(batch, 2, 7, 7)}
        (found,), operators = run(path, feeds, "fp32", batch)
        assert "onnxruntime" in operators
        [expected] = ort.InferenceSession(str(path)).run(None, feeds)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
