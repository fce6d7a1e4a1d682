"""Whole small models, lowered, planned into an arena and run: equal to ONNX Runtime on the original file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
import tvm_ffi
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.arena import plan
from veltair.compiler.ir import Activation
from veltair.compiler.kernels.spaces import SPACES
from veltair.compiler.lower import lower
from veltair.compiler.onnx_model import load
from veltair.errors import ModelError
from veltair.machine import features, tvm_target
from veltair.profiles.executor import empty, permit_tiles

Arrays = dict[str, NDArray[Any]]
random = np.random.default_rng(3)


def normal(*shape: int) -> NDArray[np.float32]:
    return (random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


class Net:
    """A little ONNX writer."""

    def __init__(self, **inputs: list[Any]) -> None:
        self.inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [name], name=name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def save(self, path: Path, *outputs: str) -> Path:
        found = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, found, self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def run(path: Path, feeds: Arrays, precision: str, batch: int = 1, max_batch: int = 4) -> tuple[list[Any], list[str]]:
    """Outputs of every layer's default version, and the layers' operators."""
    graph = lower(load(path, max_batch), precision)
    arena = plan(graph)
    functions, kernels = {}, []
    for layer in graph.layers:
        space = SPACES[layer.op]
        kernels.append(space.build(layer, space.points(layer, features())[0], features()))
        functions[layer.symbol] = kernels[-1].function.with_attr("global_symbol", layer.symbol)
    library = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(tvm_target()))
    if precision == "bf16":
        permit_tiles()
    memory = empty((arena.bytes,), "uint8")

    def real(shape: tuple[int, ...]) -> list[int]:
        return [-d * batch if d < 0 else d for d in shape]

    inputs = [empty(real(p.shape), p.dtype) for p in graph.inputs]
    for port, array in zip(graph.inputs, inputs, strict=True):
        array[...] = feeds[port.name]
    outputs = [empty(real(p.shape), p.dtype) for p in graph.outputs]

    def view(tensor: Activation) -> Any:
        place, shape = arena.places[tensor.name], real(tensor.physical)
        if place.kind != "arena":
            return tvm_ffi.from_dlpack((inputs if place.kind == "input" else outputs)[place.offset].reshape(shape))
        size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
        return tvm_ffi.from_dlpack(memory[place.offset : place.offset + size].view(tensor.dtype).reshape(shape))

    for _ in range(2):  # the second run finds what the first one left in the arena
        for layer, kernel in zip(graph.layers, kernels, strict=True):
            weights = []
            for weight in kernel.weights:
                copy = empty(weight.shape, str(weight.dtype))
                copy[...] = weight
                weights.append(tvm_ffi.from_dlpack(copy))
            library[layer.symbol](*map(view, layer.inputs), *weights, *map(view, layer.outputs))
    return outputs, [layer.op for layer in graph.layers]


def residual_net(net: Net, channels: int = 24) -> tuple[str, ...]:
    x = net("Relu", net("Conv", "x", normal(channels, 3, 5, 5), normal(channels), strides=[2, 2], pads=[2, 2, 2, 2]))
    y = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    z = net("Conv", y, normal(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    z = net("Relu", net("Add", net("Conv", z, normal(channels, channels, 1, 1)), y))
    z = net(
        "Clip",
        net("Conv", z, normal(channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels),
        np.float32(0),
        np.float32(6),
    )
    z = net("Flatten", net("GlobalAveragePool", z))
    return (net("Softmax", net("Gemm", z, normal(10, channels), normal(10), transB=1)),)


def inception_net(net: Net) -> tuple[str, ...]:
    x = net("Relu", net("Conv", "x", normal(32, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]))
    parts = [net("Relu", net("Conv", x, normal(32, 32, 1, 1))), net("Conv", x, normal(64, 32, 3, 3), pads=[1, 1, 1, 1])]
    joined = net("Concat", *parts, net("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=1)
    scaled = net("BatchNormalization", joined, *(abs(normal(128)) + 0.5 for _ in range(4)))
    grouped = net("Conv", net("LRN", net("Relu", scaled), size=5), normal(16, 32, 1, 1), group=4)
    return net("GlobalAveragePool", grouped), net("Sum", grouped, grouped)


def odd_net(net: Net) -> tuple[str, ...]:
    """Nothing that has a kernel of its own but two; views, transposes, reductions, an input handed through."""
    t = net("Transpose", "x", perm=[0, 2, 3, 1])
    rows = net("Reshape", t, np.array([0, -1, 3]))
    product = net("Add", net("MatMul", rows, normal(3, 7)), normal(7))
    picked = net("Gather", product, np.array([0, -1, 2]), axis=1)
    return (
        net("Tanh", net("ReduceMean", picked, axes=[2], keepdims=0)),
        net("Identity", "x"),
        net("Mul", product, product),
    )


NETS: dict[str, Callable[[Net], tuple[str, ...]]] = {
    "residual": residual_net, "inception": inception_net, "odd": odd_net,
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_equal_to_onnx_runtime(tmp_path: Path, name: str, batch: int, precision: str) -> None:
    if precision == "bf16" and "amx_bf16" not in features():
        pytest.skip("this CPU has no AMX bfloat16 tiles")
    net = Net(x=["n" if batch > 1 else 1, 3, 21, 26])
    path = net.save(tmp_path / "net.onnx", *NETS[name](net))
    feeds = {"x": normal(batch, 3, 21, 26) * 10}
    outputs, operators = run(path, feeds, precision, batch)
    expected = ort.InferenceSession(str(path)).run(None, feeds)
    for found, wanted in zip(outputs, expected, strict=True):
        assert np.abs(found - wanted).max() <= (1e-5 if precision == "fp32" else 3e-2) * np.abs(wanted).max()
    if name == "residual":
        assert "elementwise" not in operators  # sum and activation ride on the convolution


def test_operators_that_nobody_can_take_are_named(tmp_path: Path) -> None:
    net = Net(x=[1, 3, 4, 4])
    net("NonZero", "x")
    shape = net("Unique", "x")
    with pytest.raises(ModelError, match=r"Unique|NonZero"):
        lower(load(net.save(tmp_path / "net.onnx", shape)), "fp32")


def test_computed_indices_are_only_taken_where_they_are_checked(tmp_path: Path) -> None:
    net = Net(x=[4, 3])
    index = net("Cast", "x", to=TensorProto.INT64)
    y = net("GatherElements", normal(4, 3), index, axis=0)
    with pytest.raises(ModelError, match="GatherElements"):
        lower(load(net.save(tmp_path / "net.onnx", y)), "fp32")
