"""Nodes that cannot be served are refused by name: loops without an end, constant indices beyond an axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import I64, F, model, node, port, refuse, saved

from veltair.compiler.onnx.onnx_model import load_model

BOOL = TensorProto.BOOL
TRUE = numpy_helper.from_array(np.array(True), "true")
TRIPS = numpy_helper.from_array(np.array(3), "trips")


def loop(inside: list[onnx.NodeProto], on: str, given: str = " true x", nested: bool = False) -> onnx.ModelProto:
    """x is doubled as long as `on`, which the nodes inside make of `was`."""
    step = [helper.make_node("Add", ["v", "v"], ["v_"]), *inside]
    ports = [port("i", (), I64), port("was", (), BOOL), port("v")]
    body = helper.make_graph(step, "body", ports, [port(on, (), BOOL), port("v_")])
    found = helper.make_node("Loop", given.split(" "), ["y"], "the Loop", body=body)
    if nested:
        branch = helper.make_graph([found], "branch", [], [port("y")])
        found = node("If", "c", "y", then_branch=branch, else_branch=branch)
    inputs = [port("x"), *([port("c", (), BOOL)] if nested else [])]
    return model([found], inputs, constants=[TRUE, TRIPS])


KEPT = helper.make_node("Identity", ["was"], ["on"])
SET = helper.make_node("Constant", [], ["on"], value=numpy_helper.from_array(np.array(True), "t"))
ENDS = [
    helper.make_node("ReduceSum", ["v_"], ["s"], keepdims=0),
    helper.make_node("Less", ["s", "s"], ["on"]),
]


@pytest.mark.parametrize(
    "proto",
    [
        loop([KEPT], "on"),
        loop([KEPT], "on", "  x"),
        loop([SET], "on"),
        loop([helper.make_node("Identity", ["true"], ["on"])], "on"),
        loop([KEPT], "on", nested=True),
    ],
    ids=["kept", "no condition", "a constant", "a constant outside", "in a branch"],
)
def test_a_loop_without_an_end(tmp_path: Path, proto: onnx.ModelProto) -> None:
    refuse(tmp_path, proto, "the Loop.*Loop never ends: it has no trip count, and its condition stays true")


@pytest.mark.parametrize("proto", [loop([KEPT], "on", "trips true x"), loop(ENDS, "on")], ids=["trips", "condition"])
def test_a_loop_that_may_end_is_taken(tmp_path: Path, proto: onnx.ModelProto) -> None:
    assert load_model(saved(tmp_path, proto)).outputs[0].shape == (2, 4)


def indexed(op: str, indices: Any, *more: str, **attributes: Any) -> onnx.ModelProto:
    constants = [
        numpy_helper.from_array(np.asarray(indices), "i"),
        numpy_helper.from_array(np.ones(3, np.float32), "u"),
    ]
    return model(
        [node(op, " ".join(["x", "i", *more]), "y", **attributes)],
        [port("x", ("n", 3, 5))],
        [port("y", None)],
        constants,
    )


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (indexed("Gather", [0, 5], axis=2), "the Gather.*index 5, and axis 2 of its input has 5 entries"),
        (indexed("Gather", [0, -4], axis=1), "the Gather.*index -4, and axis 1 of its input has 3 entries"),
        (indexed("GatherElements", [[[0, 7]]], axis=-1), "the GatherElements.*index 7, and axis 2"),
        (indexed("GatherND", [[0, 3]], batch_dims=0), "the GatherND.*index 3, and axis 1"),
        (indexed("GatherND", [[0, 2, 5]]), "the GatherND.*index 5, and axis 2"),
    ],
)
def test_an_index_beyond_its_axis(tmp_path: Path, proto: onnx.ModelProto, text: str) -> None:
    """ONNX Runtime refuses each query; a kernel would read what is not there."""
    refuse(tmp_path, proto, text)


def test_indices_from_the_end_and_of_samples_are_taken(tmp_path: Path) -> None:
    for proto in (indexed("Gather", [-5, 4], axis=2), indexed("Gather", [-3, 2], axis=1)):
        assert load_model(saved(tmp_path, proto), 4).outputs[0].dtype == "float32"


def test_an_index_of_an_inner_constant(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Gather", "r i", "y", axis=1)]
    index = numpy_helper.from_array(np.array(9), "i")
    refuse(tmp_path, model(nodes, [port("x", (2, 4), F)], [port("y", None)], [index]), "the Gather.*index 9")
