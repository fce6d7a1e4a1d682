"""Outputs whose extents values decide: what kernels write for them, at every batch, and how clients see them."""

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
from run_kernels import within_room

from veltair.compiler.onnx.folding.sized_outputs import MOST_ROOM, checked_room
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ConfigError, ModelError

node = helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Batch = int | str | None
random = np.random.default_rng(7)


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])


# By name: nodes from x (batch, 6) to y, and the type and the dimensions of y that the file states.
CASES: dict[str, tuple[list[onnx.NodeProto], int, list[Any]]] = {
    "coordinates": ([node("NonZero", ["r"], ["n"]), node("Transpose", ["n"], ["y"])], INT64, ["found", 2]),
    "no dimension stated": ([node("NonZero", ["r"], ["y"])], INT64, [None, None]),
    "rows that are kept": (
        [
            node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
            node("Greater", ["m", "one"], ["k"]),
            node("Compress", ["x", "k"], ["y"], axis=0),
        ],
        FLOAT,
        ["kept", 6],
    ),
    "a mask": (
        [node("NonZero", ["r"], ["n"]), node("Cast", ["n"], ["y"], to=BOOL)],
        BOOL,
        [2, "found"],
    ),
    "distinct values": ([node("Floor", ["x"], ["f"]), node("Unique", ["f"], ["y"])], FLOAT, ["distinct"]),
    "branches of two shapes": (
        [
            node("ReduceSum", ["x", "axes"], ["t"], keepdims=0),
            node("Greater", ["t", "zero"], ["g"]),
            node(
                "If",
                ["g"],
                ["y"],
                then_branch=branch(node("Relu", ["x"], ["a"])),
                else_branch=branch(node("Concat", ["x", "x"], ["b"], axis=1)),
            ),
        ],
        FLOAT,
        ["n", "width"],
    ),
    "nothing": ([node("Sub", ["r", "r"], ["z"]), node("NonZero", ["z"], ["y"])], INT64, [2, "found"]),
}
CONSTANTS = {"zero": np.float32(0), "one": np.float32(1), "axes": np.array([0, 1])}


def save(path: Path, name: str, batch: Batch) -> Path:
    nodes, kind, dims = CASES[name]
    graph = helper.make_graph(
        [node("Relu", ["x"], ["r"]), *nodes],
        "net",
        [helper.make_tensor_value_info("x", FLOAT, [batch, 6])],
        [helper.make_tensor_value_info("y", kind, dims), helper.make_tensor_value_info("r", FLOAT, [batch, 6])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("name", "batch"), [*((name, "n") for name in CASES), *(("coordinates", batch) for batch in (3, "rows", None))]
)
def test_values_and_extents(tmp_path: Path, name: str, batch: Batch) -> None:
    path = save(tmp_path / "net.onnx", name, batch)
    model = load_model(path, 4)
    port = model.sized["y"]
    assert [spec.name for spec in model.outputs] == ["y/values", "y/extents", "r"]
    assert not model.mergeable
    session = ort.InferenceSession(str(path))
    for size in (1, 3) if model.max_batch > 1 else (1,):
        for _ in range(3):
            x = random.standard_normal((3 if batch == 3 else size, 6), dtype=np.float32)
            (values, extents, _), layers = run(path, {"x": x}, "fp32", size)
            expected: NDArray[Any] = session.run(["y"], {"x": x})[0]
            assert layers.count("onnxruntime") == 1
            assert values.shape == (size, port.room)
            assert tuple(extents) == expected.shape
            assert all(dim <= 0 or dim == extent for dim, extent in zip(port.shape, expected.shape, strict=True))
            np.testing.assert_array_equal(within_room(values, expected.shape), expected)
            assert not values.reshape(-1)[expected.size :].any()


def test_room_is_bounded(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", "coordinates", "n")
    model = load_model(path, 4, output_room=5)
    assert model.sized["y"].room == 5
    assert [spec.shape for spec in model.outputs] == [(-1, 5), (2,), (-1, 6)]
    for room in (0, -1, MOST_ROOM + 1):
        with pytest.raises(ConfigError, match=rf"--output-room: expected 1 to .*, found {room}"):
            checked_room(room, "--output-room")


def test_the_batch_in_front_of_what_varies(tmp_path: Path) -> None:
    model = load_model(save(tmp_path / "net.onnx", "branches of two shapes", "n"), 4)
    assert model.sized["y"].shape == (-1, 0)


# By name: the node from x (batch, 6) to y, and y's dimensions as the file states them.
ELSEWHERE: dict[str, tuple[onnx.NodeProto, list[Any]]] = {
    "twice": (node("Gemm", ["x", "x"], ["y"], transB=1), ["n", "n"]),  # each sample by each, as CLIP has it
    "behind another dimension": (node("Transpose", ["x"], ["y"]), [6, "n"]),
    "not in proportion": (node("Concat", ["x", "w"], ["y"], axis=0), ["rows", 6]),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_batch_in_another_dimension(tmp_path: Path, name: str) -> None:
    made, dims = ELSEWHERE[name]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["n", 6])]
    graph = helper.make_graph([made], "net", inputs, [helper.make_tensor_value_info("y", FLOAT, dims)])
    graph.initializer.append(numpy_helper.from_array(np.ones((2, 6), np.float32), "w"))
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load_model(path, 4)
    assert not model.mergeable  # another query's samples would be in each answer
    session = ort.InferenceSession(str(path))
    for size in (1, 3):
        x = random.standard_normal((size, 6), dtype=np.float32)
        (values, extents), _ = run(path, {"x": x}, "fp32", size)
        expected: NDArray[Any] = session.run(["y"], {"x": x})[0]
        assert tuple(extents) == expected.shape
        np.testing.assert_allclose(within_room(values, expected.shape), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match=r"in its first dimension alone|not in proportion"):
        load_model(path, 4, fallback=False)


def test_refused_without_the_fallback(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the shape of NonZero's output"):
        load_model(save(tmp_path / "net.onnx", "coordinates", "n"), 4, fallback=False)


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", "coordinates", "n")
    proto = onnx.load(path)
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "y/values"
    proto.graph.output[1].name = "y/values"
    onnx.save(proto, path)
    with pytest.raises(ModelError, match="two tensors would be 'y/values'"):
        load_model(path, 4)
