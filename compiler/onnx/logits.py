"""Probabilities taken back to the logits that a network's last softmax or sigmoid makes them of.

A softmax magnifies some errors and hides others; how well a network in bfloat16 keeps to one in fp32 is said of what
stands in front of it. Logits are told from the probabilities alone, so this looks at no code of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel

LEAST, MOST = float(np.finfo(np.float32).tiny), 1 - 2.0**-24  # fp32 tells no others from 0 and 1


@dataclass(frozen=True, slots=True)
class Squash:
    """What makes probabilities of logits."""

    op: Literal["Softmax", "Sigmoid"]
    axis: int = -1  # of a softmax

    def logits(self, probabilities: NDArray[Any]) -> NDArray[np.float64]:
        """Those of a softmax less their mean along its axis, since it drops what they have in common."""
        p = np.clip(probabilities.astype(np.float64), LEAST, MOST)
        if self.op == "Sigmoid":
            return np.log(p) - np.log1p(-p)
        log = np.log(p)
        common: NDArray[np.float64] = log.mean(axis=self.axis, keepdims=True)
        return log - common


def squashed(model: OnnxModel) -> dict[str, Squash]:
    """The outputs that are probabilities, by name."""
    makers = {name: node for node in model.nodes for name in node.output}
    found = {}
    for port in model.outputs:
        node = makers.get(port.name)  # an output may as well be a constant
        if node is not None and node.op_type == "Softmax":
            found[port.name] = Squash("Softmax", attribute(node, "axis", -1))
        elif node is not None and node.op_type == "Sigmoid":
            found[port.name] = Squash("Sigmoid")
    return found
