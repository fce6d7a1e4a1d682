"""The reference of decision trees in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.trees import TreesParameters

Array = NDArray[Any]


def reference_trees(spec: LayerSpec, inputs: list[Array]) -> list[Array]:
    """The weights of the leaves that each row falls into, added up in the order of the trees as float32."""
    parameters, [x] = spec.parameters_as(TreesParameters), inputs
    feature, bits, left, right = spec.weights["nodes"].T
    rows, thresholds = np.arange(len(x)), np.ascontiguousarray(bits).view(np.float32)
    values = np.concatenate([x, -x], axis=1)
    y = np.zeros((len(x), parameters.targets), np.float32)
    for tree, root in enumerate(spec.weights["roots"]):
        node = np.full(len(x), root)
        for _ in range(parameters.depth):
            value = values[rows, feature[node]]
            small = value < thresholds[node] if parameters.strict else value <= thresholds[node]
            node = np.where(small, left[node], right[node])
        if parameters.leaf_rows:
            y += spec.weights["leaves"][bits[node]]
        else:
            y[:, spec.weights["targets"][tree]] += thresholds[node]
    if parameters.average:
        y /= np.float32(parameters.trees)
    return [y + spec.weights["base"]]
