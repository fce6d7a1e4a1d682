"""Whether a file is a network that bfloat16 suits: large enough to gain from it, and nothing that its rounding upsets.

Networks are trained with noise, and a rounding of 0.4 % moves their scores by about as much. What people make by other
means is not: a tree compares its inputs with thresholds, a distance is a small difference of large squares, and a
regression of a dozen features has nothing to gain.
"""

from __future__ import annotations

import math

import onnx

from veltair.compiler.onnx.constants import all_nodes, named_tensors

# Products of a row with fewer weights take about half a microsecond in floats.
LEAST_WEIGHTS = 1 << 15
# These read each weight many times for a row.
REUSING = frozenset({"Conv", "ConvTranspose", "GRU", "LSTM", "RNN"})
# Comparisons with thresholds, distances, and exponentials of these.
UPSET = frozenset(
    {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMClassifier", "SVMRegressor", "CDist"}
)
LOOK_UPS = frozenset({"Gather", "GatherElements", "GatherND"})


def suits_bf16(proto: onnx.ModelProto) -> bool:
    """Whether a file computes enough in products, and neither with trees, support vectors nor distances."""
    graph = proto.graph
    nodes = [*all_nodes([*graph.node, *(node for function in proto.functions for node in function.node)])]
    if any(node.op_type in UPSET for node in nodes) or _has_distances(nodes):
        return False
    if any(node.op_type in REUSING for node in nodes):
        return True
    tables = {node.input[0] for node in nodes if node.op_type in LOOK_UPS}
    weights = named_tensors(graph, nodes).items()
    sizes = (math.prod(t.dims) for name, t in weights if len(t.dims) > 1 and name not in tables)
    return bool(sum(sizes) >= LEAST_WEIGHTS)


def _has_distances(nodes: list[onnx.NodeProto]) -> bool:
    """Whether squares of what a product reads are summed: of x and c, |x|² - 2 x·c + |c|² is left of large squares."""
    squared = {node.input[0] for node in nodes if node.op_type == "ReduceSumSquare"}
    return any(squared.intersection(node.input) for node in nodes if node.op_type in ("MatMul", "Gemm"))
