"""Which samples of a batch each element of a tensor depends on, followed through the graph.

Queries of different clients share a batch only where no sample's answer depends on another's. Shapes do not tell: a
mean over the batch, or a reshape of what was concatenated along it, gives outputs with a row for each sample as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.folding.element_wise import ELEMENT_WISE
from veltair.compiler.onnx.node_attributes import attribute, reduced_axes
from veltair.compiler.onnx.node_evaluation import Array, NodeEvaluator
from veltair.types import TensorSpec

BATCH = 2  # samples that are told apart, each by a bit
BOTH = 0b11
MOVING = frozenset({"Concat", "Split", "Slice", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"})
RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
ALONG_AXIS = frozenset({"Softmax", "LogSoftmax", "Hardmax", "CumSum", "ArgMax", "ArgMin", "TopK", "LpNormalization"})
BY_ELEMENT = ELEMENT_WISE | {"Mean", "Dropout"}

# Bits of samples by element. An axis of 1 stands for one along which all are alike.
Labels: TypeAlias = NDArray[np.uint8]


def keeps_samples_apart(
    nodes: Sequence[onnx.NodeProto],
    outputs: Set[str],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, Array],
    opset: int,
) -> bool:
    """Whether no row of an output depends on another sample than its own, as far as the operators are known here.

    An operator that is not known counts as one that computes each row of its outputs from the same row of its inputs.
    `nodes` in topological order.

    >>> mean = onnx.helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])
    >>> rows = {name: TensorSpec(name, "float32", (-1, 4)) for name in "xy"}
    >>> keeps_samples_apart([mean], {"y"}, rows, {}, opset=17)
    False
    """
    found = _SampleLabels(values, constants, NodeEvaluator(opset))
    for node in nodes:
        found.follow(node)
    return all(found.are_rows(name) for name in outputs if name in values)


class _SampleLabels:
    """The labels of all tensors so far, by name."""

    def __init__(
        self, values: Mapping[str, TensorSpec], constants: Mapping[str, Array], evaluator: NodeEvaluator
    ) -> None:
        self._values, self._constants, self._evaluator = values, constants, evaluator
        self._labels: dict[str, Labels] = {}

    def follow(self, node: onnx.NodeProto) -> None:
        """Label the outputs of a node, whose inputs are labelled unless they are constants or the graph's inputs."""
        found: Sequence[Labels | None] = self._known(node) or [None] * len(node.output)
        for name, labels in zip(node.output, found, strict=False):
            if name in self._values:
                self._labels[name] = self._row_by_row(node, name) if labels is None else _compressed(labels)

    def are_rows(self, name: str) -> bool:
        """Whether each row depends on its own sample alone, if a sample's rows lie side by side."""
        labels, rows = self._of(name), self._rows_of(name)
        return labels.ndim == rows.ndim and not np.any(labels & ~rows)

    def _known(self, node: onnx.NodeProto) -> list[Labels] | None:
        """The labels of the outputs; None for an operator, or a use of one, that is not known here."""
        kind, first = node.op_type, self._of(node.input[0]) if node.input else np.zeros((), np.uint8)
        if kind in BY_ELEMENT:
            return [_joined([self._of(name) for name in node.input if name])]
        if kind in RESHAPING:
            whole = np.broadcast_to(first, self._shape(node.input[0]))
            return [whole.reshape(self._shape(node.output[0]))]
        if kind == "Transpose":
            return [first.transpose(attribute(node, "perm", None) or range(first.ndim)[::-1])]
        if kind.startswith("Reduce"):
            return self._reduced(node, first)
        if kind in ALONG_AXIS:
            return self._along_axis(node, first)
        if kind in ("MatMul", "Gemm"):
            return self._product(node)
        return self._moved(node) if kind in MOVING else None

    def _reduced(self, node: onnx.NodeProto, labels: Labels) -> list[Labels] | None:
        if len(node.input) > 1 and node.input[1] and node.input[1] not in self._constants:
            return None
        axes = [axis % labels.ndim for axis in reduced_axes(node, self._constants)]
        if not axes and attribute(node, "noop_with_empty_axes", 0):
            return [labels]
        axes = axes or list(range(labels.ndim))
        whole = _united(labels, axes)
        keep = attribute(node, "keepdims", 1)
        return [whole if keep else whole.reshape([n for axis, n in enumerate(whole.shape) if axis not in axes])]

    def _along_axis(self, node: onnx.NodeProto, labels: Labels) -> list[Labels] | None:
        axis = attribute(node, "axis", 0 if node.op_type.startswith("Arg") else -1)
        if node.op_type == "CumSum":
            if node.input[1] not in self._constants:
                return None
            axis = int(self._constants[node.input[1]].reshape(-1)[0])
        elif node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and self._evaluator.opset < 13:
            axis = attribute(node, "axis", 1)
            whole = _united(labels, range(axis % labels.ndim, labels.ndim))  # of a matrix made of the axes before
            return [whole]
        whole = _united(labels, [axis % labels.ndim])
        if node.op_type.startswith("Arg") and not attribute(node, "keepdims", 1):
            whole = whole.squeeze(axis % labels.ndim)
        return [whole] * len(node.output)

    def _product(self, node: onnx.NodeProto) -> list[Labels] | None:
        left, right = (self._of(name) for name in node.input[:2])
        if node.op_type == "Gemm":
            left = left.T if attribute(node, "transA", 0) else left
            right = right.T if attribute(node, "transB", 0) else right
        if min(left.ndim, right.ndim) < 2:
            return None
        whole = _joined([_united(left, [left.ndim - 1]), _united(right, [right.ndim - 2])])
        return [_joined([whole, *(self._of(name) for name in node.input[2:] if name)])]

    def _moved(self, node: onnx.NodeProto) -> list[Labels] | None:
        """Do to the labels what the node does to the values."""
        labelled = node.input if node.op_type == "Concat" else node.input[:1]
        if any(name not in self._constants for name in node.input[len(labelled) :] if name):
            return None
        wholes = [np.broadcast_to(self._of(name), self._shape(name)) for name in labelled]
        others = [self._constants[name] if name else None for name in node.input[len(labelled) :]]
        return self._evaluator.run(node, [*wholes, *others])

    def _row_by_row(self, node: onnx.NodeProto, output: str) -> Labels:
        """Labels of an operator that computes each row from the same row of its inputs, of those with as many rows."""
        labels = {name: self._of(name) for name in node.input if name and name not in self._constants}
        rank, axis = len(self._values[output].shape), self._batch_axis(output)
        if axis is None or any(np.any(each == BOTH) for each in labels.values()):
            return np.full([1] * rank, BOTH, np.uint8)
        rows, found = self._values[output].shape[axis], list[Labels]()
        for name, each in labels.items():
            own = self._batch_axis(name)
            if own is not None and self._values[name].shape[own] == rows:
                united = _united(each, [place for place in range(each.ndim) if place != own])
                found.append(united.reshape([-1 if place == axis else 1 for place in range(rank)]))
        return _joined(found) if found else self._rows_of(output)

    def _of(self, name: str) -> Labels:
        if name in self._constants:
            return np.zeros([1] * self._constants[name].ndim, np.uint8)
        found = self._labels.get(name)
        return self._rows_of(name) if found is None else found

    def _rows_of(self, name: str) -> Labels:
        """A sample's rows side by side; all samples where the tensor has no axis of the batch."""
        spec, axis = self._values[name].shape, self._batch_axis(name)
        if axis is None:
            return np.full([1] * len(spec), BOTH, np.uint8)
        rows = np.repeat(np.array([1 << sample for sample in range(BATCH)], np.uint8), -spec[axis])
        return rows.reshape([-1 if axis == place else 1 for place in range(len(spec))])

    def _batch_axis(self, name: str) -> int | None:
        """The first axis whose extent is the batch, or a multiple of it."""
        return next((axis for axis, dim in enumerate(self._values[name].shape) if dim < 0), None)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self._constants:
            return self._constants[name].shape
        return tuple(dim if dim >= 0 else -dim * BATCH for dim in self._values[name].shape)


def _united(labels: Labels, axes: Sequence[int]) -> Labels:
    """What depends on all along these axes."""
    return np.bitwise_or.reduce(labels, axis=tuple(axes), keepdims=True)


def _joined(labels: Sequence[Labels]) -> Labels:
    found = np.zeros((), np.uint8)
    for each in labels:
        found = found | each
    return found


def _compressed(labels: Labels) -> Labels:
    """The labels with axes of 1 where all are alike along them."""
    for axis, extent in enumerate(labels.shape):
        if extent > 1:
            one = labels.take([0], axis)
            labels = one if np.array_equal(np.broadcast_to(one, labels.shape), labels) else labels
    return labels
