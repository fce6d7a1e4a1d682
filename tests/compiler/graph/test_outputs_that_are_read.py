"""An output in blocks that a layer of generated code reads row-major, before a layer of ours reads it in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from quantised_models import save
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

node = helper.make_node
rng = np.random.default_rng(0)


def weight(*shape: int) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


READERS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "activation": ([node("Sigmoid", ["c"], ["y"])], {}),
    "pointwise convolution": ([node("Conv", ["c", "v"], ["y"])], {"v": weight(16, 16, 1, 1)}),
    "convolution with a halo": ([node("Conv", ["c", "v"], ["y"], pads=[1] * 4)], {"v": weight(16, 16, 3, 3)}),
    "pool": ([node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)], {}),
    "residual": ([node("Conv", ["x", "v"], ["e"]), node("Add", ["e", "c"], ["y"])], {"v": weight(16, 3, 1, 1)}),
    "view": (
        [node("Flatten", ["c"], ["f"]), node("Sin", ["f"], ["g"]), node("Reshape", ["g", "shape"], ["y"])],
        {"shape": np.array([0, 16, 7, 7])},
    ),
    "concatenation": (
        [node("Concat", ["c", "c"], ["e"], axis=1), node("Conv", ["e", "v"], ["y"])],
        {"v": weight(16, 32, 1, 1)},
    ),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("reader", READERS)
def test_both_read_what_was_computed(tmp_path: Path, reader: str, precision: str) -> None:
    """They read the wrong one of the two, which has as many elements."""
    behind, weights = READERS[reader]
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), *behind, node("CumSum", ["c", "axis"], ["d"])]
    shape = ["n", 16, 7, 7]
    constants = weights | {"w": weight(16, 3, 3, 3), "axis": np.array(2)}
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 3, 7, 7], shape)
    proto = onnx.load(path)
    for name in ("c", "d"):
        proto.graph.output.insert(0, helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    onnx.save(proto, path)
    model = load_model(path, 4)
    operators = [each.op_type for each in model.nodes]
    assert operators.index("CumSum") < len(operators) - 1
    x = rng.standard_normal((2, 3, 7, 7)).astype(np.float32)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    for found, right in zip(run_graph(lower(model, precision), {"x": x}, 2), wanted, strict=True):
        assert found.shape == right.shape
        assert np.abs(found - right).max() <= tolerance * np.abs(right).max()
