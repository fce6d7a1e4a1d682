"""The operators that one ONNX node becomes, put one behind the other: `OperatorBuilder`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.stitch.stitch_program import OpTerm, Shape, StitchOp, broadcast_shapes
from veltair.types import TensorSpec


class OperatorBuilder:
    """The operators of one node, named after its output. Raises LookupError where the language cannot state it.

    Use::

        out = OperatorBuilder(node, values, constants)
        out.put("max", node.input[0], 0.0, last=True)
    """

    def __init__(self, node: onnx.NodeProto, values: Mapping[str, TensorSpec], constants: Mapping[str, NDArray[Any]]):
        self.node, self.values, self.constants = node, values, constants
        self.shapes: dict[str, Shape] = {}
        self.ops: list[StitchOp] = []

    def term(self, name: str) -> OpTerm:
        """An input as an operand: a number where it is a constant of one element."""
        if name in self.constants and self.constants[name].size == 1 and self.constants[name].ndim <= 1:
            return float(self.constants[name].reshape(()))
        return name

    def shape(self, term: OpTerm) -> Shape:
        if not isinstance(term, str):
            return ()
        if term in self.shapes:
            return self.shapes[term]
        return self.constants[term].shape if term in self.constants else self.values[term].shape

    def put(self, kind: str, *terms: OpTerm, last: bool = False) -> str:
        """Appends an element-wise operator; the last one of a node makes its output."""
        shape = broadcast_shapes([self.shape(term) for term in terms])
        if shape is None:
            raise LookupError(kind)
        return self._append(kind, terms, shape, (), last)

    def reduce(self, kind: str, term: OpTerm, axes: Sequence[int], last: bool = False) -> str:
        """Appends a reduction over axes counted from the end; they stay, with extent 1."""
        shape = list(self.shape(term))
        if not axes or any(shape[axis] <= 1 for axis in axes):  # nothing to do, empty, or the batch
            raise LookupError(kind)
        for axis in axes:
            shape[axis] = 1
        return self._append(f"reduce_{kind}", (term,), tuple(shape), tuple(sorted(axes)), last)

    def spread(self, term: OpTerm, shape: Shape) -> str:
        """Broadcasts a value to the shape of the node's output; no extent of 1 becomes the batch."""
        given = self.shape(term)
        given = (1,) * (len(shape) - len(given)) + given
        if broadcast_shapes([given, shape]) != shape or any(
            (d < 0) != (g < 0) for d, g in zip(shape, given, strict=True)
        ):
            raise LookupError("repeated")
        return self._append("mul", (term, 1.0), shape, (), last=True)

    def mean(self, term: OpTerm, axes: Sequence[int], last: bool = False) -> str:
        count = math.prod(self.shape(term)[axis] for axis in axes)
        return self.put("mul", self.reduce("sum", term, axes), 1.0 / max(count, 1), last=last)

    def _append(self, kind: str, terms: Sequence[OpTerm], shape: Shape, axes: tuple[int, ...], last: bool) -> str:
        name = self.node.output[0] if last else f"{self.node.output[0]}/{len(self.ops)}"
        self.shapes[name] = shape
        self.ops.append(StitchOp(name, kind, tuple(terms), shape, axes))
        return name

    def ending(self, name: str) -> None:
        """Makes this value the node's output, under another shape where ONNX drops the reduced axes."""
        shape = self.values[self.node.output[0]].shape
        op = self.ops.pop()
        stored = shape if shape != self.shapes[name] else None
        self.ops.append(StitchOp(self.node.output[0], op.kind, op.terms, op.shape, op.axes, stored))
