"""Sequences whose content constants tell become tensors; others stay with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_kernels import run_graph, within_room

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
CONSTANTS = {
    "begins": np.array([0, 1, 3]),
    "ends": np.array([1, 3, 5]),
    "none": np.int64(0),
    "first": np.array([0]),
    "along": np.array([1]),
    "last": np.int64(-1),
    "second": np.int64(1),
    "three": np.int64(3),
    "yes": np.array(True),
}
PART = [
    node("Gather", ["begins", "i"], ["b"]),
    node("Unsqueeze", ["b", "first"], ["from"]),
    node("Gather", ["ends", "i"], ["e"]),
    node("Unsqueeze", ["e", "first"], ["to"]),
    node("Slice", ["x", "from", "to", "along"], ["part"]),
    node("Identity", ["c"], ["go"]),
]
VECTOR = [
    node("Gather", ["begins", "i"], ["from"]),
    node("Gather", ["ends", "i"], ["to"]),
    *PART[-2:],
]


def split(trips: str, places: tuple[str, ...] = (), vector: bool = False) -> onnx.NodeProto:
    """A loop that cuts x along its second axis, as PyTorch's exporter writes `tensor_split`.

    vector: whether the number of the trip is a vector of one, as ONNX Runtime gives it to a body that says so.
    """
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    given = [value("i", INT64, [1] if vector else []), value("c", BOOL, []), helper.make_value_info("s", sequence)]
    insert = node("SequenceInsert", ["s", "part", *places], ["t"])
    made = [value("go", BOOL, []), helper.make_value_info("t", sequence)]
    part = PART if not vector else VECTOR
    body = helper.make_graph([*part, insert], "body", given, made)
    return node("Loop", [trips, "yes", "none_yet"], ["parts"], "split", body=body)


EMPTY = node("SequenceEmpty", [], ["none_yet"])
TWO = [node("SequenceAt", ["parts", "last"], ["a"]), node("SequenceAt", ["parts", "none"], ["b0"])]
JOINED = [node("Tanh", ["a"], ["ta"]), node("Concat", ["ta", "b0", "x"], ["y"], axis=1)]
NUMBER = [
    node("SequenceLength", ["parts"], ["n"]),
    node("Cast", ["n"], ["f"], to=FLOAT),
    node("Add", ["x", "f"], ["y"]),
]
KNOWN = {
    "tensor_split": [EMPTY, split("three"), *TWO, *JOINED],
    "numbers of trips are vectors": [EMPTY, split("three", vector=True), *TWO, *JOINED],
    "each in front of the others": [EMPTY, split("three", places=("none",)), *TWO, *JOINED],
    "two loops": [
        EMPTY,
        split("three"),
        node("Identity", ["parts"], ["same"]),
        node("SequenceInsert", ["same", "x", "second"], ["more"]),
        node("SequenceAt", ["more", "second"], ["whole"]),
        node("Neg", ["whole"], ["y"]),
    ],
    "its length": [EMPTY, split("three"), *NUMBER],
    "a list": [
        node("Exp", ["x"], ["e0"]),
        node("SequenceConstruct", ["x", "e0"], ["parts"]),
        node("SequenceAt", ["parts", "second"], ["y"]),
    ],
}
OPEN = {
    "trips that values decide": [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Equal", ["most", "most"], ["same"]),
        node("Cast", ["same"], ["one"], to=INT64),
        node("Add", ["one", "second"], ["trips"]),
        EMPTY,
        split("trips"),
        *TWO,
        *JOINED,
    ],
    "something else reads it": [
        EMPTY,
        split("three"),
        node("ConcatFromSequence", ["parts"], ["all"], axis=1),
        node("Neg", ["all"], ["y"]),
    ],
}


def saved(nodes: list[onnx.NodeProto], path: Path) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", FLOAT, ["batch", 5, 4])],
        [value("y", FLOAT, ["batch", None, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("case", KNOWN | OPEN)
def test_a_sequence_agrees(case: str, tmp_path: Path) -> None:
    path = saved((KNOWN | OPEN)[case], tmp_path / "net.onnx")
    graph = lower(load_model(path, 4), "fp32")
    assert any(layer.op == "onnxruntime" for layer in graph.layers) == (case in OPEN)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 5, 4)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        found, *_ = run_graph(graph, {"x": x}, batch)  # and its extents, where values decide them
        np.testing.assert_allclose(within_room(found, wanted.shape), wanted, rtol=1e-5, atol=1e-6)


def test_a_place_beyond_a_sequence_is_not_guessed(tmp_path: Path) -> None:
    nodes = [node("SequenceConstruct", ["x"], ["parts"]), node("SequenceAt", ["parts", "three"], ["y"])]
    graph = lower(load_model(saved(nodes, tmp_path / "net.onnx"), 4), "fp32")
    assert [layer.op for layer in graph.layers] == ["onnxruntime"]
