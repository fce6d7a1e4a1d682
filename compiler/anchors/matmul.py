"""Matrix products with constant weights: dense layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.epilogue import Epilogue
from veltair.compiler.ir import Activation
from veltair.compiler.lowering import Lowering
from veltair.compiler.node import attribute, times

FEW_ROWS = 4  # up to so many, a dense layer is bound by reading its weights, and half of the bytes is half of the time


def matmul(node: onnx.NodeProto, lowering: Lowering) -> bool:
    weight = lowering.constants.get(node.input[1])
    shape, out = lowering.shape_of(node.input[0]), lowering.shape_of(node.output[0])
    if weight is None or weight.ndim != 2 or len(shape) < 2 or node.input[0] in lowering.constants:
        return False
    bias: NDArray[Any] = np.zeros(out[-1], np.float32)
    if node.op_type == "Gemm":
        if attribute(node, "transA", 0):
            return False
        weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
        if len(node.input) > 2 and node.input[2]:
            found = lowering.constants.get(node.input[2])
            if found is None or found.size not in (1, out[-1]):
                return False
            bias = bias + found.reshape(-1) * np.float32(attribute(node, "beta", 1.0))
    x = lowering.plain(node.input[0])
    if x.dtype != "float32":
        return False
    epilogue = Epilogue.behind(node, lowering, residual=False, bias=len(node.input) < 3)
    if epilogue.bias is not None:
        bias = bias + epilogue.bias
    rows = times(shape[:-1])
    x = lowering.reshaped(x, (rows, shape[-1]))
    y = Activation(epilogue.output, "float32", (rows, out[-1]))
    flops = 2 * abs(rows) * int(np.prod(weight.shape))
    weights = {"weight": np.ascontiguousarray(weight, np.float32), "bias": bias.astype(np.float32)}
    attributes = {
        "activation": epilogue.activation,
        "storage": "bf16" if lowering.dtype == "uint16" and 0 < rows <= FEW_ROWS else "fp32",
    }
    if len(out) != 2:
        y = replace(y, name=f"{epilogue.output}/rows")
    lowering.emit(lowering.spec(node.name, "matmul", [x], [y], attributes, weights, flops))
    if len(out) != 2:
        lowering.add_view(Activation(epilogue.output, "float32", out), y.name)
    lowering.done.update(epilogue.swallowed)
    return True
