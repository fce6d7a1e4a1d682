"""Products that no kernel of ours takes: TVM runs them in plain loops, at a hundredth of ONNX Runtime's speed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from veltair.compiler.onnx.node_attributes import attribute, text_attribute
from veltair.types import TensorSpec

MOST_STEPS = 1 << 18  # of multiplying and adding, for a sample; plain loops take about 0.1 ms for so many
LONG = 8  # steps for each result; with fewer, reading and writing take as long, and loops are fused with what follows
MATRICES = frozenset({"MatMul", "Gemm", "MatMulInteger"})
CONVOLUTIONS = frozenset({"Conv", "ConvInteger"})


def why_not_plain(node: onnx.NodeProto, values: Mapping[str, TensorSpec]) -> str:
    """Why ONNX Runtime runs a product that would take long in plain loops; empty for what else may run so."""
    tensors = [values.get(name) for name in (*node.input[:2], *node.output[:1])]
    shapes = [[abs(extent) for extent in tensor.shape] for tensor in tensors if tensor is not None]
    if len(shapes) < 3:
        return ""
    steps = _steps(node, shapes)
    if steps <= MOST_STEPS or steps < LONG * math.prod(shapes[2]):
        return ""
    return f"no kernel for {node.op_type} ({node.name!r}) of {', '.join(t.dtype for t in tensors[:2] if t)}"


def _steps(node: onnx.NodeProto, shapes: list[list[int]]) -> int:
    """Of two operands and the result, as far as the kind of node is known."""
    left, right, result = shapes
    if node.op_type in MATRICES and left:
        return math.prod(result) * left[0 if attribute(node, "transA", 0) else -1]
    if node.op_type in CONVOLUTIONS:
        return math.prod(result) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(left) * math.prod(right[1:])
    if node.op_type == "Einsum" and len(node.input) == 2:
        equation = text_attribute(node, "equation").replace(" ", "")
        operands, _, kept = equation.partition("->")
        labels = operands.replace(",", "")
        if len(labels) == len(left) + len(right) and set(labels) - set(kept):
            return math.prod(dict(zip(labels, [*left, *right], strict=True)).values())
    return 0
