"""`TreeEnsembleClassifier` as the scores that its trees give, and what classes and probabilities they mean.

ONNX leaves open what one number for two classes means. This is ONNX Runtime's reading: it is compared with a half where
no leaf has a negative weight, else with zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from veltair.compiler.onnx.folding.expansion import PartsOfNode
from veltair.compiler.onnx.folding.opaque_nodes import OWN_DOMAIN
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_evaluation import TensorType
from veltair.compiler.onnx.scikit_learn.class_scores import TRANSFORMS, add_best_class, add_probabilities
from veltair.compiler.onnx.scikit_learn.tree_ensemble import REGRESSOR, read_trees
from veltair.errors import ModelError

SCORES = ("base_values", "class_ids", "class_nodeids", "class_treeids", "class_weights", "classlabels_int64s")


def tree_classifier(parts: PartsOfNode, kind: TensorType) -> bool:
    """Expand a classifier that has a score for each class, or one for two; its labels are numbers."""
    stated = {name: parts.given(name, []) for name in SCORES}
    labels, ids = np.array(stated["classlabels_int64s"], np.int64), np.array(stated["class_ids"], np.int64)
    after, base = parts.given("post_transform", b"NONE"), len(stated["base_values"])
    if not ids.size or after not in TRANSFORMS:
        return False
    if labels.size == 2 and (ids == ids[0]).all() and base < 2:
        if not (scores := _scores(parts, kind, targets=1)):
            return False
        positive = bool((np.array(stated["class_weights"], np.float32) >= 0).all())
        half = np.array(0.5 if positive else 0.0, np.float64 if kind.kind == onnx.TensorProto.DOUBLE else np.float32)
        above = parts.add("Greater", [scores, parts.array(half)])
        chosen = parts.add("Where", [above, parts.array(labels[1:]), parts.array(labels[:1])])
        parts.add("Squeeze", [chosen, parts.array(np.array([1]))], parts.fused.output[0])
        _both_classes(parts, _as_floats(parts, scores, kind), after, positive=positive)
        return True
    if labels.size > 2 and (base == labels.size or (not base and _every_class_has_scores(parts, stated, labels.size))):
        if not (scores := _scores(parts, kind, targets=labels.size)):
            return False
        add_best_class(parts, scores, labels)
        add_probabilities(parts, _as_floats(parts, scores, kind), after)
        return True
    return False


def scores_type(node: onnx.NodeProto, rows: TensorType) -> dict[str, TensorType]:
    """The type of what trees of our own domain give for rows: sums in float64, as ONNX Runtime compares them."""
    shape = None if rows.shape is None else (rows.shape[0], attribute(node, "n_targets", 1))
    return {node.output[0]: TensorType(onnx.TensorProto.DOUBLE, shape)}


def _as_floats(parts: PartsOfNode, scores: str, kind: TensorType) -> str:
    """Scores as float32."""
    return parts.add("Cast", [scores], to=onnx.TensorProto.FLOAT) if kind.kind == onnx.TensorProto.DOUBLE else scores


def _scores(parts: PartsOfNode, kind: TensorType, targets: int) -> str:
    """Add the trees; their name. Those of float64 are of our domain; "" where no kernel has them."""
    x, wide = parts.input(0), kind.kind == onnx.TensorProto.DOUBLE
    if kind.kind != onnx.TensorProto.FLOAT and not wide:
        x = parts.add("Cast", [x], to=onnx.TensorProto.FLOAT)
    trees = parts.append(parts.fused, [x], [scores := f"{parts.fused.name}/scores"])
    trees.op_type, trees.domain = REGRESSOR, OWN_DOMAIN if wide else trees.domain
    kept = [each for each in trees.attribute if not each.name.startswith(("classlabels", "post_transform"))]
    del trees.attribute[:]
    for each in kept:
        each.name = each.name.replace("class_", "target_")
        if each.name == "target_ids" and targets == 1:
            each.ints[:] = [0] * len(each.ints)
    trees.attribute.extend([*kept, onnx.helper.make_attribute("n_targets", targets)])
    return scores if not wide or _takes_float64(trees) else ""


def _takes_float64(trees: onnx.NodeProto) -> bool:
    try:
        return read_trees(trees).for_float64
    except ModelError:
        return False


def _both_classes(parts: PartsOfNode, scores: str, after: bytes, *, positive: bool) -> None:
    """The probabilities of two classes by one score."""
    if len(parts.fused.output) < 2:
        return
    if positive and after != b"LOGISTIC":
        both = [parts.add("Sub", [parts.number(1.0), scores]), scores]
    else:
        both = [parts.add("Neg", [scores]), scores]
    if after == b"LOGISTIC":
        both = [parts.add("Sigmoid", [side]) for side in both]
    parts.add("Concat", both, parts.fused.output[1], axis=1)


def _every_class_has_scores(parts: PartsOfNode, stated: dict[str, Any], classes: int) -> bool:
    """Whether each class has a tree all of whose leaves add to it: a class without a score is never chosen."""
    ids, trees, nodes = (np.array(stated[name], np.int64) for name in ("class_ids", "class_treeids", "class_nodeids"))
    modes, of_node = parts.given("nodes_modes", []), np.array(parts.given("nodes_treeids", []), np.int64)
    if not (ids.size == trees.size == nodes.size and len(modes) == of_node.size):
        return False
    names, leaves = np.unique(of_node[[mode == b"LEAF" for mode in modes]], return_counts=True)
    entries = np.unique(np.stack([ids, trees, nodes]), axis=1)
    pairs, reached = np.unique(entries[:2], axis=1, return_counts=True)
    there = dict(zip(names.tolist(), leaves.tolist(), strict=True))
    whole = {c for (c, tree), count in zip(pairs.T.tolist(), reached.tolist(), strict=True) if there.get(tree) == count}
    return set(range(classes)) <= whole
