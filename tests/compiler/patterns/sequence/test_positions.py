"""What is added to embedded tokens: the same to each sequence goes into their layer, another for each does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

BATCH, TOKENS, WIDTH = 2, 3, 16
NORMAL = np.random.default_rng(0).standard_normal((BATCH, TOKENS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    ("added", "joined"),
    [
        (NORMAL[0], True),
        (NORMAL[:1], True),
        (NORMAL[:1, :1], True),  # the same to each token
        (NORMAL[:1, :, :1], True),  # and to each of its elements
        (np.stack([NORMAL[0]] * BATCH), True),
        (NORMAL, False),
    ],
)
def test_positions_of_a_fixed_batch(tmp_path: Path, added: NDArray[np.float32], joined: bool) -> None:
    weights = {"table": NORMAL.reshape(-1, WIDTH), "added": added, "scale": NORMAL[0, 0], "shift": NORMAL[0, 1]}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Add", ["words", "added"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["y"], name="norm"),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [BATCH, TOKENS])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, TOKENS, WIDTH])]
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "positions", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    layers = lower(load_model(tmp_path / "m.onnx", None), "fp32").layers
    found = [layer for layer in layers if layer.op == "embedding"]
    assert len(found) == joined
    if joined:
        wanted = np.broadcast_to(added, NORMAL.shape)[0]
        np.testing.assert_array_equal(found[0].weights["positions"], wanted)
