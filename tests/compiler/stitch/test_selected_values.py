"""Values that a comparison selects are multiplied in the same kernel: TVM failed to bound such products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from quantised_models import save
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

node = helper.make_node
CASES: dict[str, list[onnx.NodeProto]] = {
    "the lesser": [node("Min", ["x", "c"], ["a"]), node("Mul", ["a", "x"], ["y"])],
    "the greater, by a constant": [node("Max", ["c", "x"], ["a"]), node("Mul", ["a", "c"], ["y"])],
    "the lesser of two that are computed": [
        node("Tanh", ["x"], ["t"]),
        node("Min", ["t", "x"], ["a"]),
        node("Div", ["x", "a"], ["y"]),
    ],
    "either": [
        node("Less", ["x", "c"], ["b"]),
        node("Where", ["b", "x", "c"], ["a"]),
        node("Mul", ["a", "x"], ["y"]),
    ],
    "a truth": [node("Less", ["x", "c"], ["b"]), node("Cast", ["b"], ["a"], to=1), node("Mul", ["a", "x"], ["y"])],
}


@pytest.mark.parametrize("case", CASES)
def test_products_of_what_is_selected(tmp_path: Path, case: str) -> None:
    rng = np.random.default_rng(0)
    nodes = CASES[case]
    constants = {"c": rng.standard_normal(8).astype(np.float32)}
    used = {name for each in nodes for name in each.input}
    path = save(tmp_path / "net.onnx", nodes, constants if "c" in used else {}, ["n", 5, 8], ["n", 5, 8])
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    [wanted] = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    graph = lower(load_model(path, 4), "fp32")
    assert {layer.op for layer in graph.layers} == {"stitched"}
    np.testing.assert_allclose(run_graph(graph, {"x": x}, 2)[0], wanted, rtol=1e-5, atol=1e-6)
