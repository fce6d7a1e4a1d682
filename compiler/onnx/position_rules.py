"""Which operators keep the positions along a dimension apart, and which mix them only where the padded ones are zero.

`Positions` walks a model that was loaded at two extents. The axes whose extents differ are those of the dimension; what
a node does along them follows from its operator. Position-wise operators need no more. A matrix product, a sum or
a softmax along the dimension mixes positions: padding does not show in it where every padded position is zero in one
operand (of a softmax: in its result), which values tell (`padding_proof`). Everything else is refused. A node that
reads the last position has an error of its own, so that it may be told where a query ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.dimensions.fixed_extent import PLACE
from veltair.compiler.onnx.folding.element_wise import ELEMENT_WISE
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.onnx_model import OnnxModel

POSITION_WISE = ELEMENT_WISE | {"Expand", "QuantizeLinear", "DequantizeLinear"}
ALONG_AXIS = frozenset({"LogSoftmax", "ArgMax", "ArgMin", "TopK", "Hardmax", "Split", "Concat"})
# Inputs that may depend on the extent: they show in the shape of the result, or are looked at by themselves.
LOOKED_AT: Mapping[str, tuple[int, ...]] = {"Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Gather": (1,)}
REDUCTIONS = frozenset(
    {f"Reduce{kind}" for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSumExp", "SumSquare")}
)


Array: TypeAlias = NDArray[Any]


class PaddingShowsError(Exception):
    """Why padding along the dimension may change what the model computes."""


class LastPositionError(PaddingShowsError):
    """A node reads the last position, which is padding unless it is told where a query ends.

    name: its result. keeps: whether that has the dimension still, as one of 1.
    """

    def __init__(self, node: onnx.NodeProto, *, keeps: bool) -> None:
        super().__init__(f"node {node.name!r}: {node.op_type} reads the last position")
        self.name, self.keeps = node.output[0], keeps


@dataclass(frozen=True, slots=True)
class ZeroNeeded:
    """At least one of `tensors`, each with its axis, has to be zero wherever the position is padded.

    >>> ZeroNeeded("MatMul_3", (("probabilities", 3), ("values", 2))).node
    'MatMul_3'
    """

    node: str
    tensors: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Positions:
    """The tensors of a model at two extents, of which the first is the greater.

    ::

        needed = Positions(large, small, 64, 32, low=1).check()
    """

    large: OnnxModel
    small: OnnxModel
    extent: int
    other: int
    low: int  # the smallest extent of a query
    batch: int  # samples that the model was loaded for
    axes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # those of the dimension, by tensor
    shifted: list[str] = field(default_factory=list)  # constants that the extent shifts (`score_shifts` checks them)

    def check(self) -> list[ZeroNeeded]:
        """What has to be zero. Raises PaddingShowsError."""
        shapes, others = self.large.values, self.small.values
        if [(n.op_type, *n.output) for n in self.large.nodes] != [(n.op_type, *n.output) for n in self.small.nodes]:
            raise PaddingShowsError("the model has other nodes at another extent")
        for name, spec in shapes.items():
            self.axes[name] = self._axes(name, spec.shape, others[name].shape if name in others else ())
        data = {
            name
            for node in self.large.nodes
            for place, name in enumerate(node.input)
            if place not in LOOKED_AT.get(node.op_type, ())
        }
        for name, value in self.large.initializers.items():
            if name in data:
                self._check_constant(name, value)
        return [zero for node in self.large.nodes for zero in self._visit(node)]

    def _axes(self, name: str, large: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
        if len(large) != len(small):
            raise PaddingShowsError(f"tensor {name!r} has other dimensions at another extent")
        found = tuple(axis for axis, (a, b) in enumerate(zip(large, small, strict=True)) if a != b)
        for axis in found:  # a multiple: rows of one batch after the other
            if large[axis] * self.other != small[axis] * self.extent or large[axis] % self.extent:
                raise PaddingShowsError(f"tensor {name!r} has {large[axis]} where the dimension has {self.extent}")
        return found

    def _check_constant(self, name: str, value: Array) -> None:
        """A constant begins alike at every extent: it says nothing of how large that is."""
        other = self.small.initializers.get(name)
        axes = self.axes.get(name, ())
        if other is None or any(value.shape[axis] != self.extent for axis in axes):
            raise PaddingShowsError(f"constant {name!r} depends on the extent")
        cut = self.cut(name, value)
        if cut is not other and not np.array_equal(cut, other, equal_nan=value.dtype.kind == "f"):
            if value.dtype == np.float32 and axes == (value.ndim - 1,):
                self.shifted.append(name)
                return
            raise PaddingShowsError(f"constant {name!r} depends on the extent")

    def cut(self, name: str, value: Array) -> Array:
        """A constant as far as it is of the smaller extent."""
        axes = self.axes[name]
        return value[tuple(slice(0, self.other) if axis in axes else slice(None) for axis in range(value.ndim))]

    def _visit(self, node: onnx.NodeProto) -> Iterator[ZeroNeeded]:
        read = [name for name in node.input if name]
        if not any(self.axes[name] for name in (*read, *filter(None, node.output))):
            return
        op, first = node.op_type, node.input[0]
        axes, rank = self.axes[first], len(self._shape(first))
        if node.domain not in ("", "ai.onnx"):
            raise PaddingShowsError(f"node {node.name!r}: {op} may mix positions")
        if op in POSITION_WISE:
            return
        if op == "MatMul":
            yield from self._product(node, rank - 1, max(len(self._shape(node.input[1])) - 2, 0))
        elif op == "Gemm":
            yield from self._product(node, 1 - attribute(node, "transA", 0), attribute(node, "transB", 0))
        elif op == "Softmax":
            axis = attribute(node, "axis", -1) % rank
            if axis in axes:
                yield ZeroNeeded(node.name, ((node.output[0], axis),))
        elif op == "ReduceSum":
            for axis in set(self._reduced(node, rank)) & set(axes):
                yield ZeroNeeded(node.name, ((first, axis),))
        elif not self._keeps_apart(node, axes, rank):
            if self._reads_last(node, rank):
                raise LastPositionError(node, keeps=len(self._shape(node.output[0])) == rank)
            raise PaddingShowsError(f"node {node.name!r}: {op} may mix positions")

    def _keeps_apart(self, node: onnx.NodeProto, axes: tuple[int, ...], rank: int) -> bool:
        op, first = node.op_type, node.input[0]
        match op:
            case "Transpose" | "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten":
                return op == "Transpose" or self._same_strides(first, node.output[0])
            case "LayerNormalization" | "RMSNormalization":
                return not set(axes) & set(range(attribute(node, "axis", -1) % rank, rank))
            case "CumSum":  # at each position, of those before it
                along = self._constant(node.input[1])
                return along is not None and (
                    int(along.reshape(-1)[0]) % rank not in axes or not attribute(node, "reverse", 0)
                )
            case "Gather":
                return self._gathers_apart(node, attribute(node, "axis", 0) % rank, axes)
            case "GatherND":
                return self._looks_up_apart(node, axes)
            case "Slice":
                return self._slices_apart(node, axes, rank)
            case "Trilu":
                return all(self._shape(first)[axis] == self.extent for axis in axes)
            case "BatchNormalization":
                return 1 not in axes
            case "GatherElements":
                return attribute(node, "axis", 0) % rank not in axes
            case _ if op in REDUCTIONS:
                return not set(self._reduced(node, rank)) & set(axes)
            case "Concat" if len(node.input) == 1:
                return True
            case _ if op in ALONG_AXIS:
                default = {"ArgMax": 0, "ArgMin": 0, "Split": 0}.get(op, -1)
                everywhere = {axis for name in node.input if name for axis in self.axes[name]}
                return attribute(node, "axis", default) % rank not in everywhere
        return False

    def _product(self, node: onnx.NodeProto, left: int, right: int) -> Iterator[ZeroNeeded]:
        sides = ((node.input[0], left), (node.input[1], right))
        if any(axis in self.axes[name] for name, axis in sides):
            yield ZeroNeeded(node.name, sides)

    def _reduced(self, node: onnx.NodeProto, rank: int) -> list[int]:
        given = (
            self._constant(node.input[1]) if len(node.input) > 1 and node.input[1] else attribute(node, "axes", None)
        )
        if given is None or not len(given):
            return list(range(rank))
        return [int(axis) % rank for axis in given]

    def _same_strides(self, before: str, after: str) -> bool:
        """Whether each position lies where it lay: as many elements follow each one of the dimension."""
        return sorted(self._strides(before)) == sorted(self._strides(after))

    def _strides(self, name: str) -> list[int]:
        shape = self._shape(name)
        return [prod(shape[axis + 1 :]) for axis in self.axes[name]]

    def _gathers_apart(self, node: onnx.NodeProto, axis: int, axes: tuple[int, ...]) -> bool:
        """Exporters write some broadcasts as look-ups at constant positions."""
        name = node.input[1]
        index, other = self._constant(name), self.small.initializers.get(name)
        if axis not in axes:
            if index is not None:
                self._check_constant(name, index)
            return True
        if index is None or other is None:
            return False
        if self._is_whole(node.input[0], axis) and ((index >= 0) & (index < self.low)).all():
            return np.array_equal(index, other)
        rows = self.cut(name, index // self.extent)
        return np.array_equal(rows, other // self.other) and self._is_own_position(name, index % self.extent)

    def _looks_up_apart(self, node: onnx.NodeProto, axes: tuple[int, ...]) -> bool:
        index = self._constant(node.input[1])
        if node.input[1] == PLACE and attribute(node, "batch_dims", 0) == 1:  # the query's own last position
            return axes == (1,) and self._is_whole(node.input[0], 1)
        if index is None or attribute(node, "batch_dims", 0):
            return False
        if all(axis >= index.shape[-1] for axis in axes):  # the dimension is none of those that are looked up
            return True
        whole = all(axis < index.shape[-1] and self._is_whole(node.input[0], axis) for axis in axes)
        return whole and all(self._is_own_position(node.input[1], index[..., axis]) for axis in axes)

    def _is_own_position(self, name: str, index: Array) -> bool:
        """Whether each position along an axis of the index reads what is at that position."""
        for axis in self.axes[name]:
            shape = [1] * index.ndim
            if axis < index.ndim and index.shape[axis] == self.extent:
                shape[axis] = self.extent
                if (index == np.arange(self.extent).reshape(shape)).all():
                    return True
        return False

    def _slices_apart(self, node: onnx.NodeProto, axes: tuple[int, ...], rank: int) -> bool:
        names = [node.input[place] if place < len(node.input) else "" for place in range(1, 5)]
        found = [self._constant(name) if name else None for name in names]
        begins, ends = found[0], found[1]
        if any(name and value is None for name, value in zip(names, found, strict=True)):
            return False
        others = self.small.initializers.get(names[0])
        if begins is None or ends is None or others is None or len(others) != len(begins):
            return False
        along = range(len(begins)) if found[2] is None else found[2]
        steps = np.ones(len(begins), np.int64) if found[3] is None else found[3]
        for begin, other, end, axis, step in zip(begins, others, ends, along, steps, strict=True):
            if int(axis) % rank not in axes:
                if begin != other:
                    return False
                continue
            if (begin, other) == (-self.extent, -self.other):  # the first position, counted from the end
                begin = other = 0
            if step != 1 or begin != other or begin < 0 or not self._is_whole(node.input[0], int(axis) % rank):
                return False
            if not (0 <= end <= self.low or (begin == 0 and end >= self.extent)):
                return False
        return True

    def _reads_last(self, node: onnx.NodeProto, rank: int) -> bool:
        """Whether a node takes the last position of (batch, extent, …) alone, counted from either end."""
        name = node.input[0]
        if self.axes[name] != (1,) or self._shape(name)[:2] != (self.batch, self.extent):
            return False
        if node.op_type == "Gather":
            return attribute(node, "axis", 0) % rank == 1 and self._is_last(node.input[1])
        if node.op_type != "Slice" or len(node.input) < 4:
            return False
        end, axis = self._constant(node.input[2]), self._constant(node.input[3])
        if end is None or axis is None or axis.tolist() not in ([1], [1 - rank]) or (end < self.extent).any():
            return False
        return self._shape(node.output[0])[1] == 1 and self._is_last(node.input[1])

    def _is_last(self, name: str) -> bool:
        found = [(self._constant(name), self.extent), (self.small.initializers.get(name), self.other)]
        return all(
            index is not None and index.size == 1 and int(index.item()) in (-1, extent - 1) for index, extent in found
        )

    def _is_whole(self, name: str, axis: int) -> bool:
        return self._shape(name)[axis] == self.extent

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.large.values[name].shape

    def _constant(self, name: str) -> Array | None:
        return self.large.initializers.get(name)
