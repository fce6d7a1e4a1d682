"""Shapes and axes that nodes take as inputs, stated as constants without the batch, whatever they were made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx

from veltair.compiler.onnx.folding.shape_propagation import TensorFacts
from veltair.compiler.onnx.node_evaluation import Array

FAR = np.iinfo(np.int64).max  # as the end of a slice: where the axis ends

Facts: TypeAlias = Mapping[str, TensorFacts]


def restate(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """Constants for those inputs of a node that are shapes and depend on the batch, by place.

    What cannot be stated without the batch is left out.
    """
    rule = RULES.get(node.op_type)
    return {} if rule is None else rule(node, facts)


def _reshape(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """-1 stands for the one dimension that grows with the batch."""
    if not _depends_on_batch(node, 1, facts):
        return {}
    target = [_fixed(extents, -1) for extents in zip(*facts[node.output[0]].shapes, strict=True)]
    return {1: np.array(target, np.int64)} if target.count(-1) <= 1 and 0 not in target else {}


def _expand(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """1 stands for an extent that the input has already."""
    if not _depends_on_batch(node, 1, facts):
        return {}
    given, wanted = (list(zip(*facts[name].shapes, strict=True)) for name in (node.input[0], node.output[0]))
    given = [(1,) * len(wanted[0])] * (len(wanted) - len(given)) + given
    target = [1 if have == want else _fixed(want, -1) for have, want in zip(given, wanted, strict=True)]
    return {} if -1 in target else {1: np.array(target, np.int64)}


def _slice(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """An end at or behind the end of an axis, whatever the batch, is far behind it."""
    ends = facts[node.input[2]].values
    if not _depends_on_batch(node, 2, facts) or ends is None or len({len(end) for end in ends}) > 1:
        return {}
    shapes = facts[node.input[0]].shapes
    axes: Sequence[int] = range(len(ends[0]))
    if len(node.input) > 3 and node.input[3]:
        known = facts[node.input[3]].constant
        if known is None:
            return {}
        axes = known.tolist()
    steps = facts[node.input[4]].constant if len(node.input) > 4 and node.input[4] else None
    if len(node.input) > 4 and node.input[4] and (steps is None or (steps < 0).any()):
        return {}
    stated = []
    for place, axis in enumerate(axes):
        at = tuple(int(end[place]) for end in ends)
        if len(set(at)) > 1 and any(end < shape[axis] for end, shape in zip(at, shapes, strict=True)):
            return {}
        stated.append(at[0] if len(set(at)) == 1 else FAR)
    return {2: np.array(stated, np.int64)}


def _axes(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """A number in place of a list, as PyTorch writes it for heads that share their keys, is a list of one."""
    known = facts[node.input[1]].constant if len(node.input) > 1 and node.input[1] else None
    return {1: known.reshape(1)} if known is not None and known.ndim == 0 else {}


def _resize(node: onnx.NodeProto, facts: Facts) -> dict[int, Array]:
    """An axis that grows with the batch keeps its extent, so that its size is not read: 1 stands there."""
    if not _depends_on_batch(node, 3, facts):
        return {}
    given, wanted = (list(zip(*facts[name].shapes, strict=True)) for name in (node.input[0], node.output[0]))
    if any(len(set(want)) > 1 and have != want for have, want in zip(given, wanted, strict=True)):
        return {}
    return {3: np.array([_fixed(want, 1) for want in wanted], np.int64)}


def _fixed(extents: Sequence[int], otherwise: int) -> int:
    """The extent that is the same at every batch size."""
    return extents[0] if len(set(extents)) == 1 else otherwise


def _depends_on_batch(node: onnx.NodeProto, place: int, facts: Facts) -> bool:
    if len(node.input) <= place or node.input[place] not in facts:
        return False
    known = facts[node.input[place]]
    return bool(known.values) and known.constant is None


RULES: Mapping[str, Callable[[onnx.NodeProto, Facts], dict[int, Array]]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Resize": _resize,
    "Unsqueeze": _axes,
}
