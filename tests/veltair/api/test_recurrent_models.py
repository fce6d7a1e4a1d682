"""Recurrent networks as PyTorch and Keras export them: compiled without search, served, equal to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import veltair

GATES = {"GRU": 3, "LSTM": 4}
STEPS, WIDTH, HIDDEN = 6, 8, 20
random = np.random.default_rng(5)


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]], inputs: dict[str, int], y: list[Any]
) -> onnx.ModelProto:
    """inputs: their types; "lengths" is [n], and others are [n, STEPS, WIDTH]."""
    shapes = {name: ["n"] if name == "lengths" else ["n", STEPS, WIDTH] for name in inputs}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in inputs.items()],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(kind: str, width: int, count: int, layer: int = 0) -> dict[str, NDArray[Any]]:
    shapes = {"w": (GATES[kind] * HIDDEN, width), "r": (GATES[kind] * HIDDEN, HIDDEN), "b": (2 * GATES[kind] * HIDDEN,)}
    return {f"{n}{layer}": random.uniform(-0.3, 0.3, (count, *s)).astype(np.float32) for n, s in shapes.items()}


def pytorch(kind: str) -> onnx.ModelProto:
    """Two layers in both directions over a batch-first sequence, then a linear layer over the last step."""
    states = ["zeros"] * (2 if kind == "LSTM" else 1)
    constants = weights(kind, WIDTH, 2) | weights(kind, 2 * HIDDEN, 2, 1)
    constants |= {
        "axis": np.array([0]),
        "first": np.array(0),
        "two": np.array([2]),
        "hidden": np.array([HIDDEN]),
        "zero": np.zeros((1, 1, HIDDEN), np.float32),
        "merged": np.array([0, 0, -1]),
        "minus": np.array(-1),
        "out": random.standard_normal((2 * HIDDEN, 3), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axis"], ["batch"]),
        helper.make_node("Concat", ["two", "batch", "hidden"], ["sizes"], axis=0),
        helper.make_node("Expand", ["zero", "sizes"], ["zeros"]),
        helper.make_node("Transpose", ["x"], ["t0"], perm=[1, 0, 2]),
    ]
    for layer in range(2):
        given = [f"t{layer}", *(f"{name}{layer}" for name in "wrb"), "", *states]
        made = [f"y{layer}", f"h{layer}", f"c{layer}"][: 1 + len(states)]
        attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
        nodes += [
            helper.make_node(kind, given, made, hidden_size=HIDDEN, direction="bidirectional", **attributes),
            helper.make_node("Transpose", [f"y{layer}"], [f"s{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"s{layer}", "merged"], [f"t{layer + 1}"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["t2"], ["all"], perm=[1, 0, 2]),
        helper.make_node("Gather", ["all", "minus"], ["end"], axis=1),
        helper.make_node("MatMul", ["end", "out"], ["z"]),
    ]
    return model(nodes, constants, {"x": TensorProto.FLOAT}, ["n", 3])


def keras() -> onnx.ModelProto:
    """Both directions are nodes of their own, of which the second has reversed time, with lengths."""
    constants = weights("LSTM", WIDTH, 1) | weights("LSTM", WIDTH, 1, 1) | {"axis": np.array([1])}
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])]
    for layer, direction in enumerate(("forward", "reverse")):
        given = ["t", *(f"{name}{layer}" for name in "wrb"), "lengths"]
        nodes += [
            helper.make_node("LSTM", given, [f"y{layer}"], hidden_size=HIDDEN, direction=direction),
            helper.make_node("Squeeze", [f"y{layer}", "axis"], [f"s{layer}"]),
            helper.make_node("Transpose", [f"s{layer}"], [f"u{layer}"], perm=[1, 0, 2]),
        ]
    nodes.append(helper.make_node("Concat", ["u0", "u1"], ["z"], axis=2))
    inputs = {"x": TensorProto.FLOAT, "lengths": TensorProto.INT32}
    return model(nodes, constants, inputs, ["n", STEPS, 2 * HIDDEN])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LSTM", "GRU", "keras"])
def test_exports_are_served(tmp_path: Path, name: str) -> None:
    proto = keras() if name == "keras" else pytorch(name)
    artifact = veltair.compile(proto, tmp_path / "out", trials=0, precision="fp32", max_batch=4)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    with veltair.load(artifact) as served:
        for rows in (1, 3):
            feeds: dict[str, Any] = {"x": random.standard_normal((rows, STEPS, WIDTH), dtype=np.float32)}
            if name == "keras":
                feeds["lengths"] = random.integers(1, STEPS + 1, rows).astype(np.int32)
            [expected] = session.run(None, feeds)
            np.testing.assert_allclose(served(feeds)["z"], expected, rtol=1e-4, atol=1e-5)
