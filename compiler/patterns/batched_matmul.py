"""Products of computed matrices, with the transposes before them and the scale behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.epilogue import Epilogue
from veltair.compiler.patterns.matmul import multiplies_in_bf16, readable_as_bf16


@dataclass(frozen=True, slots=True)
class BatchedMatmulMatch:
    """Both operands as they lie in memory, and the transposes that make (…, M, K) and (…, K, N) of them.

    >>> BatchedMatmulMatch("q", (0, 1, 2), "k", (0, 2, 1)).right_order
    (0, 2, 1)
    """

    left: str
    left_order: tuple[int, ...]
    right: str
    right_order: tuple[int, ...]


def find_batched_matmuls(view: ModelView) -> Matches:
    """Match the products of computed matrices. Transposes that only they read become part of their addressing."""
    matches = Matches()
    for node in view.nodes:
        if node.op_type not in ("MatMul", "Gemm") or not view.matches.is_free(node):
            continue
        if not _is_batched_matmul(node, view):
            continue
        (left, left_order), (right, right_order) = (
            _untransposed(name, attribute(node, flag, 0), view, matches)
            for name, flag in zip(node.input[:2], ("transA", "transB"), strict=True)
        )
        if view.shape_of(node.output[0])[-1] == 1:  # one column: the product of the transposes has one row
            left, left_order, right, right_order = (
                right,
                _swap_last_axes(right_order),
                left,
                _swap_last_axes(left_order),
            )
        matches.add(node, BatchedMatmulMatch(left, left_order, right, right_order))
    return matches


def batched_matmul(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    found = view.matches.at(node, BatchedMatmulMatch)
    if found is None:
        return False
    out = view.shape_of(node.output[0])
    width = out[-1]
    bias: NDArray[Any] = np.zeros(width, np.float32)
    scale = 1.0
    if node.op_type == "Gemm":
        scale = float(attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            bias = bias + view.constants[node.input[2]].reshape(-1) * np.float32(attribute(node, "beta", 1.0))
    shape = out if width > 1 else (*out[:-2], 1, out[-2])
    end = node
    user = view.free_user(node.output[0])
    factor = _constant_factor(user, view)
    if user is not None and factor and not bias.any():
        scale, end = scale * factor, user
        builder.take([user])
    epilogue = Epilogue.behind(end, view, builder, residual=False, bias=width > 1)
    if epilogue.bias is not None:
        bias = bias + epilogue.bias
    builder.take(epilogue.swallowed)
    narrow = view.dtype == "uint16"
    weights: dict[str, NDArray[np.float32]] = {}
    inputs = []
    for side, name in (("left", found.left), ("right", found.right)):
        if name in view.constants:
            weights[side] = np.ascontiguousarray(view.constants[name], np.float32)
        else:
            inputs.append(builder.rows(name) if narrow else builder.to_row_major(name))
    weights["bias"] = np.broadcast_to(np.asarray(bias, np.float32), shape[-1:]).copy()
    constant = ",".join(side for side in ("left", "right") if side in weights)
    parameters = BatchedMatmulParameters(found.left_order, found.right_order, constant, scale, epilogue.activation)
    halved = multiplies_in_bf16(product_of(out[:-1]), view) and readable_as_bf16(epilogue.output, view)
    dtype = "uint16" if halved else "float32"
    y = Activation(epilogue.output if shape == out else f"{epilogue.output}/row", dtype, shape)
    source = view.shape_of(found.left)
    flops = 2 * int(np.prod(np.abs(out))) * abs(source[found.left_order[-1]])
    op = "batched_matmul_bf16" if narrow else "batched_matmul"
    builder.emit(node.name, op, inputs, [y], parameters, weights, flops)
    if shape != out:
        builder.alias(Activation(epilogue.output, dtype, out), y.name)
    return True


def _is_batched_matmul(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a node multiplies float tensors of known extents, at least one computed, and is no dense layer."""
    sides = list(node.input[:2])
    constant = [name in view.constants for name in sides]
    shapes = [view.shape_of(name) for name in sides]
    dense = constant[1] and len(shapes[1]) == 2 and not attribute(node, "transA", 0)
    if all(constant) or dense or min(map(len, shapes)) < 2:
        return False
    if any(view.values[name].dtype != "float32" for name in sides):
        return False
    if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]:
        added = view.constants.get(node.input[2])
        if added is None or (added.size > 1 and added.shape[-1:] != (added.size,)):  # one for each column
            return False
    out = view.shape_of(node.output[0])
    depth = shapes[0][-2 if attribute(node, "transA", 0) else -1]
    return depth > 0 and out[-1] > 0 and (out[-2] > 0 or out[-1] > 1) and all(out)


def _untransposed(name: str, flag: int, view: ModelView, matches: Matches) -> tuple[str, tuple[int, ...]]:
    """The operand without the transpose that only the product reads, and the order of axes that the product needs."""
    rank = len(view.shape_of(name))
    order = tuple(range(rank))
    maker = view.makers.get(name)
    alone = maker is not None and view.only_user(name) is not None and view.matches.is_free(maker)
    if maker is not None and alone and maker.op_type == "Transpose" and maker.input[0] not in view.constants:
        order = tuple(attribute(maker, "perm", list(reversed(order))))
        matches.add_inner([maker])
        name = maker.input[0]
    return name, _swap_last_axes(order) if flag else order


def _swap_last_axes(order: tuple[int, ...]) -> tuple[int, ...]:
    return (*order[:-2], order[-1], order[-2])


def _constant_factor(node: onnx.NodeProto | None, view: ModelView) -> float:
    """What a node multiplies a computed tensor by, if it is one number; else 0."""
    if node is None or node.op_type not in ("Mul", "Div"):
        return 0.0
    constants = [view.constants[name] for name in node.input if name in view.constants]
    if len(constants) != 1 or constants[0].size != 1 or constants[0].ndim > len(view.shape_of(node.output[0])):
        return 0.0
    value = float(constants[0].reshape(()))
    if node.op_type == "Mul":
        return value
    return 1 / value if value and node.input[1] in view.constants else 0.0
