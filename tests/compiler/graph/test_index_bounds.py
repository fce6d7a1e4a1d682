"""Inputs that index what a model computes are bounded: an index of no row is refused, as ONNX Runtime refuses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import veltair
from veltair.errors import RequestError

ROWS, WIDTH = 5, 4
CONSTANTS = {"w": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32), "last": np.array([-1])}
CONSTANTS |= {"zeros": np.zeros((ROWS, WIDTH), np.float32), "wide": np.array([1, WIDTH])}
PLACES = [helper.make_node("Unsqueeze", ["ids", "last"], ["places"], "places")]
SPELLINGS = {
    "GatherND": [*PLACES, helper.make_node("GatherND", ["h", "places"], ["y"], "y")],
    "Gather behind a view": [
        helper.make_node("Cast", ["ids"], ["narrow"], "narrow", to=TensorProto.INT32),
        helper.make_node("Gather", ["h", "narrow"], ["y"], "y"),
    ],
    "ScatterND": [*PLACES, helper.make_node("ScatterND", ["zeros", "places", "h"], ["y"], "y", reduction="add")],
    "GatherElements": [
        *PLACES,
        helper.make_node("Expand", ["places", "wide"], ["all"], "all"),
        helper.make_node("GatherElements", ["h", "all"], ["y"], "y", axis=0),
    ],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_index_of_no_row_is_refused(spelling: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "h"), *SPELLINGS[spelling]]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, 3])]
    inputs += [helper.make_tensor_value_info("ids", TensorProto.INT64, [ROWS])]
    weights = [numpy_helper.from_array(v, n) for n, v in CONSTANTS.items() if any(n in node.input for node in nodes)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDTH])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    artifact = veltair.compile(tmp_path / "m.onnx", tmp_path / "a", trials=0, levels="modelled", precision="fp32")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((ROWS, 3)).astype(np.float32)
    with veltair.load(artifact, threads=1) as compiled:
        for ids in ([0, 4, 2, 2, 1], [-1, -5, 0, 1, 4]):
            feeds = {"x": x, "ids": np.array(ids)}
            (found,) = compiled(feeds).values()
            np.testing.assert_allclose(found, session.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
        for wrong in (ROWS, -ROWS - 1, 2**31, 2**40, -(2**63)):
            with pytest.raises(RequestError, match=rf"input 'ids' has {wrong} at .*; ids go from -5 to 4"):
                compiled({"x": x, "ids": np.array([0, wrong, 0, 0, 0])})
