"""Small models quantised by ONNX Runtime's own tool, in each form that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

FORMS: dict[str, dict[str, Any]] = {
    "qdq": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8, "per_channel": True},
    # Steps around zero: a rounding stands before each activation and another behind it.
    "symmetric": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": True},
    },
    "signed": {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QInt8},
    "qlinear": {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8, "per_channel": True},
    # Their steps need 9 bits without the zero points.
    "unsigned": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
    },
    # Weights of 7 bits: their zero points are anywhere, and steps without them fit in int8.
    "reduced": {
        "quant_format": QuantFormat.QDQ,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QUInt8,
        "reduce_range": True,
    },
}


class _Feeds(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)


def quantise(path: Path, form: str) -> Path:
    """The model of a file with input x in one of FORMS, "dynamic", "dynamic_unsigned" or "dynamic_reduced"."""
    target = path.with_name(f"{path.stem}_{form}.onnx")
    if form.startswith("dynamic"):
        kind = QuantType.QInt8 if form == "dynamic" else QuantType.QUInt8
        products = ["Conv", "MatMul", "Gemm"]  # the tool leaves convolutions out where nobody asks
        reduced = form == "dynamic_reduced"
        quantize_dynamic(path, target, products, weight_type=kind, reduce_range=reduced)
        return target
    rng = np.random.default_rng(1)
    shape = [d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim][1:]
    feeds = [{"x": rng.standard_normal((2, *shape)).astype(np.float32)} for _ in range(3)]
    quantize_static(path, target, _Feeds(feeds), **{"weight_type": QuantType.QInt8, **FORMS[form]})
    return target


def save(
    path: Path, nodes: Sequence[onnx.NodeProto], weights: dict[str, Any], takes: Any, gives: Any, opset: int = 17
) -> Path:
    """A model with input x and output y. takes, gives: shapes, or pairs of an element type and a shape."""

    def port(name: str, described: Any) -> onnx.ValueInfoProto:
        kind, shape = described if isinstance(described, tuple) else (TensorProto.FLOAT, described)
        return helper.make_tensor_value_info(name, kind, shape)

    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", [port("x", takes)], [port("y", gives)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def image_net(path: Path) -> Path:
    """Strided, dense, pointwise and depthwise convolutions, a residual sum, both kinds of pools, a dense layer."""
    rng, node = np.random.default_rng(0), helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 2], pads=[3, 3, 3, 3]),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b0"], ["c2"]),
        node("Add", ["c2", "p0"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("Conv", ["r2", "w3", "b0"], ["c3"], pads=[1, 1, 1, 1], group=20),
        node("Clip", ["c3", "low", "high"], ["r3"]),
        node("GlobalAveragePool", ["r3"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    shapes = {
        "w0": (20, 3, 7, 7),
        "b0": (20,),
        "w1": (33, 20, 3, 3),
        "b1": (33,),
        "w2": (20, 33, 1, 1),
        "w3": (20, 1, 3, 3),
        "w4": (10, 20),
        "b4": (10,),
    }
    weights: dict[str, Any] = {k: (rng.standard_normal(s) * 0.2).astype(np.float32) for k, s in shapes.items()}
    weights |= {"low": np.float32(0), "high": np.float32(6)}
    return save(path, nodes, weights, ["n", 3, 26, 26], ["n", 10])


def grouped_net(path: Path) -> Path:
    """Groups that fill vectors and that do not, strided, pointwise, and with two outputs for each input."""
    rng, node = np.random.default_rng(0), helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], group=6, pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], group=3),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], group=48, pads=[1, 1, 1, 1]),
        node("Softsign", ["c2"], ["y"]),
    ]
    shapes = {"w0": (96, 4, 3, 3), "b0": (96,), "w1": (48, 32, 1, 1), "w2": (96, 1, 3, 3), "b2": (96,)}
    weights = {k: (rng.standard_normal(s) * 0.2).astype(np.float32) + np.float32(0.1) for k, s in shapes.items()}
    return save(path, nodes, weights, ["n", 24, 8, 7], ["n", 96, 4, 4])


def dense_net(path: Path) -> Path:
    rng, node = np.random.default_rng(0), helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"]),
        node("Add", ["m0", "b0"], ["a0"]),
        node("Relu", ["a0"], ["r0"]),
        node("MatMul", ["r0", "w1"], ["m1"]),
        node("Add", ["m1", "b1"], ["y"]),
    ]
    shapes = {"w0": (50, 70), "b0": (70,), "w1": (70, 18), "b1": (18,)}
    weights = {k: (rng.standard_normal(s) * 0.2).astype(np.float32) for k, s in shapes.items()}
    return save(path, nodes, weights, ["n", 50], ["n", 18])
