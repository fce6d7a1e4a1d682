"""Ensembles of decision trees as arrays: what `TreeEnsembleRegressor` and `TreeEnsemble` state node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from veltair.errors import ModelError

REGRESSOR, ENSEMBLE = "TreeEnsembleRegressor", "TreeEnsemble"
MOST_TARGETS = 1 << 20
LEQ, LT, GTE, GT, EQ, NEQ = range(6)  # how a branch compares, as `TreeEnsemble` numbers it
MODES = {b"BRANCH_LEQ": LEQ, b"BRANCH_LT": LT, b"BRANCH_GTE": GTE, b"BRANCH_GT": GT, b"BRANCH_EQ": EQ}
MODES |= {b"BRANCH_NEQ": NEQ, b"LEAF": LEQ}  # of a leaf it means nothing
AVERAGE, SUM = 0, 1
Integers: TypeAlias = NDArray[np.int32]
Long: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Branches:
    """Nodes by number. A leaf leads to itself both ways.

    >>> branches = Branches(*(np.array(each) for each in ([3, 0, 0], [0.5, 0, 0], [1, 1, 2], [2, 1, 2], [False] * 3)))
    >>> branches.is_leaf.tolist()
    [False, True, True]
    """

    features: Integers
    thresholds: Floats
    left: Integers  # where the feature is at most the threshold
    right: Integers  # where it is not
    missing: Flags  # whether NaN goes left
    strict: bool = False  # left is where the feature is less than the threshold

    @property
    def is_leaf(self) -> Flags:
        own = np.arange(len(self.left))
        both: Flags = (self.left == own) & (self.right == own)
        return both

    def mirrored(self, width: int) -> Branches:
        """The same for rows of so many features with their negatives behind them, where NaN goes right everywhere.

        What is at most a threshold, or NaN, is what is not more, and -x < -t is x > t. By "at most" that is -x at most
        the float before -t, by "less" x >= t, which is -x less than the float after -t.
        """
        turned = self.missing
        thresholds, features = self.thresholds.copy(), self.features.copy()
        negative = -thresholds[turned]
        if self.strict:
            with np.errstate(over="ignore"):
                thresholds[turned] = np.nextafter(negative, np.float32(np.inf))
        else:  # nothing is at most NaN: all that is more, and everything is at most infinity
            thresholds[turned] = np.where(np.isnan(negative), np.float32(np.inf), _before(negative))
        features[turned] += width
        left, right = np.where(turned, self.right, self.left), np.where(turned, self.left, self.right)
        return Branches(features, thresholds, left, right, np.zeros_like(turned), self.strict)


@dataclass(frozen=True, slots=True)
class Leaves:
    """What leaves add to the result: each entry a weight to a target. ::

    Leaves(nodes=np.array([1, 2]), targets=np.array([0, 0]), weights=np.array([5, 7], np.float32))
    """

    nodes: Integers
    targets: Integers
    weights: Floats


@dataclass(frozen=True, slots=True)
class TreeEnsemble:
    """The sum of the leaves that a row falls into, or their average, plus the base.

    >>> from onnx import helper
    >>> leaves = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [5.0, 7]}
    >>> node = helper.make_node(REGRESSOR, ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0],
    ...     nodes_nodeids=[0, 1, 2], nodes_featureids=[3, 0, 0], nodes_values=[0.5, 0, 0], nodes_truenodeids=[1, 0, 0],
    ...     nodes_falsenodeids=[2, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], **leaves)
    >>> trees = read_trees(node)
    >>> trees.branches.left.tolist(), trees.depths.tolist(), trees.leaves.weights.tolist()
    ([1, 1, 2], [1], [5.0, 7.0])
    """

    branches: Branches
    roots: Integers  # (trees,)
    depths: Integers  # (trees,) steps from the root to the deepest leaf
    path: float  # steps to a leaf, on average over all leaves
    reached: tuple[Integers, Integers]  # each tree with each of its leaves
    leaves: Leaves
    base: Floats  # (targets,)
    average: bool
    for_float64: bool  # whether float64 may be rounded: up where branches compare by "at most", down by "less"


def read_trees(node: onnx.NodeProto) -> TreeEnsemble:
    """The trees of a node. Raises ModelError where they are none, or compute what only ONNX Runtime does."""
    stated = {each.name: _value(each) for each in node.attribute}
    where = f"node {node.name!r} ({node.op_type})"
    if wide := [name for name, value in stated.items() if name.endswith("_as_tensor") or _is_wide(value)]:
        raise ModelError(f"{where}: {wide[0]} is a tensor of numbers that are no float32")
    if stated.get("aggregate_function", SUM) not in (AVERAGE, SUM, b"AVERAGE", b"SUM"):
        raise ModelError(f"{where}: leaves are neither added up nor averaged")
    if stated.get("post_transform", 0) not in (0, b"NONE"):
        raise ModelError(f"{where}: has a post_transform")
    try:
        modes, branches, roots, leaves = (_ensemble if node.op_type == ENSEMBLE else _regressor)(stated)
    except (KeyError, ValueError, IndexError, OverflowError) as error:  # attributes lack, or are too short or large
        raise ModelError(f"{where}: does not state whole trees: {error}") from None
    targets, base = stated.get("n_targets", 1), np.array(stated.get("base_values", []), np.float32)
    if not 0 < targets <= MOST_TARGETS:
        raise ModelError(f"{where}: expected 1 to {MOST_TARGETS:,} targets, found {targets}")
    if len(leaves.targets) and not 0 <= leaves.targets.min() <= leaves.targets.max() < targets:
        raise ModelError(f"{where}: a leaf adds to a target that is none of {targets}")
    if targets == 1 and not np.array_equal(np.sort(leaves.nodes), np.flatnonzero(branches.is_leaf)):
        raise ModelError(f"{where}: a leaf has other than one weight")
    depths, path, reached = _descend(modes, branches, roots, where)
    kinds, branches = modes[~branches.is_leaf], _compared_alike(modes, branches)
    for_float64 = branches.strict or bool(np.isin(kinds, (LEQ, GT)).all())
    base = base if base.size == targets else np.zeros(targets, np.float32)
    average = stated.get("aggregate_function", SUM) in (AVERAGE, b"AVERAGE")
    return TreeEnsemble(branches, roots, depths, path, reached, leaves, base, average, for_float64)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _is_wide(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype not in (np.float32, np.uint8)


def _regressor(stated: Mapping[str, Any]) -> tuple[Integers, Branches, Integers, Leaves]:
    """How branches compare, the branches, the roots and the leaves of a `TreeEnsembleRegressor`."""
    trees, numbers = np.array(stated["nodes_treeids"], np.int64), np.array(stated["nodes_nodeids"], np.int64)
    count, own = len(trees), np.arange(len(trees), dtype=np.int32)
    begins = np.flatnonzero(np.diff(trees, prepend=trees[:1] - 1)).astype(np.int32)
    if len(np.unique(trees[begins])) != len(begins):
        raise ValueError("nodes of a tree stand apart")
    tree_ids, node_ids = np.unique(trees), np.unique(numbers)
    keys = np.searchsorted(tree_ids, trees) * len(node_ids) + np.searchsorted(node_ids, numbers)
    order = np.argsort(keys)
    if (np.diff(keys[order]) == 0).any():
        raise ValueError("two nodes have one number")

    def places(tree: Long, number: Long) -> Integers:
        """The nodes of these numbers in these trees."""
        tree_at, node_at = np.searchsorted(tree_ids, tree), np.searchsorted(node_ids, number)
        found = np.searchsorted(keys[order], tree_at * len(node_ids) + node_at)
        place = order[np.minimum(found, count - 1)]
        if not (np.array_equal(trees[place], tree) and np.array_equal(numbers[place], number)):
            raise ValueError("a node is missing")
        return place.astype(np.int32)

    names = stated["nodes_modes"]
    if unknown := set(names) - MODES.keys():
        raise ValueError(f"mode {sorted(unknown)[0].decode()}")
    inner = np.array([name != b"LEAF" for name in names])
    left, right = own.copy(), own.copy()
    for side, name in ((left, "nodes_truenodeids"), (right, "nodes_falsenodeids")):
        side[inner] = places(trees[inner], np.array(stated[name], np.int64)[inner])
    missing = np.array(stated.get("nodes_missing_value_tracks_true") or [0] * count, bool)
    facts = np.array(stated["nodes_featureids"], np.int32), np.array(stated["nodes_values"], np.float32)
    if any(len(each) != count for each in (numbers, inner, missing, *facts)):
        raise ValueError("attributes differ in length")
    branches = Branches(*facts, left, right, missing & inner)
    tree, number = (np.array(stated[f"target_{name}"], np.int64) for name in ("treeids", "nodeids"))
    target = np.array(stated["target_ids"], np.int32)
    weights = np.array(stated["target_weights"], np.float32)
    leaves = Leaves(places(tree, number), target, weights)
    if len(target) != len(weights) or not branches.is_leaf[leaves.nodes].all():
        raise ValueError("weights are not those of leaves")
    return np.array([MODES[name] for name in names], np.int32), branches, begins, leaves


def _ensemble(stated: Mapping[str, Any]) -> tuple[Integers, Branches, Integers, Leaves]:
    """The same of a `TreeEnsemble`, whose leaves get the numbers behind the nodes."""
    modes, splits, weights = stated["nodes_modes"], stated["nodes_splits"], stated["leaf_weights"]
    features, roots = np.array(stated["nodes_featureids"], np.int32), np.array(stated["tree_roots"], np.int32)
    inner, count = len(features), len(features) + len(weights)
    if modes.max() > NEQ:
        raise ValueError("mode BRANCH_MEMBER")
    left, right = np.arange(count, dtype=np.int32), np.arange(count, dtype=np.int32)
    for side, name in ((left, "true"), (right, "false")):
        number = np.array(stated[f"nodes_{name}nodeids"], np.int64)
        ends = np.array(stated[f"nodes_{name}leafs"], bool)
        if (number < 0).any() or (number >= np.where(ends, len(weights), inner)).any():
            raise ValueError("a node is missing")
        side[:inner] = np.where(ends, number + inner, number)
    missing = np.array(stated.get("nodes_missing_value_tracks_true") or [0] * inner, bool)
    target = np.array(stated["leaf_targetids"], np.int32)
    of_nodes = modes, splits, features, missing
    if any(len(each) != inner for each in of_nodes) or len(target) != len(weights):
        raise ValueError("attributes differ in length")
    if ((roots < 0) | (roots >= inner)).any():
        raise ValueError("a root is missing")
    modes, splits, features, missing = (np.resize(np.append(each, [0] * len(weights)), count) for each in of_nodes)
    branches = Branches(features, splits.astype(np.float32), left, right, missing.astype(bool))
    return modes, branches, roots, Leaves(np.arange(inner, count, dtype=np.int32), target, weights)


def _compared_alike(modes: Integers, branches: Branches) -> Branches:
    """The same decisions, all of them by "at most", or by "less" where all are.

    x >= t is the other side of x < t, which NaN takes too, and x < t is x <= the float before t. x == t is x <= t
    and not x < t: two nodes, of which the second one stands behind all others.
    """
    inner = ~branches.is_leaf
    left, right, missing = branches.left.copy(), branches.right.copy(), branches.missing.copy()
    turned = inner & np.isin(modes, (GTE, GT, NEQ))
    left[turned], right[turned] = branches.right[turned], branches.left[turned]
    missing[turned] = ~missing[turned]
    missing[inner & (modes == NEQ)] = False  # NaN differs from every threshold, as from those that it goes left of
    below = inner & np.isin(modes, (LT, GTE))
    thresholds = branches.thresholds.copy()
    lowest = ~(branches.thresholds > -np.inf)  # or NaN
    strict = bool(below.any()) and np.array_equal(below, inner) and not (missing & lowest).any()
    if not strict:
        thresholds[below] = _before(thresholds[below])
    alike = Branches(branches.features, thresholds, left, right, missing, strict)
    equal = np.flatnonzero(inner & np.isin(modes, (EQ, NEQ)))
    if not equal.size:
        return alike
    second = np.arange(len(modes), len(modes) + len(equal), dtype=np.int32)
    found, others = left[equal], right[equal]
    left = np.append(left, others)
    left[equal] = second
    return replace(
        alike,
        features=np.append(branches.features, branches.features[equal]),
        thresholds=np.append(thresholds, _before(branches.thresholds[equal])),
        left=left,
        right=np.append(right, found),
        missing=np.append(missing, np.zeros(len(equal), bool)),
    )


def _before(thresholds: Floats) -> Floats:
    """The next smaller floats; NaN, which nothing is at most, where there is none."""
    with np.errstate(over="ignore"):  # that of the lowest number is -infinity
        before = np.nextafter(thresholds, np.float32(-np.inf))
    return np.where(thresholds == -np.inf, np.float32(np.nan), before).astype(np.float32)


def _descend(
    modes: Integers, branches: Branches, roots: Integers, where: str
) -> tuple[Integers, float, tuple[Integers, Integers]]:
    """The depth of each tree, the mean path, and each tree with each of its leaves."""
    leaf, costs = branches.is_leaf, 1 + np.isin(modes, (EQ, NEQ))  # two comparisons for equality
    depths, visits = np.zeros(len(roots), np.int64), 0
    tree, node, steps = np.arange(len(roots)), roots, np.zeros(len(roots), np.int64)
    ends = list[tuple[Long, Integers, Long]]()
    while node.size:
        visits += len(node)
        if visits > 2 * len(leaf) + len(roots):
            raise ModelError(f"{where}: branches lead back to themselves, or several to one")
        end = leaf[node]
        ends.append((tree[end], node[end], steps[end]))
        tree, node, steps = tree[~end], node[~end], (steps + costs[node])[~end]
        tree, steps = np.tile(tree, 2), np.tile(steps, 2)
        node = np.concatenate([branches.left[node], branches.right[node]])
    trees, leaves, paths = (np.concatenate(each) for each in zip(*ends, strict=True))
    np.maximum.at(depths, trees, paths)
    return depths.astype(np.int32), float(paths.mean()), (trees.astype(np.int32), leaves)
