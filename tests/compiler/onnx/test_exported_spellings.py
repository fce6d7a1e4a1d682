"""Spellings that exporters of PyTorch use, and that once ended a compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_nets import Net, agree, normal
from onnx_protos import model, port, rebuilt, run, saved

from veltair.compiler.onnx.folding.shape_folding import ROWS
from veltair.compiler.onnx.onnx_model import load_model

TABLE = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
CONSTANTS = {"zero": np.array([0]), "four": np.array([4]), "half": np.float32(0.5), "none": np.float32(0)}


def step(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def compare(folder: Path, nodes: list[onnx.NodeProto]) -> list[str]:
    """The operators of the loaded model, which gives what ONNX Runtime gives for the file."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    proto = model(nodes, [port("x", ["n", 3, 4])], [port("y", None)], tensors)
    loaded = load_model(saved(folder, proto))
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 3, 4)).astype(np.float32)}
    np.testing.assert_array_equal(run(rebuilt(loaded, 5), feeds)[0], run(proto, feeds)[0])
    return [each.op_type for each in loaded.nodes]


def test_both_sides_of_a_choice_may_be_repeated_rows(tmp_path: Path) -> None:
    """As in Longformer."""
    nodes = [
        step("Shape", "x", "batch", start=0, end=1),
        step("Concat", "batch four", "shape", axis=0),
        step("Expand", "half shape", "ours"),
        step("Expand", "none shape", "others"),
        step("ReduceMax", "x", "most", axes=[1], keepdims=0),
        step("Greater", "most half", "choice"),
        step("Where", "choice ours others", "chosen"),
        step("Add", "chosen most", "y"),
    ]
    assert ROWS not in compare(tmp_path, nodes)


def test_a_lookup_may_read_a_node_without_inputs(tmp_path: Path) -> None:
    """As in GPT-J, whose positions stand in a Constant."""
    table = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(TABLE), name="t")
    ids = step("ArgMax", "x", "ids", axis=2, keepdims=0)
    assert "Gather" in compare(tmp_path, [table, ids, step("Gather", "t ids", "y")])


def test_an_axis_that_is_a_number_alone(tmp_path: Path) -> None:
    """PyTorch writes the heads that share their keys so; ONNX Runtime takes it for a list of one."""
    net = Net(x=[2, 5, 3, 16])
    keys = net("Transpose", "x", perm=[0, 2, 1, 3])
    heads = net("Expand", net("Unsqueeze", keys, np.array(2)), np.array([2, 3, 2, 5, 16]))
    one = net("Squeeze", net("Slice", heads, np.array([1]), np.array([2]), np.array([2])), np.array([2]))
    operators = agree(tmp_path, (net("Softmax", net("MatMul", one, normal(16, 8))),), net, "fp32", 2, 5, 3, 16)
    assert "onnxruntime" not in operators
