"""Tensors without elements are constants; what they leave of a Concat or a Split is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_protos import I64, F, model, node, port, run, saved
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError


def test_parts_without_elements_vanish(tmp_path: Path) -> None:
    """As exporters write rotary embeddings of the whole width, keys behind no past, and axes that are an input."""
    sizes = numpy_helper.from_array(np.array([2, 0, 2]), "sizes")
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["a", "none", "b"], "split", axis=2),
        helper.make_node("Concat", ["b", "none", "a"], ["turned"], "turn", axis=2),
        helper.make_node("Concat", ["past", "turned"], ["keys"], "append", axis=1),
        helper.make_node("ReduceSum", ["keys", "axes"], ["y"], "sum", noop_with_empty_axes=1),
    ]
    inputs = [port("x", ["n", 3, 4]), port("past", ["n", 0, 4]), port("axes", [0], I64)]
    proto = model(nodes, inputs, [port("y", ["n", 3, 4])], [sizes])
    loaded = load_model(saved(tmp_path, proto))
    assert [spec.name for spec in loaded.inputs] == ["x"]
    assert loaded.mergeable
    graph = lower(loaded, "fp32")
    assert not any(layer.op == "onnxruntime" for layer in graph.layers)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)
        [wanted] = run(proto, {"x": x, "past": np.zeros((batch, 0, 4), np.float32), "axes": np.zeros(0, np.int64)})
        np.testing.assert_array_equal(run_graph(graph, {"x": x}, batch)[0], wanted)


def test_constants_without_elements_vanish_whatever_else_their_shape_is(tmp_path: Path) -> None:
    """Keys of no past are written for one sample, and joined to those of any batch."""
    past = numpy_helper.from_array(np.zeros((1, 2, 0, 4), np.float32), "past")
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["keys"], "append", axis=2),
        helper.make_node("Concat", ["past", "keys", "x"], ["y"], "again", axis=2),
    ]
    proto = model(nodes, [port("x", ["n", 2, 3, 4])], [port("y", ["n", 2, 6, 4])], [past])
    graph = lower(load_model(saved(tmp_path, proto)), "fp32")
    assert not any(layer.op == "onnxruntime" for layer in graph.layers)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 2, 3, 4)).astype(np.float32)
        [wanted] = run(proto, {"x": x})
        np.testing.assert_array_equal(run_graph(graph, {"x": x}, batch)[0], wanted)


@pytest.mark.parametrize("parts", ["x none", "none x", "x none x"])
def test_an_empty_part_that_leaves_room_in_a_concat_is_refused(tmp_path: Path, parts: str) -> None:
    """ONNX Runtime gives what the memory held before."""
    none = numpy_helper.from_array(np.zeros((0, 4), np.float32), "none")
    width = 4 * len(parts.split())
    proto = model([node("Concat", parts, "y", axis=1)], [port("x", ["n", 4])], [port("y", ["n", width])], [none])
    with pytest.raises(ModelError, match="without elements leaves room"):
        load_model(saved(tmp_path, proto))


def test_an_output_without_elements_is_refused(tmp_path: Path) -> None:
    bounds = [numpy_helper.from_array(np.array([at]), name) for name, at in (("from", 9), ("axis", 1))]
    proto = model([node("Slice", "x from from axis", "y")], [port("x", ["n", 4])], [port("y", ["n", 0])], bounds)
    with pytest.raises(ModelError, match="output 'y'"):
        lower(load_model(saved(tmp_path, proto)), "fp32")


def test_a_convolution_of_other_channels_than_its_weights_is_refused(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((4, 1, 3, 3), np.float32), "w")
    proto = model([node("Conv", "x w", "y", group=3)], [port("x", [1, 4, 5, 5])], [port("y", None)], [weights])
    with pytest.raises(ModelError, match="weights are for 3 channels, and its input has 4"):
        load_model(saved(tmp_path, proto))


def test_operators_of_scikit_learn_alone_need_no_standard_set(tmp_path: Path) -> None:
    nodes = [helper.make_node("Binarizer", ["x"], ["y"], "b", domain="ai.onnx.ml", threshold=0.5)]
    proto = model(nodes, [port("x", ["n", 4])], [port("y", ["n", 4], F)], [])
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
    [found] = run_graph(lower(load_model(saved(tmp_path, proto)), "fp32"), {"x": x}, 2)
    np.testing.assert_array_equal(found, x > 0.5)
