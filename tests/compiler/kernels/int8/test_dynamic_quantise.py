"""Steps of a tensor's own range are those of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering

SHIFTS = {"around zero": 0.0, "above": 5.0, "below": -5.0, "zeros": None}


def model(path: Path, shape: list[int | str]) -> Path:
    outputs = [("y", TensorProto.UINT8, shape), ("scale", TensorProto.FLOAT, []), ("zero", TensorProto.UINT8, [])]
    node = helper.make_node("DynamicQuantizeLinear", ["x"], [name for name, *_ in outputs])
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([node], "net", given, [helper.make_tensor_value_info(*each) for each in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("width", [1, 5, 16, 64, 8192, 2731])
def test_steps_scale_and_zero_point(tmp_path: Path, width: int, shift: str) -> None:
    path = model(tmp_path / "net.onnx", ["n", width])
    lowering = Lowering(precision="fp32")
    lowering.model = load_model(path, 4)
    for phase in LOWERING_PHASES:
        phase(lowering)
    assert "dynamic_quantise" in [layer.op for layer in lowering.graph.layers]
    batch, offset = 3, SHIFTS[shift]
    x = np.random.default_rng(width).standard_normal((batch, width)).astype(np.float32)
    x = np.zeros_like(x) if offset is None else x + np.float32(offset)
    x[-1, -1] *= 3  # the last value decides the range
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    steps, scale, zero = run_graph(lowering.graph, {"x": x}, batch)
    assert np.abs(steps.astype(int) - wanted[0].astype(int)).max() <= 1
    assert np.mean(steps != wanted[0]) < 0.01
    assert scale.reshape(()) == pytest.approx(wanted[1], rel=1e-6) and zero.reshape(()) == wanted[2]
