"""Constants of 4 bits behind DequantizeLinear give ONNX Runtime's results, and run as weights of 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering
from veltair.errors import ModelError

node = helper.make_node


def model(kind: int, *, blocked: bool, bare: bool = False) -> onnx.ModelProto:
    """x times a weight of 4 bits: with blocks of 4 rows and floats before it, or with rounded ones and one scale.
    bare: the product reads the weight itself."""
    rng = np.random.default_rng(0)
    low = -8 if kind == TensorProto.INT4 else 0
    scales = np.float32(rng.uniform(0.02, 0.1, (2, 5))) if blocked else np.float32(0.05)
    middle = helper.make_tensor("z", kind, scales.shape, np.full(scales.size, low + 8).tolist())
    weights = [
        helper.make_tensor("w", kind, (8, 5), rng.integers(low, low + 16, 40).tolist()),
        numpy_helper.from_array(scales, "s"),
        middle,
        numpy_helper.from_array(np.float32(0.02), "t"),
        numpy_helper.from_array(np.uint8(128), "u"),
    ]
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["f"], **({"axis": 0, "block_size": 4} if blocked else {})),
        node("QuantizeLinear", ["x", "t", "u"], ["q"]),
        node("DequantizeLinear", ["q", "t", "u"], ["a"]),
        node("MatMul", ["x" if blocked else "a", "w" if bare else "f"], ["y"]),
    ]
    ports = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 8), ("y", 5)))
    graph = helper.make_graph(nodes, "net", [next(ports)], [next(ports)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("kind", "blocked"), [(TensorProto.INT4, False), (TensorProto.UINT4, True)], ids=["int4", "uint4 in blocks"]
)
def test_weights(tmp_path: Path, kind: int, blocked: bool, external: bool) -> None:
    path = tmp_path / "net.onnx"
    proto = model(kind, blocked=blocked)
    if external:  # only what is raw can be moved
        for tensor in proto.graph.initializer:
            if tensor.int32_data:
                tensor.raw_data = bytes(byte & 0xFF for byte in tensor.int32_data)
                tensor.ClearField("int32_data")
    onnx.save(proto, path, save_as_external_data=external, size_threshold=0)
    lowering = Lowering(precision="fp32")
    lowering.model = load_model(path, 4)
    for phase in LOWERING_PHASES:
        phase(lowering)
    assert any(layer.op == "matmul_int8" for layer in lowering.graph.layers) != blocked
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_graph(lowering.graph, {"x": x}, 3)[0], wanted, rtol=1e-5, atol=1e-5)


def test_data_that_does_not_fill_a_tensor(tmp_path: Path) -> None:
    proto = model(TensorProto.INT4, blocked=False)
    proto.graph.initializer[0].dims[0] = 1 << 40
    onnx.save(proto, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="'w': its data does not fill"):
        load_model(tmp_path / "net.onnx")


def test_another_reader_of_4_bits(tmp_path: Path) -> None:
    onnx.save(model(TensorProto.INT4, blocked=False, bare=True), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="'w' is of int4; expected floats"):
        load_model(tmp_path / "net.onnx")
