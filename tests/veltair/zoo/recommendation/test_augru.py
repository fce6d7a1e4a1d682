"""The Scan that stands for AUGRU computes DIEN's recurrence."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from veltair.zoo.recommendation.augru import augru

ROWS, STEPS, INPUTS, HIDDEN = 3, 7, 5, 4


def test_scan_computes_augru() -> None:
    rng = np.random.default_rng(1)
    made = augru("interest", "x", "a", INPUTS, HIDDEN, rng)
    given = [("x", INPUTS), ("a", 1)]
    graph = helper.make_graph(
        list(made.nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", STEPS, width]) for n, width in given],
        [
            helper.make_tensor_value_info(made.states, TensorProto.FLOAT, ["n", STEPS, HIDDEN]),
            helper.make_tensor_value_info(made.last, TensorProto.FLOAT, ["n", HIDDEN]),
        ],
        list(made.initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    x = rng.standard_normal((ROWS, STEPS, INPUTS), dtype=np.float32)
    a = rng.random((ROWS, STEPS, 1), dtype=np.float32)
    states, last = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "a": a})

    body = next(helper.get_attribute_value(b) for b in made.nodes[-1].attribute if b.name == "body")
    weights = {t.name.removeprefix("interest.cell."): numpy_helper.to_array(t) for t in body.initializer}
    h = np.zeros((ROWS, HIDDEN))
    for t in range(STEPS):
        gates = 1 / (1 + np.exp(-np.hstack([x[:, t], h]) @ weights["gates.weight"] - weights["gates.bias"]))
        r, u = gates[:, :HIDDEN], gates[:, HIDDEN:]
        c = np.tanh(np.hstack([x[:, t], r * h]) @ weights["candidate.weight"] + weights["candidate.bias"])
        u = (1 - a[:, t]) * u
        h = u * h + (1 - u) * c
        np.testing.assert_allclose(states[:, t], h, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(last, states[:, -1])
