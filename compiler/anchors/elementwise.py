"""Element-wise chains of tensors that are in blocks already."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.epilogue import Epilogue
from veltair.compiler.ir import Activation
from veltair.compiler.lowering import Lowering
from veltair.compiler.node import attribute


def elementwise(node: onnx.NodeProto, lowering: Lowering) -> bool:
    """On its own, where its inputs are in blocks already: behind no anchor, or between two consumers."""
    tensors = [name for name in node.input if name and name not in lowering.constants]
    if not all(map(lowering.is_made, tensors)) or not all(lowering.known[n].block == lowering.block for n in tensors):
        return False
    weights: dict[str, NDArray[Any]] = {}
    steps: tuple[str, ...] = ()
    if node.op_type in ("Add", "Sum"):
        if len(tensors) != len(node.input) or len({lowering.shape_of(name) for name in tensors}) > 1:
            return False
        steps = tuple(f"add:{i}" for i in range(1, len(tensors)))
    elif node.op_type == "BatchNormalization":
        gamma, beta, mean, variance = (lowering.constants.get(name) for name in node.input[1:5])
        if gamma is None or beta is None or mean is None or variance is None:
            return False
        scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        weights = {"scale": scale.astype(np.float32), "shift": (beta - mean * scale).astype(np.float32)}
        steps = ("affine",)
    else:
        activation = Epilogue.activation_of(node, lowering.constants)
        if activation is None:
            return False
        steps = (activation,)
    epilogue = Epilogue.behind(node, lowering, residual=False)
    if epilogue.activation != "none":
        steps = (*steps, epilogue.activation)
    y = Activation(epilogue.output, lowering.dtype, lowering.shape_of(node.output[0]), lowering.block)
    count = int(np.prod(np.abs(y.shape)))
    inputs = [lowering.known[n] for n in tensors]
    lowering.emit(lowering.spec(node.name, "elementwise", inputs, [y], {"steps": steps}, weights, count))
    lowering.done.update(epilogue.swallowed)
    return True
