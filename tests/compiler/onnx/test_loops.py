"""Loops whose trips values decide: what leaves them has the shape that it has, whatever the file states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import model as net
from onnx_protos import run, saved
from run_kernels import run_graph, within_room

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
CONSTANTS: dict[str, Any] = {
    "half": np.float32(0.5),
    "limit": np.float32(50),
    "zero": np.float32(0),
    "yes": np.array(True),
    "five": np.int64(5),
    "at0": np.array([0]),
    "both": np.array([0, 1]),
    "none": np.zeros((0, 6), np.float32),
}
SAME = node("Identity", ["c"], ["go"])
HALF, ROW = node("Mul", ["v", "half"], ["w"]), node("ReduceSum", ["w", "at0"], ["row"], keepdims=0)
MORE, WIDER = (node("Concat", ["v", "x"], ["w"], axis=axis) for axis in (0, 1))
TRIPS = [  # as many as the greatest number, rounded up
    node("ReduceMax", ["x"], ["most"], keepdims=0),
    node("Ceil", ["most"], ["whole"]),
    node("Cast", ["whole"], ["trips"], to=INT64),
]
UNTIL = [
    node("Add", ["v", "v"], ["w"]),
    node("ReduceSum", ["w", "both"], ["sum"], keepdims=0),
    node("Less", ["sum", "limit"], ["go"]),
]


def loop(inputs: list[str], outputs: list[str], *nodes: onnx.NodeProto, scans: tuple[str, ...] = ()) -> onnx.NodeProto:
    given = [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, None)]
    made = [value("go", BOOL, []), *(value(name, FLOAT, None) for name in ("w", *scans))]
    return node("Loop", inputs, outputs, body=helper.make_graph(list(nodes), "body", given, made))


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])


INNER = node(
    "Loop",
    ["trips", "", "v"],
    ["w"],
    body=helper.make_graph(
        [node("Identity", ["c2"], ["go2"]), node("Concat", ["v2", "x"], ["w2"], axis=0)],
        "inner",
        [value("i2", INT64, []), value("c2", BOOL, []), value("v2", FLOAT, None)],
        [value("go2", BOOL, []), value("w2", FLOAT, None)],
    ),
)
GROWING = loop(["trips", "", "x"], ["y"], SAME, MORE)
# By name: nodes from x (n, 6) to y, the dimensions of y that the file states, and those that clients see.
CASES: dict[str, tuple[list[onnx.NodeProto], list[Any] | None, tuple[int, ...]]] = {
    "rows of a count given": (
        [node("Squeeze", ["t"], ["count"]), loop(["count", "", "x"], ["f", "y"], SAME, HALF, ROW, scans=("row",))],
        [3, 6],
        (0, 0),
    ),
    "rows of a count computed": (
        [*TRIPS, loop(["trips", "", "x"], ["f", "y"], SAME, HALF, ROW, scans=("row",))],
        ["n", 6],
        (0, 0),
    ),
    "rows that nobody states": (
        [*TRIPS, loop(["trips", "", "x"], ["f", "y"], SAME, HALF, ROW, scans=("row",))],
        None,
        (0, 0),
    ),
    "rows of a known count": ([loop(["five", "", "x"], ["f", "y"], SAME, HALF, ROW, scans=("row",))], [3, 6], (5, 6)),
    "a condition alone": ([loop(["", "yes", "x"], ["f", "y"], *UNTIL, scans=("sum",))], [3], (0,)),
    "what keeps its shape": ([*TRIPS, loop(["trips", "", "x"], ["y"], SAME, HALF)], None, (-1, 6)),
    "more rows": ([*TRIPS, GROWING], ["n", 6], (0, 6)),
    "rows from none": ([*TRIPS, loop(["trips", "", "none"], ["y"], SAME, MORE)], ["n", 6], (0, 6)),
    "wider": ([*TRIPS, loop(["trips", "", "x"], ["y"], SAME, WIDER)], ["n", 6], (-1, 0)),
    "behind it": (
        [*TRIPS, loop(["trips", "", "x"], ["g"], SAME, MORE), node("Tanh", ["g"], ["y"])],
        ["n", 6],
        (0, 6),
    ),
    "means behind it": (
        [
            *TRIPS,
            loop(["trips", "", "x"], ["g"], SAME, MORE),
            node("ReduceMean", ["g"], ["y"], axes=[0], keepdims=0),
        ],
        None,
        (6,),
    ),
    "one in another": ([*TRIPS, loop(["trips", "", "x"], ["y"], SAME, INNER)], ["n", 6], (0, 0)),
    "in a branch": (
        [
            *TRIPS,
            node("ReduceMin", ["x"], ["least"], keepdims=0),
            node("Greater", ["least", "zero"], ["up"]),
            node(
                "If",
                ["up"],
                ["y"],
                then_branch=branch(loop(["trips", "", "x"], ["a"], SAME, MORE)),
                else_branch=branch(node("Relu", ["x"], ["b"])),
            ),
        ],
        ["n", 6],
        (0, 0),
    ),
}


def save(folder: Path, nodes: list[onnx.NodeProto], dims: list[Any] | None) -> Path:
    inputs = [value("x", FLOAT, ["n", 6]), *([value("t", INT64, [1])] if "t" in nodes[0].input else [])]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()]
    return saved(folder, net(nodes, inputs, [value("y", FLOAT, dims)], constants))


@pytest.mark.parametrize("name", CASES)
def test_the_shape_that_it_has(tmp_path: Path, name: str) -> None:
    nodes, dims, seen = CASES[name]
    path = save(tmp_path, nodes, dims)
    model = load_model(path, 4)
    ports = {port.name: port.shape for port in (*model.outputs, *model.sized.values())}
    assert ports["y"] == seen
    assert not model.mergeable
    graph = lower(model, "fp32")
    rng = np.random.default_rng(5)
    for size in (1, 3):
        for most in (-1, 1, 3):
            x = rng.uniform(0.1, 1, (size, 6)).astype(np.float32) * np.float32(most)
            feeds: dict[str, NDArray[Any]] = {"x": x, "t": np.array([max(most, 0)])}
            if name == "a condition alone" and most < 0:
                continue  # it would not end
            (expected,) = run(path, {port.name: feeds[port.name] for port in model.inputs})
            found, *sizes = run_graph(graph, feeds, size)
            if sizes:
                extents = [int(extent) for extent in sizes[0] if extent >= 0]
                assert extents == list(expected.shape)
                found = within_room(found, extents)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_another_number_of_dimensions_at_each_trip(tmp_path: Path) -> None:
    nodes = [*TRIPS, loop(["trips", "", "x"], ["y"], SAME, node("Unsqueeze", ["v", "at0"], ["w"]))]
    with pytest.raises(ModelError, match="'y': the values of the inputs decide how many dimensions it has"):
        load_model(save(tmp_path, nodes, ["n", 6]), 4)
