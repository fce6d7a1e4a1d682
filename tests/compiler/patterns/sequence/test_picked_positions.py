"""A position that is picked is picked before products, where nothing else reads the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from open_dimensions import HIDDEN, causal_text, plan_bounds
from run_kernels import run_graph

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.patterns.sequence.picked_positions import pick_positions_first
from veltair.compiler.pipeline import lower

node = helper.make_node
rng = np.random.default_rng(0)
LENGTH, WIDTH = 6, 16
CONSTANTS: dict[str, Any] = {
    "w": rng.standard_normal((WIDTH, WIDTH)) / 4,
    "head": rng.standard_normal((WIDTH, 24)) / 4,
    "bias": rng.standard_normal(24),
    "gain": rng.standard_normal(WIDTH),
    "places": rng.standard_normal((LENGTH, WIDTH)),
    "square": rng.standard_normal((LENGTH, LENGTH)),
    "eps": 1e-5,
    "two": 2.0,
}
NUMBERS = {
    "last": -1,
    "one": 1,
    "ends": [1 << 40],
    "begins": [-1],
    "along": [1],
    "second": [1],
    "flat": [-1, WIDTH],
    "apart": [-1, LENGTH, 24],
}
LAST = node("Gather", ["l", "last"], ["y"], axis=1)
HEAD = node("MatMul", ["x", "head"], ["l"])
MOVED = {
    "logits": [HEAD, LAST],
    "with a bias": [node("MatMul", ["x", "head"], ["m"]), node("Add", ["m", "bias"], ["l"]), LAST],
    "a slice": [HEAD, node("Slice", ["l", "begins", "ends", "along"], ["y"])],
    "a place in a vector": [HEAD, node("Gather", ["l", "second"], ["y"], axis=-2)],
    "a feed-forward block and its norms": [
        node("LayerNormalization", ["x", "gain"], ["n"], axis=-1),
        node("MatMul", ["n", "w"], ["u"]),
        node("Erf", ["u"], ["e"]),
        node("Mul", ["u", "e"], ["v"]),
        node("MatMul", ["v", "w"], ["d"]),
        node("Add", ["d", "x"], ["r"]),
        node("Pow", ["r", "two"], ["p"]),
        node("ReduceMean", ["p"], ["q"], axes=[-1]),
        node("Add", ["q", "eps"], ["a"]),
        node("Sqrt", ["a"], ["s"]),
        node("Div", ["r", "s"], ["f"]),
        node("MatMul", ["f", "head"], ["l"]),
        LAST,
    ],
    "two readers of the same position": [
        HEAD,
        node("Gather", ["l", "last"], ["a"], axis=1),
        node("Slice", ["l", "begins", "ends", "along"], ["b"]),
        node("Squeeze", ["b", "along"], ["c"]),
        node("Sub", ["a", "c"], ["d"]),
        node("Add", ["d", "a"], ["y"]),
    ],
    "a product of matrices": [
        node("Reshape", ["x", "flat"], ["m"]),
        node("Gemm", ["m", "head", "bias"], ["g"]),
        node("Reshape", ["g", "apart"], ["l"]),
        LAST,
    ],
    "behind what mixes positions": [
        node("MatMul", ["square", "x"], ["m"]),
        node("MatMul", ["m", "head"], ["l"]),
        LAST,
    ],
}
KEPT = {
    "another position as well": [
        HEAD,
        node("Gather", ["l", "last"], ["a"], axis=1),
        node("Gather", ["l", "one"], ["b"], axis=1),
        node("Add", ["a", "b"], ["y"]),
    ],
    "all positions as well": [
        HEAD,
        node("Gather", ["l", "last"], ["a"], axis=1),
        node("ReduceMax", ["l"], ["b"], axes=[1], keepdims=0),
        node("Add", ["a", "b"], ["y"]),
    ],
    "a softmax over positions": [
        HEAD,
        node("Softmax", ["l"], ["s"], axis=1),
        node("Gather", ["s", "last"], ["y"], axis=1),
    ],
    "a channel": [HEAD, node("Gather", ["l", "last"], ["y"], axis=2)],
    "two positions": [HEAD, node("Slice", ["l", "second", "ends", "along"], ["y"])],
    "numbers of each position": [node("Add", ["x", "places"], ["l"]), LAST],
    "no product": [node("Tanh", ["x"], ["l"]), LAST],
}


def saved(nodes: list[onnx.NodeProto], path: Path, outputs: tuple[str, ...] = ("y",)) -> Path:
    constants = {name: np.asarray(value, np.float32) for name, value in CONSTANTS.items()}
    constants |= {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}
    used = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", LENGTH, WIDTH])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    for output in graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def agrees(path: Path) -> bool:
    """Whether the model was rewritten; it gives what ONNX Runtime gives."""
    loaded = load_model(path, 4)
    graph = lower(loaded, "fp32")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = rng.standard_normal((batch, LENGTH, WIDTH)).astype(np.float32)
        for found, wanted in zip(run_graph(graph, {"x": x}, batch), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return pick_positions_first(ModelView(loaded, "fp32")) is not loaded


@pytest.mark.parametrize("case", MOVED)
def test_a_pick_moves_in_front(case: str, tmp_path: Path) -> None:
    path = saved(MOVED[case], tmp_path / "net.onnx")
    assert agrees(path)
    products = [layer for layer in lower(load_model(path, 4), "fp32").layers if layer.op == "matmul"]
    assert products and all(abs(layer.outputs[0].shape[0]) == 1 for layer in products)


@pytest.mark.parametrize("case", KEPT)
def test_a_pick_stays(case: str, tmp_path: Path) -> None:
    assert not agrees(saved(KEPT[case], tmp_path / "net.onnx"))


def test_what_is_an_output_is_computed_at_all_positions(tmp_path: Path) -> None:
    path = saved(MOVED["with a bias"], tmp_path / "net.onnx", ("y", "m"))
    loaded = load_model(path, 4)
    assert agrees(path) is False
    assert loaded.values["m"].shape == (-1, LENGTH, 24)


def test_the_last_position_of_each_query_of_an_open_length(tmp_path: Path) -> None:
    """It is read by a number that the server gives, and the product before it computes one row for each query."""
    pool = [node("MatMul", ["tokens", "square_weight"], ["t"]), node("Gather", ["t", "minus_one"], ["y"], axis=1)]
    path = tmp_path / "net.onnx"
    onnx.save(causal_text(pool=pool, shape=("batch", HIDDEN)), path)
    plan = plan_bounds(path, "seq", 1, 8)
    assert not plan.dimension.exact
    loaded = load_model(path, 4, fixed=plan.fixed[0])
    assert pick_positions_first(ModelView(loaded, "fp32")) is not loaded
    graph, session = lower(loaded, "fp32"), ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for extent in (1, 5, 8):
        feeds = {"ids": rng.integers(0, 13, (3, extent))}
        padded = {name: np.asarray(value) for name, value in plan.dimension.bring_to_bucket(feeds, extent).items()}
        (found,) = run_graph(graph, padded, 3)
        np.testing.assert_allclose(found, session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
