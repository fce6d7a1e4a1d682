"""A tree with one branch and two leaves, as attributes of ONNX's operators of trees."""

from __future__ import annotations

from typing import Any


def stump(feature: int, value: float) -> dict[str, Any]:
    """Node 1 where the feature is at most the value, else node 2; the weights of leaves are left to the caller."""
    return {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [feature, 0, 0],
        "nodes_values": [value, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
