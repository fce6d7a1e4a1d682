"""Models that take a part of their batch: shapes that grow in proportion up to some batch, or nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run
from run_kernels import within_room

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

node = helper.make_node
MAX_BATCH = 32  # greater than all ends below
random = np.random.default_rng(3)
REST = 2**31

# By name: from which sample to which, as a file states it.
PARTS = {
    "the first twenty": (0, 20),
    "all but the last": (0, -1),
    "all but the first": (1, REST),
    "the last three": (-3, REST),
    "some in the middle": (2, 25),
}
CONSTANTS = {"axis": [0], "zero": [0], "twenty": [20], "dimensions": [0, 1], "first": 0}


def save(path: Path, *nodes: onnx.NodeProto, **constants: object) -> Path:
    """A product behind `part`, which the nodes make of x (n, 6)."""
    weight = numpy_helper.from_array(random.standard_normal((6, 4), dtype=np.float32), "w")
    named = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in (CONSTANTS | constants).items()]
    graph = helper.make_graph(
        [*nodes, node("MatMul", ["part", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [weight, *named],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def agrees_at_every_batch(path: Path) -> None:
    model, session = load_model(path, MAX_BATCH), ort.InferenceSession(str(path))
    assert model.sized.keys() == {"y"} and not model.mergeable
    for size in (1, 2, 3, 19, 20, 21, MAX_BATCH):
        x = random.standard_normal((size, 6), dtype=np.float32)
        (values, extents), _ = run(path, {"x": x}, "fp32", size, max_batch=MAX_BATCH)
        expected = np.asarray(session.run(["y"], {"x": x})[0])
        assert tuple(extents) == expected.shape
        np.testing.assert_allclose(within_room(values, expected.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PARTS)
def test_a_slice_of_the_samples(tmp_path: Path, name: str) -> None:
    begin, end = PARTS[name]
    cut = node("Slice", ["x", "begin", "end", "axis"], ["part"])
    agrees_at_every_batch(save(tmp_path / "net.onnx", cut, begin=[begin], end=[end]))


def test_a_number_of_samples_that_is_bounded(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["samples"]),
        node("Min", ["samples", "twenty"], ["end"]),
        node("Slice", ["x", "zero", "end", "axis"], ["part"]),
    ]
    agrees_at_every_batch(save(tmp_path / "net.onnx", *nodes))


def test_what_is_no_part_stays_with_our_kernels(tmp_path: Path) -> None:
    """All samples, however that is spelt, and as many as the batch may have."""
    cut = node("Slice", ["x", "zero", "end", "axis"], ["part"])
    for end, max_batch in ((REST, MAX_BATCH), (20, 20)):
        model = load_model(save(tmp_path / "net.onnx", cut, end=[end]), max_batch)
        assert not model.sized and model.mergeable


def test_refused_without_the_fallback(tmp_path: Path) -> None:
    cut = node("Slice", ["x", "zero", "twenty", "axis"], ["part"])
    with pytest.raises(ModelError, match="tensor 'part': a dimension grows with the batch, but not in proportion"):
        load_model(save(tmp_path / "net.onnx", cut), MAX_BATCH, fallback=False)
