"""Matrix products with constant weights: dense layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.epilogue import Epilogue
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.lowering import Lowering
from veltair.compiler.onnx.node_attributes import attribute, times
from veltair.compiler.patterns.batch_norm import Normed
from veltair.profiles.artifact.manifest import shape_at

FEW_ROWS = 4  # up to so many, a dense layer is bound by reading its weights, and half of the bytes is half of the time
TILE_ROWS = 16  # from so many on, at the greatest batch, products are made in bfloat16


def matmul(node: onnx.NodeProto, lowering: Lowering) -> bool:
    constants = dense_constants(node, lowering)
    shape = lowering.shape_of(node.input[0])
    if constants is None or len(shape) < 2 or node.input[0] in lowering.constants:
        return False
    weight, bias = constants
    maker = lowering.makers.get(node.input[0])
    normed = lowering.patterns.get(id(maker)) if maker is not None else None
    source = node.input[0]
    if isinstance(normed, Normed):
        source, bias = normed.source, bias + normed.shift @ weight
        weight = weight * normed.scale[:, None]
    if lowering.rows(source).dtype not in ("float32", "uint16"):
        return False
    end, out = _reshaped(node, lowering)
    epilogue = Epilogue.behind(end, lowering, residual=False, bias=len(node.input) < 3)
    if epilogue.bias is not None:
        bias = bias + epilogue.bias
    lowering.done.update(epilogue.swallowed)
    output, gate, residual = epilogue.output, None, None
    if epilogue.activation == "none":
        output, gate = _side("Mul", output, lowering)
        output, residual = _side("Add", output, lowering)
    rows = times(shape[:-1])
    # A stream that only sums go through stays fp32.
    narrow = narrow_rows(rows, lowering) and (gate or not residual) and read_by_products(output, lowering)
    y = Activation(output, "uint16" if narrow else "float32", (rows, out[-1]))
    if len(out) != 2:
        y = Activation(f"{output}/rows", y.dtype, y.shape)
    dense(node.name, source, y, weight, bias, epilogue.activation, residual, lowering, gate)
    if len(out) != 2:
        lowering.add_view(Activation(output, y.dtype, out), y.name)
    return True


def dense_constants(node: onnx.NodeProto, lowering: Lowering) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Weight (depth, columns) and bias (columns) of a MatMul or Gemm whose product is x @ weight + bias, if they are
    constants."""
    weight = lowering.constants.get(node.input[1])
    if weight is None or weight.ndim != 2 or attribute(node, "transA", 0):
        return None
    if node.op_type == "Gemm":
        weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
    bias: NDArray[Any] = np.zeros(weight.shape[1], np.float32)
    if len(node.input) > 2 and node.input[2]:
        found = lowering.constants.get(node.input[2])
        if found is None or (found.size > 1 and found.shape[-1:] != (found.size,)):  # one for each column
            return None
        bias = bias + found.reshape(-1) * np.float32(attribute(node, "beta", 1.0))
    return weight, bias


def dense(
    name: str, x: str, y: Activation, weight: NDArray[Any], bias: NDArray[Any], activation: str,
    residual: Activation | None, lowering: Lowering, gate: Activation | None = None,
) -> None:  # fmt: skip
    """Emit activation((x @ weight + bias) [* gate] [+ residual]): in bfloat16 where precision and rows allow it."""
    rows = y.shape[0]
    depth = weight.shape[0]
    weights = {"weight": np.ascontiguousarray(weight, np.float32), "bias": bias.astype(np.float32)}
    flops = 2 * abs(rows) * int(np.prod(weight.shape))
    attributes: dict[str, Any] = {"activation": activation}
    if narrow_rows(rows, lowering):
        inputs = [lowering.reshaped(lowering.narrowed(lowering.rows(x)), (rows, depth))]
        kind = "matmul_bf16"
    else:
        inputs = [lowering.reshaped(lowering.plain(x), (rows, depth))]
        few = lowering.dtype == "uint16" and 0 < rows <= FEW_ROWS
        kind = "matmul"
        attributes["storage"] = "bf16" if few else "fp32"
        gate, residual = (lowering.plain(side.name) if side else None for side in (gate, residual))
    inputs += [lowering.reshaped(side, y.shape) for side in (gate, residual) if side is not None]
    if gate is not None:  # named where it is so: the records of others know no such attribute
        attributes["gated"] = True
    lowering.emit(lowering.spec(name, kind, inputs, [y], attributes, weights, flops))


def narrow_rows(rows: int, lowering: Lowering) -> bool:
    """Whether a product of so many rows (-k: k times the batch) is made in bfloat16."""
    (greatest,) = shape_at((rows,), lowering.model.max_batch)
    return lowering.dtype == "uint16" and greatest >= TILE_ROWS


def read_by_products(name: str, lowering: Lowering) -> bool:
    """Whether products with constant weights or attention, and beside them only sums and products' gates, read a tensor
    as bfloat16."""

    def readers(name: str) -> list[str]:
        found = []
        for node in lowering.users.get(name, []):
            if node.op_type == "Reshape" and node.output[0] not in lowering.output_names:
                inside = id(node) in lowering.done  # of an attention
                found.extend(["product"] if inside else readers(node.output[0]))
            elif isinstance(lowering.patterns.get(id(node)), Normed) or _is_dense(node, lowering):
                found.append("product")
            else:
                gates = node.op_type == "Mul" and any(
                    _is_dense(lowering.makers.get(other), lowering) for other in node.input if other != name
                )
                found.append("Add" if gates else node.op_type)
        return found

    kinds = set(readers(name))
    return "product" in kinds and kinds <= {"product", "Add"} and name not in lowering.output_names


def _reshaped(node: onnx.NodeProto, lowering: Lowering) -> tuple[onnx.NodeProto, tuple[int, ...]]:
    """The end of a product and its shape: the rows of a Gemm may be reshaped back into sequences."""
    user = lowering.only_user(node.output[0])
    out = lowering.shape_of(node.output[0])
    if user is None or user.op_type != "Reshape" or lowering.shape_of(user.output[0])[-1] != out[-1]:
        return node, out
    lowering.done.add(id(user))
    return user, lowering.shape_of(user.output[0])


def _is_dense(node: onnx.NodeProto | None, lowering: Lowering) -> bool:
    return node is not None and node.op_type in ("MatMul", "Gemm") and node.input[1] in lowering.constants


def _side(operator: str, name: str, lowering: Lowering) -> tuple[str, Activation | None]:
    """The sum or product behind a tensor, if its other side was made before."""
    user = lowering.only_user(name)
    if user is None or user.op_type != operator:
        return name, None
    other = user.input[1] if user.input[0] == name else user.input[0]
    if other == name or not lowering.is_made(other) or lowering.shape_of(other) != lowering.shape_of(name):
        return name, None
    tensor = lowering.known[other]
    if tensor.block or tensor.dtype not in ("float32", "uint16"):
        return name, None
    lowering.done.add(id(user))
    return user.output[0], tensor
