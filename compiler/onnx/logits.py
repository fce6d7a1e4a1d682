"""Recovers logits from the probabilities that a network's last softmax or sigmoid computes.

A softmax magnifies some errors and hides others, so a network in bfloat16 is compared with one in fp32 by the values
before it. Logits are recovered from the probabilities alone, independently of our kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel

LEAST, MOST = float(np.finfo(np.float32).tiny), 1 - 2.0**-24  # the nearest that fp32 distinguishes from 0 and 1


@dataclass(frozen=True, slots=True)
class OutputActivation:
    """The softmax or sigmoid that turns logits into probabilities.

    >>> OutputActivation("Sigmoid").to_logits(np.array([0.5])).tolist()
    [0.0]
    """

    op: Literal["Softmax", "Sigmoid"]
    axis: int = -1  # of a softmax

    def to_logits(self, probabilities: NDArray[Any]) -> NDArray[np.float64]:
        """Return the logits; those of a softmax minus their mean along its axis, since it ignores a common offset."""
        p = np.clip(probabilities.astype(np.float64), LEAST, MOST)
        if self.op == "Sigmoid":
            return np.log(p) - np.log1p(-p)
        log = np.log(p)
        common: NDArray[np.float64] = log.mean(axis=self.axis, keepdims=True)
        return log - common


def find_probabilities(model: OnnxModel) -> dict[str, OutputActivation]:
    """Return the outputs that are probabilities: name -> the function that computes them."""
    makers = {name: node for node in model.nodes for name in node.output}
    found = {}
    for port in model.outputs:
        node = makers.get(port.name)  # an output may as well be a constant
        if node is not None and node.op_type == "Softmax":
            found[port.name] = OutputActivation("Softmax", attribute(node, "axis", -1))
        elif node is not None and node.op_type == "Sigmoid":
            found[port.name] = OutputActivation("Sigmoid")
    return found
