"""Weights in blocks of few bits (MatMulNBits) run as products of floats, and give ONNX Runtime's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import OnnxModel, load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering

ROWS, COLUMNS = 40, 24  # of the weight


def product(bits: int, block: int, middles: str, *, biased: bool = False, **attributes: int) -> onnx.ModelProto:
    """x times a weight of 40 rows; middles: "none", "packed" or "floats", the zero points of the blocks."""
    rng = np.random.default_rng(bits * block)
    blocks = -(-ROWS // block)
    constants: dict[str, NDArray[Any]] = {
        "w": rng.integers(0, 256, (COLUMNS, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, (COLUMNS, blocks)).astype(np.float32),
    }
    if middles == "packed":
        constants["z"] = rng.integers(0, 256, (COLUMNS, -(-blocks * bits // 8))).astype(np.uint8)
    elif middles == "floats":
        constants["z"] = rng.uniform(0, 1 << bits, (COLUMNS, blocks)).astype(np.float32)
    inputs = ["x", "w", "s", "z" if "z" in constants else ""]
    if biased:
        constants["b"] = rng.standard_normal(COLUMNS).astype(np.float32)
        inputs += ["", "b"]
    sizes = {"K": ROWS, "N": COLUMNS, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes, **attributes)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, size])
        for name, size in (("x", ROWS), ("y", COLUMNS))
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], tensors)
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def loaded(proto: onnx.ModelProto, folder: Path) -> OnnxModel:
    onnx.save(proto, folder / "net.onnx")
    return load_model(folder / "net.onnx", 4)


@pytest.mark.parametrize(
    ("bits", "block", "middles", "biased"),
    [
        (4, 32, "none", False),  # the last block is not full
        (4, 16, "packed", True),  # three zero points in two bytes
        (4, 32, "floats", False),
        (8, 16, "packed", False),
        (8, 32, "none", True),
        (2, 16, "packed", False),
    ],
)
def test_products(tmp_path: Path, bits: int, block: int, middles: str, biased: bool) -> None:
    lowering = Lowering(precision="fp32")
    lowering.model = loaded(product(bits, block, middles, biased=biased), tmp_path)
    for phase in LOWERING_PHASES:
        phase(lowering)
    assert [layer.op for layer in lowering.graph.layers] == ["matmul"]
    x = np.random.default_rng(1).standard_normal((2, 3, ROWS)).astype(np.float32)
    session = ort.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        run_graph(lowering.graph, {"x": x}, 2)[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4
    )


def test_products_that_share_a_weight(tmp_path: Path) -> None:
    proto = product(4, 16, "packed")
    again = onnx.NodeProto.FromString(proto.graph.node[0].SerializeToString())
    again.output[0] = "second"
    proto.graph.node.append(again)
    proto.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, ["n", 3, COLUMNS]))
    model = loaded(proto, tmp_path)
    assert {node.op_type for node in model.nodes} <= {"MatMul", "Identity"}
    assert [value.shape for value in model.initializers.values() if value.ndim == 2] == [(ROWS, COLUMNS)]


def test_rounded_operands_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    model = loaded(product(4, 32, "none", accuracy_level=4), tmp_path)
    assert [node.op_type for node in model.nodes] == ["OnnxRuntime"]
