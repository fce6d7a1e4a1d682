"""Whether the samples of a batch stay apart: judged from the graph, and by what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.onnx_model import load_model

WIDTH = 8
node = helper.make_node

CONSTANTS = {
    "pairs": np.array([-1, 2 * WIDTH], np.int64),
    "rows": np.array([-1, WIDTH], np.int64),
    "one": np.array([1, -1], np.int64),
    "halves": np.array([-1, 2, WIDTH // 2], np.int64),
    "half_rows": np.array([-1, WIDTH // 2], np.int64),
    "windows": np.array([-1, 2, 2, 2], np.int64),
    "windowed": np.array([-1, 2, 2], np.int64),
    "zero": np.array(0, np.int64),
    "last": np.array([-1], np.int64),
    "before_first": np.array([-(2**31)], np.int64),
    "first_axis": np.array([0], np.int64),
    "backwards": np.array([-1], np.int64),
    "weights": np.random.default_rng(0).standard_normal((WIDTH, WIDTH), dtype=np.float32),
    "wide": np.random.default_rng(1).standard_normal((2 * WIDTH, WIDTH), dtype=np.float32),
    "scale": np.linspace(1, 2, WIDTH, dtype=np.float32),
    "shuffled": np.random.default_rng(2).permutation(WIDTH).astype(np.int64),
}
APART = {
    "a mean of each row": [
        node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        node("Sub", ["x", "m"], ["y"]),
    ],
    "a softmax of each row": [node("Softmax", ["x"], ["y"], axis=-1)],
    "running sums of each row": [node("CumSum", ["x", "one_axis"], ["y"])],
    "both inputs side by side": [
        node("Concat", ["x", "z"], ["both"], axis=1),
        node("MatMul", ["both", "wide"], ["y"]),
    ],
    "there and back": [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Relu", ["t"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[1, 0]),
    ],
    "columns of each row in another order": [node("Gather", ["x", "shuffled"], ["y"], axis=1)],
    "windows of each sample": [
        node("Reshape", ["x", "windows"], ["w"]),
        node("Transpose", ["w"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "windowed"], ["v"]),
        node("Softmax", ["v"], ["s"], axis=1),
        node("Reshape", ["s", "rows"], ["y"]),
    ],
    "attention within a sample": [
        node("Reshape", ["x", "halves"], ["q"]),
        node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["o"]),
        node("Reshape", ["o", "rows"], ["y"]),
    ],
    "rows of all inputs, each half with its own": [
        node("Concat", ["x", "z"], ["c"], axis=0),
        node("MatMul", ["c", "weights"], ["p"]),
        node("Split", ["p"], ["a", "b"], axis=0),
        node("Add", ["a", "b"], ["y"]),
    ],
    "an operator that is not known here, on rows of all inputs": [
        node("Concat", ["x", "z"], ["c"], axis=0),
        node("LayerNormalization", ["c", "scale"], ["n"]),
        node("Split", ["n"], ["a", "b"], axis=0),
        node("Add", ["a", "b"], ["y"]),
    ],
}
MIXED = {
    "an operator that is not known here, on rows that are paired then": [
        node("Concat", ["x", "z"], ["c"], axis=0),
        node("LayerNormalization", ["c", "scale"], ["n"]),
        node("Reshape", ["n", "pairs"], ["p"]),
        node("MatMul", ["p", "wide"], ["y"]),
    ],
    "a mean over the batch": [node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), node("Sub", ["x", "m"], ["y"])],
    "a mean over everything": [node("ReduceMean", ["x"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["y"])],
    "a softmax over the batch": [node("Softmax", ["x"], ["y"], axis=0)],
    "running sums over the batch": [node("CumSum", ["x", "zero"], ["y"])],
    "the batch backwards": [
        node("Slice", ["x", "last", "before_first", "first_axis", "backwards"], ["y"]),
    ],
    "one input below the other, in pairs": [
        node("Concat", ["x", "z"], ["c"], axis=0),
        node("Reshape", ["c", "pairs"], ["p"]),
        node("MatMul", ["p", "wide"], ["y"]),
    ],
    "columns read as rows": [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Reshape", ["t", "rows"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ],
    "products of all rows with all rows": [
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["p"]),
        node("MatMul", ["p", "x"], ["y"]),
    ],
    "a greatest of one long row": [
        node("Reshape", ["x", "one"], ["r"]),
        node("ReduceMax", ["r"], ["m"], axes=[1], keepdims=1),
        node("Sub", ["r", "m"], ["d"]),
        node("Reshape", ["d", "rows"], ["y"]),
    ],
}


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    read = {name for each in nodes for name in each.input}
    constants = {**CONSTANTS, "one_axis": np.array(1, np.int64)}
    graph = helper.make_graph(
        nodes,
        "batch",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xz" if name in read],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows_ignore_each_other(proto: onnx.ModelProto) -> bool:
    """By values: the first and the last row are the same to the bit whatever is in the others."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    feeds = {port.name: rng.standard_normal((4, WIDTH), dtype=np.float32) for port in session.get_inputs()}
    (answer,) = session.run(None, feeds)
    for row in (0, -1):
        changed = {name: -100 * value for name, value in feeds.items()}
        for name, value in feeds.items():
            changed[name][row] = value[row]
        if not np.array_equal(session.run(None, changed)[0][row], answer[row]):
            return False
    return True


@pytest.mark.parametrize("name", [*APART, *MIXED])
def test_samples_stay_apart_where_they_do(name: str, tmp_path: Path) -> None:
    proto = model((APART | MIXED)[name])
    assert rows_ignore_each_other(proto) is (name in APART)
    onnx.save(proto, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx").mergeable is (name in APART)
