"""Products of computed matrices, with the transposes before them and the scale behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.epilogue import Epilogue
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.lowering import Lowering
from veltair.compiler.onnx.node_attributes import attribute, times
from veltair.compiler.patterns.matmul import narrow_rows, read_by_products


@dataclass(frozen=True, slots=True)
class Product:
    """Both sides as they lie in memory, and the transposes that make (…, M, K) and (…, K, N) of them."""

    left: str
    left_order: tuple[int, ...]
    right: str
    right_order: tuple[int, ...]


def find_products(lowering: Lowering) -> None:
    """Mark the transposes that are read by one product alone: they become part of its addressing."""
    for node in lowering.model.nodes:
        if node.op_type not in ("MatMul", "Gemm") or id(node) in lowering.done or id(node) in lowering.patterns:
            continue
        if not _suits(node, lowering):
            continue
        (left, left_order), (right, right_order) = (
            _source(name, attribute(node, flag, 0), lowering)
            for name, flag in zip(node.input[:2], ("transA", "transB"), strict=True)
        )
        if lowering.shape_of(node.output[0])[-1] == 1:  # one column: the product of the transposes has one row
            left, left_order, right, right_order = right, _swapped(right_order), left, _swapped(left_order)
        lowering.patterns[id(node)] = Product(left, left_order, right, right_order)


def batched_matmul(node: onnx.NodeProto, lowering: Lowering) -> bool:
    found = lowering.patterns.get(id(node))
    if not isinstance(found, Product):
        return False
    out = lowering.shape_of(node.output[0])
    width = out[-1]
    bias: NDArray[Any] = np.zeros(width, np.float32)
    scale = 1.0
    if node.op_type == "Gemm":
        scale = float(attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            bias = bias + lowering.constants[node.input[2]].reshape(-1) * np.float32(attribute(node, "beta", 1.0))
    shape = out if width > 1 else (*out[:-2], 1, out[-2])
    end = node
    user = lowering.only_user(node.output[0])
    factor = _factor(user, lowering)
    if user is not None and factor and not bias.any():
        scale, end = scale * factor, user
        lowering.done.add(id(user))
    epilogue = Epilogue.behind(end, lowering, residual=False, bias=width > 1)
    if epilogue.bias is not None:
        bias = bias + epilogue.bias
    lowering.done.update(epilogue.swallowed)
    narrow = lowering.dtype == "uint16"
    weights: dict[str, NDArray[np.float32]] = {}
    inputs = []
    for side, name in (("left", found.left), ("right", found.right)):
        if name in lowering.constants:
            weights[side] = np.ascontiguousarray(lowering.constants[name], np.float32)
        else:
            inputs.append(lowering.rows(name) if narrow else lowering.plain(name))
    weights["bias"] = np.broadcast_to(np.asarray(bias, np.float32), shape[-1:]).copy()
    attributes = {
        "left_order": found.left_order, "right_order": found.right_order,
        "constant": ",".join(side for side in ("left", "right") if side in weights),
        "scale": scale, "activation": epilogue.activation,
    }  # fmt: skip
    halved = narrow_rows(times(out[:-1]), lowering) and read_by_products(epilogue.output, lowering)
    dtype = "uint16" if halved else "float32"
    y = Activation(epilogue.output if shape == out else f"{epilogue.output}/row", dtype, shape)
    source = lowering.shape_of(found.left)
    flops = 2 * int(np.prod(np.abs(out))) * abs(source[found.left_order[-1]])
    op = "batched_matmul_bf16" if narrow else "batched_matmul"
    lowering.emit(lowering.spec(node.name, op, inputs, [y], attributes, weights, flops))
    if shape != out:
        lowering.add_view(Activation(epilogue.output, dtype, out), y.name)
    return True


def _suits(node: onnx.NodeProto, lowering: Lowering) -> bool:
    """Two floating-point sides, at least one computed and no plain dense layer, of extents that are known."""
    sides = list(node.input[:2])
    constant = [name in lowering.constants for name in sides]
    shapes = [lowering.shape_of(name) for name in sides]
    dense = constant[1] and len(shapes[1]) == 2 and not attribute(node, "transA", 0)
    if all(constant) or dense or min(map(len, shapes)) < 2:
        return False
    if any(lowering.model.values[name].dtype != "float32" for name in sides):
        return False
    if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]:
        added = lowering.constants.get(node.input[2])
        if added is None or (added.size > 1 and added.shape[-1:] != (added.size,)):  # one for each column
            return False
    out = lowering.shape_of(node.output[0])
    depth = shapes[0][-2 if attribute(node, "transA", 0) else -1]
    return depth > 0 and out[-1] > 0 and (out[-2] > 0 or out[-1] > 1) and all(out)


def _source(name: str, flag: int, lowering: Lowering) -> tuple[str, tuple[int, ...]]:
    """The tensor behind a transpose that nothing else reads, and the order of its dimensions that a product wants."""
    rank = len(lowering.shape_of(name))
    order = tuple(range(rank))
    maker = lowering.makers.get(name)
    alone = maker is not None and lowering.only_user(name) is not None and id(maker) not in lowering.done
    if maker is not None and alone and maker.op_type == "Transpose" and maker.input[0] not in lowering.constants:
        order = tuple(attribute(maker, "perm", list(reversed(order))))
        lowering.done.add(id(maker))
        name = maker.input[0]
    return name, _swapped(order) if flag else order


def _swapped(order: tuple[int, ...]) -> tuple[int, ...]:
    return (*order[:-2], order[-1], order[-2])


def _factor(node: onnx.NodeProto | None, lowering: Lowering) -> float:
    """What a node multiplies a computed tensor by, if it is one number; else 0."""
    if node is None or node.op_type not in ("Mul", "Div"):
        return 0.0
    constants = [lowering.constants[name] for name in node.input if name in lowering.constants]
    if len(constants) != 1 or constants[0].size != 1 or constants[0].ndim > len(lowering.shape_of(node.output[0])):
        return 0.0
    value = float(constants[0].reshape(()))
    if node.op_type == "Mul":
        return value
    return 1 / value if value and node.input[1] in lowering.constants else 0.0
