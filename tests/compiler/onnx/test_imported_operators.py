"""Operators that TVM imports give ONNX Runtime's results, whatever their attributes; else ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_protos import I64, F, model, node, port, run, saved
from run_kernels import run_graph

from veltair.compiler.onnx.branches import take_branch
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

SCALES = {"third": (10 / 6, 2.0), "half": (1.5, 1.25), "corners": (1.5, 1.25), "twice": (2.0, 2.0)}
MODES: dict[str, dict[str, Any]] = {
    "third": {"mode": "linear"},
    "half": {"mode": "linear"},
    "corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "twice": {"mode": "cubic", "antialias": 1},
}


@pytest.mark.parametrize("kind", SCALES)
def test_resize_takes_the_scales_that_the_file_states(tmp_path: Path, kind: str) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, *SCALES[kind]], np.float32), "scales")
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], "resize", **MODES[kind])
    proto = model([resize], [port("x", ["n", 2, 6, 7])], [port("y", None)], [scales], opset=18)
    graph = lower(load_model(saved(tmp_path, proto)), "fp32")
    assert [layer.op for layer in graph.layers] == [
        "generic" if kind in ("third", "corners") else "onnxruntime"  # of whole extents; by the quotient of extents
    ]
    _compare(graph, proto, {"x": np.random.default_rng(1).standard_normal((2, 2, 6, 7)).astype(np.float32)})


def test_an_average_that_is_rounded_up_counts_no_place_beyond_the_padding(tmp_path: Path) -> None:
    facts = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}
    proto = model([node("AveragePool", "x", "y", **facts)], [port("x", ["n", 3, 6, 6])], [port("y", None)], [])
    graph = lower(load_model(saved(tmp_path, proto)), "fp32")
    _compare(graph, proto, {"x": np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("kernel", "stride", "extent"), [(1, 3, 2), (2, 4, 5), (3, 5, 6)])
def test_rounding_up_adds_no_window_that_begins_beyond_the_plane(
    tmp_path: Path, op: str, kernel: int, stride: int, extent: int
) -> None:
    facts = {"kernel_shape": [kernel, 2], "strides": [stride, 2], "ceil_mode": 1}
    for tail in ([], [4]):  # our own pool, and TVM's
        window = {
            name: [*value, *[1] * len(tail)] if isinstance(value, list) else value for name, value in facts.items()
        }
        proto = model([node(op, "x", "y", **window)], [port("x", ["n", 3, extent, 7, *tail])], [port("y", None)], [])
        graph = lower(load_model(saved(tmp_path, proto)), "fp32")
        shape = (2, 3, extent, 7, *tail)
        _compare(graph, proto, {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})


def test_infinities_have_signs(tmp_path: Path) -> None:
    signs = {"n": {"detect_positive": 0}, "p": {"detect_negative": 0}, "b": {}}
    nodes = [helper.make_node("IsInf", ["x"], [name], name, **facts) for name, facts in signs.items()]
    outputs = [port(name, ["n", 4], onnx.TensorProto.BOOL) for name in signs]
    proto = model(nodes, [port("x", ["n", 4])], outputs, [])
    graph = lower(load_model(saved(tmp_path, proto)), "fp32")
    _compare(graph, proto, {"x": np.array([[-np.inf, np.inf, np.nan, 1]], np.float32)})


def test_computed_indices_count_from_the_end(tmp_path: Path) -> None:
    one = numpy_helper.from_array(np.array(1), "one")
    nodes = [node("Sub", "i one", "j"), helper.make_node("Gather", ["x", "j"], ["y"], "gather", axis=1)]
    proto = model(nodes, [port("x", [3, 4]), port("i", [2, 2], I64)], [port("y", [3, 2, 2])], [one])
    graph = lower(load_model(saved(tmp_path, proto)), "fp32")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    _compare(graph, proto, {"x": x, "i": np.array([[0, 1], [-3, 4]])})


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_division_by_an_integer_of_zero_gives_zero(tmp_path: Path, dtype: str) -> None:
    """The CPU would end the process, also for the least number divided by -1."""
    kind, least = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.iinfo(dtype).min
    ports = [port(name, ["n", 4], kind) for name in "xdy"]
    graph = lower(load_model(saved(tmp_path, model([node("Div", "x d", "y")], ports[:2], ports[2:], []))), "fp32")
    feeds = {"x": [[7, 5, 100, least]], "d": [[2, 0, 3, -1 if least else 1]]}
    [found] = run_graph(graph, {name: np.array(value, dtype) for name, value in feeds.items()}, 1)
    np.testing.assert_array_equal(found, np.array([[3, 0, 33, least]], dtype))


@pytest.mark.parametrize(("dtype", "fmod"), [("int32", 0), ("int64", 1), ("uint8", 0)])
def test_nothing_is_left_by_an_integer_of_zero(tmp_path: Path, dtype: str, fmod: int) -> None:
    """The CPU would end the process, also for the least number by -1."""
    kind, least = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.iinfo(dtype).min
    ports = [port(name, ["n", 4], kind) for name in "xdy"]
    nodes = [helper.make_node("Mod", ["x", "d"], ["y"], "mod", fmod=fmod)]
    graph = lower(load_model(saved(tmp_path, model(nodes, ports[:2], ports[2:], []))), "fp32")
    feeds = {"x": [[7, 5, 100, least]], "d": [[4, 0, 3, -1 if least else 1]]}
    [found] = run_graph(graph, {name: np.array(value, dtype) for name, value in feeds.items()}, 1)
    np.testing.assert_array_equal(found, np.array([[3, 0, 1, 0]], dtype))


@pytest.mark.parametrize(("operator", "wanted"), [("Div", [3, -7, 33, -(2**31)]), ("Mod", [1, 0, 1, 0])])
def test_the_least_integer_by_a_constant_of_minus_one(tmp_path: Path, operator: str, wanted: list[int]) -> None:
    ports = [port(name, ["n", 4], onnx.TensorProto.INT32) for name in "xy"]
    divisor = numpy_helper.from_array(np.array([2, -1, 3, -1], np.int32), "d")
    nodes = [node(operator, "x d", "y")]
    graph = lower(load_model(saved(tmp_path, model(nodes, ports[:1], ports[1:], [divisor]))), "fp32")
    [found] = run_graph(graph, {"x": np.array([[7, 7, 100, -(2**31)]], np.int32)}, 1)
    np.testing.assert_array_equal(found, np.array([wanted], np.int32))


def test_training_that_an_input_decides_is_refused(tmp_path: Path) -> None:
    ports = [port("x"), port("ratio", []), port("training", [], onnx.TensorProto.BOOL)]
    with pytest.raises(ModelError, match="Dropout is in training mode"):
        load_model(saved(tmp_path, model([node("Dropout", "x ratio training", "y")], ports)))


def test_nodes_of_a_branch_have_names_of_their_own() -> None:
    inner = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    branch = helper.make_graph(inner, "then", [], [port("b", None, F)])
    asked = helper.make_node("If", ["c"], ["y"], "if", then_branch=branch, else_branch=branch)
    nodes, _ = take_branch(asked, True)
    assert len({found.name for found in nodes}) == len(nodes)


def _compare(graph: Any, proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    batch = len(next(iter(feeds.values()))) if any(port.shape[0] < 0 for port in graph.inputs) else 1
    for found, wanted in zip(run_graph(graph, feeds, batch), run(proto, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
