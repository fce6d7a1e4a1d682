"""The reference of decision trees in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.trees import TreesParameters

Array = NDArray[Any]


def reference_trees(spec: LayerSpec, inputs: list[Array]) -> list[Array]:
    """The weights of the leaves that each row falls into, added up in the order of the trees as exactly as rows are."""
    parameters, [x] = spec.parameters_as(TreesParameters), inputs
    feature, bits, left, right = spec.weights["nodes"].T
    rows, thresholds = np.arange(len(x)), np.ascontiguousarray(bits).view(np.float32)
    side = np.float32(-np.inf if parameters.strict else np.inf)
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
        beyond = near > x if parameters.strict else near < x
        near = np.where(beyond, np.nextafter(near, side), near)
    values = np.concatenate([near, -near], axis=1)
    y = np.zeros((len(x), parameters.targets), x.dtype)
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
        y /= parameters.trees
    return [y + spec.weights["base"]]
