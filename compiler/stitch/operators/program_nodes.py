"""A stitched program as ONNX nodes again, so that others than our kernels can compute the same operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.stitch.stitch_program import OpTerm, Shape, StitchOp, broadcast_shapes
from veltair.compiler.stitch.stitched_layer import StitchedPart
from veltair.types import TensorSpec

SAME_NAME = (
    *("add", "sub", "mul", "div", "min", "max", "neg", "abs", "exp", "log", "erf", "tanh", "sigmoid", "sin", "cos"),
    "sqrt",
)
OPERATORS: Mapping[str, str] = {name: name.capitalize() for name in (*SAME_NAME, "reciprocal", "equal", "round")} | {
    "less": "Less",
    "less_equal": "LessOrEqual",
    "where": "Where",
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
}
COMPARISONS = ("less", "less_equal", "equal")  # booleans in ONNX, ones and zeros in a program
OPSET = 17  # the last one in which the axes of ReduceMax are an attribute


@dataclass(slots=True)
class ProgramNodes:
    """The nodes of a program of a layer, with the names of the layer's tensors at both ends.

    ::

        found = ProgramNodes(part, prefix="y/tvm")
        import_layers(found.nodes, found.values, found.constants, found.inputs, found.outputs, max_batch, OPSET)
    """

    part: StitchedPart
    prefix: str  # of the names of nodes and of values between them
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # of the program's values
    _flags: dict[str, str] = field(default_factory=dict)  # inputs that are booleans, by the program's value

    def __post_init__(self) -> None:
        program = self.part.program
        for leaf in program.leaves:
            if leaf in self.part.constants:
                self.constants[leaf] = np.asarray(self.part.constants[leaf], np.float32)
                self._names[leaf] = leaf
            else:
                self._declare_input(leaf)
        for op in program.ops:
            self._names[op.output] = self._translate(op)
        for name in program.outputs:
            self._end(name)

    @property
    def inputs(self) -> list[str]:
        return [tensor.name for leaf, tensor in self.part.tensors.items() if leaf in self.part.program.leaves]

    @property
    def outputs(self) -> list[str]:
        return [self.part.tensors[name].name for name in self.part.program.outputs]

    def _declare_input(self, leaf: str) -> None:
        tensor = self.part.tensors[leaf]
        self.values[tensor.name] = TensorSpec(tensor.name, tensor.dtype, tensor.shape)
        self._names[leaf] = tensor.name
        if tensor.dtype == "bool":
            self._flags[leaf] = tensor.name
        if tensor.dtype != "float32":
            self._names[leaf] = self._node("Cast", [tensor.name], to=onnx.TensorProto.FLOAT)

    def _translate(self, op: StitchOp) -> str:
        if op.kind == "where":
            first = op.terms[0]
            if isinstance(first, str) and first in self._flags:
                flag = self._flags[first]
            else:
                flag = self._node("Cast", [self._term(first)], to=onnx.TensorProto.BOOL)
            return self._node("Where", [flag, *map(self._term, op.terms[1:])])
        terms = [self._term(term) for term in op.terms]
        if op.kind == "reduce_sum":
            return self._node("ReduceSum", [*terms, self._constant(np.array(op.axes, np.int64))], keepdims=1)
        if op.axes:
            return self._node(OPERATORS[op.kind], terms, axes=list(op.axes), keepdims=1)
        made = self._node(OPERATORS[op.kind], terms)
        if op.kind in COMPARISONS:
            made = self._node("Cast", [made], to=onnx.TensorProto.FLOAT)
        if broadcast_shapes([self._shape(term) for term in op.terms]) != op.shape:  # it repeats its operand
            extents = np.array([max(extent, 1) for extent in op.shape], np.int64)
            made = self._node("Expand", [made, self._constant(extents)])
        return made

    def _end(self, name: str) -> None:
        """Gives an output the name and the shape of its tensor."""
        tensor, op = self.part.tensors[name], next(op for op in self.part.program.ops if op.output == name)
        self.values[tensor.name] = TensorSpec(tensor.name, tensor.dtype, tensor.shape)
        if op.stored is None:
            self._node("Identity", [self._names[name]], tensor.name)
        else:
            axes = self._constant(np.array(op.axes, np.int64))
            self._node("Squeeze", [self._names[name], axes], tensor.name)

    def _term(self, term: OpTerm) -> str:
        return self._names[term] if isinstance(term, str) else self._constant(np.array(term, np.float32))

    def _shape(self, term: OpTerm) -> Shape:
        return self.part.program.shapes[term] if isinstance(term, str) else ()

    def _constant(self, value: NDArray[Any]) -> str:
        name = f"{self.prefix}/constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def _node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        name = f"{self.prefix}/{len(self.nodes)}"
        output = output or name
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], name, **attributes))
        return output
