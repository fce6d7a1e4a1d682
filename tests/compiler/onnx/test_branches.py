"""Branches that give other shapes than the file states, or than each other: outputs have the shape of their branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import model as net
from onnx_protos import port, run, saved
from run_kernels import run_graph, within_room

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

FLOAT, node = TensorProto.FLOAT, helper.make_node
rng = np.random.default_rng(11)
CONSTANTS: dict[str, Any] = {
    "weight": rng.standard_normal((6, 6)).astype(np.float32),
    "none": np.zeros((0, 6), np.float32),
    "zero": np.float32(0),
    "most": np.float32(2),
    "first": np.array(0),
    "several": np.array(1),
    "few": np.array(2),
    "both": np.array([0, 1]),
    "at0": np.array([0]),
    "at1": np.array([1]),
    "flat": np.array([-1]),
}


def graph(*nodes: onnx.NodeProto, dims: list[Any] | None = None) -> onnx.GraphProto:
    output = onnx.ValueInfoProto(name=nodes[-1].output[0])
    if dims is not None:
        output = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, dims)
    return helper.make_graph(list(nodes), "branch", [], [output])


def either(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, output: str = "y") -> onnx.NodeProto:
    return node("If", [condition], [output], then_branch=then, else_branch=other)


WHOLE, TWICE = graph(node("Relu", ["x"], ["a"])), graph(node("Concat", ["x", "x"], ["b"], axis=0))
ONE = graph(node("Slice", ["x", "at0", "at1", "at0"], ["c"]))
WIDE = graph(node("Concat", ["x", "x"], ["b"], axis=1))
FLAT = graph(node("Reshape", ["x", "flat"], ["d"]))
SUM = graph(node("ReduceSum", ["x"], ["e"], keepdims=0))
SIGN = [node("ReduceSum", ["x", "both"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["up"])]
PEAK = [node("ReduceMax", ["x"], ["peak"], keepdims=0), node("Greater", ["peak", "most"], ["far"])]
COUNT = [node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "first"], ["n"])]

# By name: nodes from x (n, 6) to y, the dimensions of y that the file states, and those that clients see.
CASES: dict[str, tuple[list[onnx.NodeProto], list[Any] | None, tuple[int, ...]]] = {
    "twice the rows": ([*SIGN, either("up", WHOLE, TWICE)], ["n", 6], (0, 6)),
    "stated in the branches": (
        [
            *SIGN,
            either(
                "up",
                graph(node("Relu", ["x"], ["a"]), dims=["n", 6]),
                graph(node("Concat", ["x", "x"], ["b"], axis=0), dims=["n", 6]),
            ),
        ],
        ["n", 6],
        (0, 6),
    ),
    "products": (
        [
            *SIGN,
            either(
                "up",
                graph(node("MatMul", ["x", "weight"], ["a"])),
                graph(node("MatMul", ["x", "weight"], ["p"]), node("Slice", ["p", "at0", "at1", "at0"], ["b"])),
            ),
        ],
        ["n", 6],
        (0, 6),
    ),
    "a product behind": (
        [*SIGN, either("up", WHOLE, TWICE, "z"), node("MatMul", ["z", "weight"], ["v"]), node("Tanh", ["v"], ["y"])],
        ["n", 6],
        (0, 6),
    ),
    "values decide one": (
        [*SIGN, either("up", graph(node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["a"], to=FLOAT)), WHOLE)],
        ["n", "found"],
        (0, 0),
    ),
    "one in the other": (
        [*SIGN, *PEAK, either("up", WHOLE, graph(either("far", TWICE, ONE, "inner"), node("Abs", ["inner"], ["f"])))],
        ["n", 6],
        (0, 6),
    ),
    "two that are joined": (
        [
            *SIGN,
            *PEAK,
            either("up", WHOLE, TWICE, "p"),
            either("far", ONE, WHOLE, "q"),
            node("Concat", ["p", "q"], ["y"], axis=0),
        ],
        ["n", 6],
        (0, 6),
    ),
    "another width": (
        [*SIGN, either("up", WHOLE, graph(node("Concat", ["x", "x"], ["b"], axis=1)))],
        ["n", 6],
        (-1, 0),
    ),
    "another number of dimensions": ([*SIGN, either("up", WHOLE, FLAT)], ["n", 6], (0, 0)),
    "a scalar": ([*SIGN, either("up", SUM, WHOLE)], None, (0, 0)),
    "no rows": ([*SIGN, either("up", WHOLE, graph(node("Identity", ["none"], ["g"])))], ["n", 6], (0, 6)),
    "more than one sample": (
        [*COUNT, node("Greater", ["n", "several"], ["up"]), either("up", ONE, TWICE)],
        ["n", 6],
        (0, 6),
    ),
    "at least two samples, computed": (
        [
            *COUNT,
            node("Min", ["n", "few"], ["least"]),
            node("Equal", ["least", "few"], ["up"]),
            either("up", WHOLE, TWICE),
        ],
        ["n", 6],
        (0, 6),
    ),
}


def save(folder: Path, nodes: list[onnx.NodeProto], dims: list[Any] | None, rows: str | int = "n") -> Path:
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    return saved(folder, net(nodes, [port("x", [rows, 6])], [port("y", dims)], constants))


@pytest.mark.parametrize("name", CASES)
def test_an_output_has_the_shape_of_its_branch(tmp_path: Path, name: str) -> None:
    nodes, dims, seen = CASES[name]
    path = save(tmp_path, nodes, dims)
    model = load_model(path, 4)
    assert model.sized["y"].shape == seen
    assert not model.mergeable
    lowered = lower(model, "fp32")
    shapes = set()
    for batch in (1, 2, 4):
        for sign, peak in ((1, 1.5), (1, 3), (-1, 1.5), (-1, 3)):
            x = sign * np.abs(rng.standard_normal((batch, 6), dtype=np.float32)).clip(0.1, 1.5)
            x[0, 0] = peak
            wanted: NDArray[Any] = run(path, {"x": x})[0]
            values, extents = run_graph(lowered, {"x": x}, batch)
            assert tuple(extents[: wanted.ndim]) == wanted.shape
            assert (extents[wanted.ndim :] == -1).all()
            np.testing.assert_allclose(within_room(values, wanted.shape), wanted, rtol=1e-5, atol=1e-6)
            shapes.add((wanted.ndim, wanted.size / batch))
    assert len(shapes) > 1


def test_branches_of_the_shape_that_is_stated(tmp_path: Path) -> None:
    nodes = [*SIGN, either("up", WHOLE, graph(node("Neg", ["x"], ["b"])))]
    assert not load_model(save(tmp_path, nodes, ["n", 6]), 4).sized


def test_a_room_holds_what_the_file_states(tmp_path: Path) -> None:
    path = save(tmp_path, [*SIGN, either("up", WHOLE, TWICE)], [5, 6], 5)
    assert load_model(path, output_room=4).sized["y"].room == 30


def test_nobody_knows_the_number_of_dimensions(tmp_path: Path) -> None:
    found = graph(node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["a"], to=FLOAT))
    path = save(tmp_path, [*SIGN, either("up", found, FLAT)], ["n", 6])
    with pytest.raises(ModelError, match="output 'y': the values of the inputs decide how many dimensions it has"):
        load_model(path, 4)
