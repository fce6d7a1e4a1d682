"""Matrix products with constant weights: dense layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.batch_norm import FoldedBatchNorm
from veltair.compiler.patterns.epilogue import Epilogue
from veltair.profiles.artifact.manifest import shape_at

FEW_ROWS = 4  # up to this number, reading the weights is what a dense layer waits for: half the bytes, half the time
TILE_ROWS = 16  # from this number on, at the greatest batch, products are made in bfloat16


def matmul(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A dense layer with the gate, residual and activation behind it."""
    constants = dense_constants(node, view)
    shape = view.shape_of(node.input[0])
    if constants is None or len(shape) < 2 or node.input[0] in view.constants:
        return False
    weight, bias = constants
    maker = view.makers.get(node.input[0])
    normed = view.matches.at(maker, FoldedBatchNorm) if maker is not None else None
    source = node.input[0]
    if normed is not None:
        source, bias = normed.source, bias + normed.shift @ weight
        weight = weight * normed.scale[:, None]
    if builder.rows(source).dtype not in ("float32", "uint16"):
        return False
    end, out = _reshaped(node, view, builder)
    epilogue = Epilogue.behind(end, view, builder, residual=False, bias=len(node.input) < 3)
    if epilogue.bias is not None:
        bias = bias + epilogue.bias
    builder.take(epilogue.swallowed)
    output, gate, residual = epilogue.output, None, None
    if epilogue.activation == "none":
        output, gate = _side("Mul", output, view, builder)
        output, residual = _side("Add", output, view, builder)
    rows = product_of(shape[:-1])
    # A stream that only sums go through stays fp32.
    narrow = multiplies_in_bf16(rows, view) and (gate or not residual) and readable_as_bf16(output, view)
    y = Activation(output, "uint16" if narrow else "float32", (rows, out[-1]))
    if len(out) != 2:
        y = Activation(f"{output}/rows", y.dtype, y.shape)
    DenseLayer(node.name, source, y, weight, bias, epilogue.activation, gate, residual).emit(view, builder)
    if len(out) != 2:
        builder.alias(Activation(output, y.dtype, out), y.name)
    if end is not node and output == end.output[0]:  # an attention may read heads of the rows before the reshape
        builder.alias(Activation(node.output[0], y.dtype, view.shape_of(node.output[0])), y.name)
    return True


def dense_constants(node: onnx.NodeProto, view: ModelView) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Weight (depth, columns) and bias (columns) of a MatMul or Gemm, x @ weight + bias; None where one is computed."""
    weight = view.constants.get(node.input[1])
    if weight is None or weight.ndim != 2 or attribute(node, "transA", 0):
        return None
    if node.op_type == "Gemm":
        weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
    bias: NDArray[Any] = np.zeros(weight.shape[1], np.float32)
    if len(node.input) > 2 and node.input[2]:
        found = view.constants.get(node.input[2])
        if found is None or (found.size > 1 and found.shape[-1:] != (found.size,)):  # one for each column
            return None
        bias = bias + found.reshape(-1) * np.float32(attribute(node, "beta", 1.0))
    return weight, bias


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A layer activation((x @ weight + bias) [* gate] [+ residual]), before it is settled in which type it multiplies.

    ::

        DenseLayer(node.name, "x", output, weight, bias, "relu").emit(view, builder)
    """

    name: str
    x: str
    output: Activation
    weight: NDArray[Any]  # (depth, columns)
    bias: NDArray[Any]  # (columns)
    activation: str
    gate: Activation | None = None
    residual: Activation | None = None

    def emit(self, view: ModelView, builder: GraphBuilder) -> None:
        """Emit the layer, in bfloat16 where precision and rows allow it."""
        rows, depth, y = self.output.shape[0], self.weight.shape[0], self.output
        weights = {"weight": np.ascontiguousarray(self.weight, np.float32), "bias": self.bias.astype(np.float32)}
        flops = 2 * abs(rows) * int(np.prod(self.weight.shape))
        sides = [self.gate, self.residual]
        if multiplies_in_bf16(rows, view):
            inputs = [builder.reshape(builder.to_bf16(builder.rows(self.x)), (rows, depth))]
            op, storage = "matmul_bf16", None
        else:
            inputs = [builder.reshape(builder.to_row_major(self.x), (rows, depth))]
            few = view.dtype == "uint16" and 0 < rows <= FEW_ROWS
            op, storage = "matmul", WeightStorage.BF16 if few else WeightStorage.FP32
            sides = [builder.to_row_major(side.name) if side else None for side in sides]
        inputs += [builder.reshape(side, y.shape) for side in sides if side is not None]
        parameters = MatmulParameters(self.activation, storage, gated=self.gate is not None)
        builder.emit(self.name, op, inputs, [y], parameters, weights, flops)


def multiplies_in_bf16(rows: int, view: ModelView) -> bool:
    """Whether a product of this number of rows (-k: k times the batch) is computed in bfloat16."""
    (greatest,) = shape_at((rows,), view.max_batch)
    return view.dtype == "uint16" and greatest >= TILE_ROWS


def readable_as_bf16(name: str, view: ModelView) -> bool:
    """Whether a tensor can be bfloat16: products with constant weights or attention read it, and else only sums and
    gates of products."""

    def readers(name: str) -> list[str]:
        found = []
        for node in view.users_of(name):
            if node.op_type == "Reshape" and node.output[0] not in view.output_names:
                inside = view.matches.is_inner(node)  # of an attention
                found.extend(["product"] if inside else readers(node.output[0]))
            elif view.matches.at(node, FoldedBatchNorm) or _is_dense(node, view):
                found.append("product")
            else:
                gates = node.op_type == "Mul" and any(
                    _is_dense(view.makers.get(other), view) for other in node.input if other != name
                )
                found.append("Add" if gates else node.op_type)
        return found

    kinds = set(readers(name))
    return "product" in kinds and kinds <= {"product", "Add"} and name not in view.output_names


def _reshaped(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> tuple[onnx.NodeProto, tuple[int, ...]]:
    """The last node of a product and its shape: the rows of a Gemm may be reshaped back into sequences."""
    user = view.free_user(node.output[0])
    out = view.shape_of(node.output[0])
    if user is None or user.op_type != "Reshape":
        return node, out
    if view.shape_of(user.output[0])[-1] != out[-1]:
        return node, out
    builder.take([user])
    return user, view.shape_of(user.output[0])


def _is_dense(node: onnx.NodeProto | None, view: ModelView) -> bool:
    return node is not None and node.op_type in ("MatMul", "Gemm") and node.input[1] in view.constants


def _side(operator: str, name: str, view: ModelView, builder: GraphBuilder) -> tuple[str, Activation | None]:
    """The output and the other operand of the sum or product behind a tensor, if that operand was made before."""
    user = view.free_user(name)
    if user is None or user.op_type != operator:
        return name, None
    other = user.input[1] if user.input[0] == name else user.input[0]
    if other == name or not builder.is_made(other) or view.shape_of(other) != view.shape_of(name):
        return name, None
    tensor = builder.tensors[other]
    if tensor.block or tensor.dtype not in ("float32", "uint16"):
        return name, None
    builder.take([user])
    return user.output[0], tensor
