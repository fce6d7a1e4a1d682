"""Little ONNX models, and running them as an artifact would: lowered, planned into an arena, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tvm_ffi
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from run_kernels import OLDER_CPUS, build_kernel, require_features

from veltair.compiler.arena import plan_arena
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.machine.isa import cpu_features
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros, permit_tiles

Arrays = dict[str, NDArray[Any]]
# How a net may be lowered and run: the precision, the CPU that the code is for, and what it takes.
WAYS = {
    "fp32": ("fp32", "", frozenset({"avx2"})),
    "bf16": ("bf16", "", frozenset({"amx_bf16"})),
    "dots": ("bf16", "cooperlake", OLDER_CPUS["cooperlake"]),
}
random = np.random.default_rng(3)


def normal(*shape: int) -> NDArray[np.float32]:
    return (random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: tuple[str, ...],
    constants: dict[str, NDArray[Any]],
) -> Path:
    """A model of these nodes; inputs are float32 except for `lengths`."""
    ports = [
        helper.make_tensor_value_info(n, TensorProto.INT32 if n == "lengths" else TensorProto.FLOAT, shape)
        for n, shape in inputs.items()
    ]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", ports, made, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


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

    def split(self, whole: str, count: int, axis: int) -> list[str]:
        """Equal pieces of a tensor."""
        names = [f"Split{len(self.nodes)}/{i}" for i in range(count)]
        self.nodes.append(helper.make_node("Split", [whole], names, name=names[0], axis=axis))
        return names

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def save(self, path: Path, *outputs: str) -> Path:
        found = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, found, self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def run(
    path: Path, feeds: Arrays, way: str, batch: int = 1, max_batch: int = 4, tables: TableStorage | None = None
) -> tuple[list[Any], list[str]]:
    """Outputs of every layer's default version, and the layers' operators."""
    precision, mcpu, wanted = WAYS[way]
    require_features(wanted, f"{precision} in {'dot products' if mcpu else 'its best units'}")
    graph = lower(load_model(path, max_batch), precision, storage=tables)
    arena = plan_arena(graph)
    used = OLDER_CPUS.get(mcpu, cpu_features())
    kernels = [build_kernel(layer, SPACES[layer.op].points(layer, used)[0], mcpu) for layer in graph.layers]
    if "amx_bf16" in used:
        permit_tiles()
    memory = aligned_zeros((arena.bytes,), "uint8")

    inputs = [aligned_zeros(port.at(batch), port.dtype) for port in graph.inputs]
    for port, array in zip(graph.inputs, inputs, strict=True):
        array[...] = feeds[port.name]
    outputs = [aligned_zeros(port.at(batch), port.dtype) for port in graph.outputs]

    def view(tensor: Activation) -> Any:
        place, shape = arena.allocations[tensor.name], tensor.at(batch)
        if place.kind != "arena":
            return tvm_ffi.from_dlpack((inputs if place.kind == "input" else outputs)[place.offset].reshape(shape))
        size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
        return tvm_ffi.from_dlpack(memory[place.offset : place.offset + size].view(tensor.dtype).reshape(shape))

    for _ in range(2):  # the second run finds what the first one left in the arena
        for layer, (kernel, function) in zip(graph.layers, kernels, strict=True):
            weights = [tvm_ffi.from_dlpack(aligned_copy(weight)) for weight in kernel.weights]
            function.result()(*map(view, layer.inputs), *weights, *map(view, layer.outputs))
    return outputs, [layer.op for layer in graph.layers]


def agree(path: Path, outputs: tuple[str, ...], net: Net, way: str, *shape: int) -> list[str]:
    """Run a net on random input beside ONNX Runtime; the operators of its layers."""
    model = net.save(path / "net.onnx", *outputs)
    feeds = {"x": normal(*shape) * 10}
    found, operators = run(model, feeds, way, shape[0])
    for ours, theirs in zip(found, ort.InferenceSession(str(model)).run(None, feeds), strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= (1e-5 if way == "fp32" else 3e-2) * np.abs(theirs).max()
    return operators
