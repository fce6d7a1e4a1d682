"""Models of one node of decision trees, and what ONNX Runtime makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from decision_stumps import stump
from onnx import TensorProto, helper
from onnx_nets import run as run_layers
from random_trees import FEATURES

ML, FLOAT, INT64 = "ai.onnx.ml", TensorProto.FLOAT, TensorProto.INT64
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEAVES = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [5.0, 7.0]}
STUMP = stump(feature=1, value=0.5) | LEAVES
ROWS = 13
port = helper.make_tensor_value_info


def saved(path: Path, trees: onnx.NodeProto, width: int = FEATURES, kind: int = FLOAT, opset: int = 3) -> Path:
    """A model of one node: scores, or labels and scores."""
    outputs = [port(trees.output[-1], FLOAT, None)]
    if len(trees.output) > 1:
        outputs.insert(0, port(trees.output[0], INT64, None))
    graph = helper.make_graph([trees], "net", [port("x", kind, ["n", width])], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def expected(path: Path, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """What ONNX Runtime gives, row by row and on one thread: it adds up in the order of the trees then."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(str(path), options)
    rows = [session.run(None, {"x": x[i : i + 1]}) for i in range(len(x))]
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def run_trees(path: Path, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    found, operators = run_layers(path, {"x": x}, "fp32", batch=len(x), max_batch=32)
    assert "trees" in operators, operators
    assert "onnxruntime" not in operators
    return list(found)
