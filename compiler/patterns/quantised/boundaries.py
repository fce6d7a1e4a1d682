"""Where floats become 8-bit integers and back."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.quantised import ReorderParameters
from veltair.compiler.patterns.quantised.quantum import REORDERS, quantum_of

READ_ROWS = REORDERS | {"Gemm", "LayerNormalization", "MatMul", "Softmax"}  # also of a tensor with four axes


def channels_last(name: str, view: ModelView, builder: GraphBuilder) -> Activation:
    """A tensor (N, C, H, W) of 8 bits with its channels last: in one block of all of them."""
    tensor = builder.tensor(name)
    if tensor.block:
        return tensor
    twin = f"{name}/channels_last"
    if twin not in builder.tensors:
        blocked = Activation(twin, tensor.dtype, tensor.shape, tensor.shape[1])
        builder.emit(twin, "reorder", [tensor], [blocked], ReorderParameters())
    return builder.tensors[twin]


def quantise(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Floats rounded to steps."""
    quantum, shape = quantum_of(node, view), view.shape_of(node.output[0])
    if quantum is None or node.input[0] in view.constants or view.values[node.input[0]].dtype != "float32":
        return False
    if not shape:
        return False
    x = builder.to_row_major(node.input[0])
    blocked = view.is_map(node.output[0]) and not _is_read_as_rows(node.output[0], view)
    y = Activation(node.output[0], quantum.dtype, shape, shape[1] if blocked else 0)
    builder.emit(node.name, "quantise", [x], [y], ReorderParameters(), {"output": quantum.array})
    return True


def _is_read_as_rows(name: str, view: ModelView) -> bool:
    """Whether none of those who read steps, or their floats, takes them for a feature map."""
    users = view.users_of(name)
    floats = [user.output[0] for user in users if user.op_type == "DequantizeLinear"]
    readers = [user for user in users if user.op_type != "DequantizeLinear"]
    return all(user.op_type in READ_ROWS for user in [*readers, *(u for each in floats for u in view.users_of(each))])


def dequantise(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Floats of steps, for those who read them: products of integers do not."""
    quantum, shape = quantum_of(node, view), view.shape_of(node.output[0])
    if quantum is None or node.input[0] in view.constants:
        return False
    if not shape or view.values[node.output[0]].dtype != "float32":
        return False
    x = builder.tensor(node.input[0])
    y = Activation(node.output[0], "float32", shape)
    builder.emit(node.name, "dequantise", [x], [y], ReorderParameters(), {"input": quantum.array})
    return True


def dynamic_quantise(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Floats rounded to steps of their own range, with the scale and the zero point that follow from it."""
    given, (steps, scale, zero) = node.input[0], node.output
    shape = view.shape_of(given)
    if not shape or given in view.constants or view.values[given].dtype != "float32":
        return False
    numbers = Activation(f"{scale}/number", "float32", (1,)), Activation(f"{zero}/number", "uint8", (1,))
    outputs = [Activation(steps, "uint8", shape), *numbers]
    builder.emit(node.name, "dynamic_quantise", [builder.to_row_major(given)], outputs, ReorderParameters())
    for name, number in zip((scale, zero), numbers, strict=True):
        builder.alias(Activation(name, number.dtype, view.shape_of(name)), number.name)
    return True
