"""Inputs and versions of the engines of `veltair bench`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from veltair.commands.timing.engine_process import (
    draw_input,
    fastest_versions,
    named_extents,
    openvino_network,
    peer_feeds,
    read_onnx_inputs,
)
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import PackedLocation, Port
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile


@pytest.fixture
def model(tmp_path: Path) -> Path:
    kinds = [("x", TensorProto.FLOAT, ["n", 3]), ("ids", TensorProto.INT64, ["n", 2]), ("s", TensorProto.STRING, ["n"])]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "three",
        [helper.make_tensor_value_info(*kind) for kind in kinds],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    path = tmp_path / "three.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_raw_features_fit_their_room() -> None:
    texts = draw_input(
        Port(
            "s", "string", (-1, 1), locations=(PackedLocation(0, 0), PackedLocation(1, 0)), max_bytes=20, separator=";"
        ),
        100,
    )
    assert texts.shape == (100, 1)
    assert all(0 < len(text) <= 20 for text in texts.ravel()) and b";" in b"".join(texts.ravel())
    assert len(np.unique(draw_input(Port("user", "int64", (-1, 2), locations=(PackedLocation(0, 0),)), 100))) == 200
    assert not draw_input(Port("turns", "int64", (-1, 2)), 3).any()


def test_peers_get_the_same_values_and_ready_made_ones_for_what_features_become(model: Path) -> None:
    ids, texts = np.arange(8).reshape(4, 2), np.array([[b"a"], [b"b;c"], [b""], [b"7"]], object)
    feeds = peer_feeds(model, {"ids": ids, "s": texts, "user": ids}, 4)
    assert list(feeds) == ["x", "ids", "s"]
    assert feeds["ids"] is ids
    assert feeds["s"].tolist() == ["a", "b;c", "", "7"]
    assert feeds["x"].shape == (4, 3) and feeds["x"].dtype == np.float32 and feeds["x"].all()


def test_peers_know_the_extents_that_a_file_leaves_open(model: Path) -> None:
    feeds = peer_feeds(model, {"ids": np.zeros((4, 2), np.int64), "s": np.array([[b""]] * 4, object)}, 4)
    assert named_extents(model, feeds) == {"n": 4}
    network = openvino_network(model, feeds)
    assert {port.any_name: tuple(port.shape) for port in network.inputs} == {"x": (4, 3), "ids": (4, 2), "s": (4,)}


def test_only_onnx_has_inputs(model: Path) -> None:
    assert read_onnx_inputs(model)["x"] == (np.dtype("float32"), (0, 3))
    model.write_bytes(b"no model")
    with pytest.raises(ModelError, match="expected an ONNX file"):
        read_onnx_inputs(model)


def test_the_version_that_is_fastest_at_the_size_not_at_the_next_one_that_was_timed() -> None:
    """The second one's work is one task of a small batch, and two of a great one."""

    def profile(batch: int, *times: tuple[int, int]) -> ModelProfile:
        versions = tuple(CodeVersion(0, i, 1, 1, "f", LatencyTable((1.0,), (row,))) for i, row in enumerate(times))
        return ModelProfile("m", batch, (Layer(0, "l", "matmul", (), (), 1, 1),), (versions,), {}, "")

    profiles = [profile(32, (27, 17), (36, 35)), profile(256, (198, 99), (197, 93))]
    assert [fastest_versions(profiles, batch, 2) for batch in (1, 32, 64, 256)] == [[0], [0], [0], [1]]
    assert [fastest_versions(profiles, batch, 1) for batch in (64, 256)] == [[0], [1]]
