"""Decision trees: `TreeEnsembleRegressor`, which classifiers become before, and `TreeEnsemble`.

A regressor of our own domain gives its sums in float64, as `tree_classifier` needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.trees import TreesParameters
from veltair.compiler.onnx.folding.ml_operators import DOMAIN
from veltair.compiler.onnx.folding.opaque_nodes import OWN_DOMAIN
from veltair.compiler.onnx.scikit_learn.tree_ensemble import TreeEnsemble, read_trees
from veltair.errors import ModelError

Array = NDArray[Any]

MOST_WEIGHTS = 1 << 26  # of leaves, one for each target: 256 MB


def trees(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emit "trees". Raises ModelError where the node has none that a kernel takes."""
    given, spec = view.values[node.input[0]], view.values[node.output[0]]
    if node.domain not in (DOMAIN, OWN_DOMAIN) or node.input[0] in view.constants:
        return False
    found, shape = read_trees(node), given.shape
    if len(shape) != 2 or given.dtype not in ("float32", "float64") or shape[1] < 1:
        raise ModelError(f"node {node.name!r}: expected rows of floats, found {given}")
    if given.dtype == "float64" and not found.for_float64:
        raise ModelError(f"node {node.name!r}: branches compare float64 in several ways")
    if found.branches.features.min() < 0 or found.branches.features.max() >= shape[1]:
        raise ModelError(f"node {node.name!r}: a tree asks for another feature than the {shape[1]} of a row")
    if spec.shape != (shape[0], found.base.size):
        raise ModelError(f"node {node.name!r}: {spec} is not a row of {found.base.size} for each")
    weights = weights_of_trees(found, shape[1])
    parameters = parameters_of(found, weights)
    x, y = builder.to_row_major(node.input[0]), Activation(node.output[0], spec.dtype, spec.shape)
    builder.emit(node.name, "trees", [x], [y], parameters, weights, flops=round(len(found.roots) * found.path))
    return True


def parameters_of(found: TreeEnsemble, weights: Mapping[str, Array]) -> TreesParameters:
    """The parameters of a layer with these weights."""
    return TreesParameters(
        trees=len(found.roots),
        targets=found.base.size,
        depth=int(found.depths.max()),
        strict=found.branches.strict,
        mirrored=bool(found.branches.missing.any()),
        leaf_rows="leaves" in weights,
        average=found.average,
    )


def weights_of_trees(found: TreeEnsemble, width: int) -> dict[str, Array]:
    """The weights of a layer, as `TreesParameters` lists them. `width`: features of a row.

    Raises ModelError where they would be too large.
    """
    branches, leaves, leaf = found.branches.mirrored(width), found.leaves, found.branches.is_leaf
    thresholds = branches.thresholds.view(np.int32)
    nodes = np.stack([branches.features, thresholds, branches.left, branches.right], 1).astype(np.int32)
    nodes[leaf, :2] = 0
    weights: dict[str, Array] = {"nodes": nodes, "roots": found.roots, "depths": found.depths}
    targets = _targets_of_trees(found)
    if targets is not None:
        nodes[leaves.nodes, 1] = leaves.weights.view(np.int32)
        weights["targets"] = targets
    else:
        if leaf.sum() * found.base.size > MOST_WEIGHTS:
            raise ModelError(f"the leaves of all trees have more than {MOST_WEIGHTS:,} weights, one for each target")
        rows = np.zeros((int(leaf.sum()), found.base.size), np.float32)
        number = np.cumsum(leaf) - 1
        np.add.at(rows, (number[leaves.nodes], leaves.targets), leaves.weights)
        nodes[leaf, 1] = number[leaf]
        weights["leaves"] = rows
    return weights | {"base": found.base}


def _targets_of_trees(found: TreeEnsemble) -> NDArray[np.int32] | None:
    """What the leaves of each tree add to; None where one of them adds to several targets, or to none."""
    leaves, (tree, leaf) = found.leaves, found.reached
    if len(leaves.nodes) != found.branches.is_leaf.sum() or len(np.unique(leaves.nodes)) != len(leaves.nodes):
        return None
    of_leaf = np.zeros(len(found.branches.left), np.int32)
    of_leaf[leaves.nodes] = leaves.targets
    of_tree = np.zeros(len(found.roots), np.int32)
    of_tree[tree] = of_leaf[leaf]
    return of_tree if np.array_equal(of_tree[tree], of_leaf[leaf]) else None
