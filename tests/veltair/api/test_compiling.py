"""`compile`: what comes in, and the same answers as ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import veltair
from veltair.errors import ModelError


def dense() -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "dense", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.slow
def test_a_model_in_memory(tmp_path: Path) -> None:
    told: list[tuple[str, float, float | None]] = []
    artifact = veltair.compile(
        dense(),
        tmp_path / "out",
        qos_ms=20.0,
        trials=0,
        precision="fp32",
        max_batch=4,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert (artifact.manifest.model, artifact.manifest.qos_ns) == ("dense", 20_000_000)
    assert {what for what, _, _ in told} >= {"build and check", "pack weights"}
    x = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32)
    [expected] = onnxruntime.InferenceSession(dense().SerializeToString()).run(None, {"x": x})
    with veltair.load(artifact) as model:
        np.testing.assert_allclose(model(x)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (7, {}, "expected a path, an onnx.ModelProto or a torch.nn.Module, found int"),
        ("none.onnx", {}, "none.onnx"),
        ("none.onnx", {"qos_ms": 0}, "qos_ms: expected a positive number of milliseconds, found 0"),
    ],
)
def test_what_cannot_be_compiled(tmp_path: Path, model: object, options: dict[str, float], expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        veltair.compile(model, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
