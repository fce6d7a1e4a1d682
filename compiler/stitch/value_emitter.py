"""Generated code for values of a stitched program, one vector at a time: `ValueEmitter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.bf16 import round_bits_to_bf16
from veltair.compiler.codegen.memory import vector_in_register, vector_load, vector_store
from veltair.compiler.codegen.prim_func import Operand
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.stitch.iteration_space import IterationSpace
from veltair.compiler.stitch.operators.operator_code import ELEMENTWISE
from veltair.compiler.stitch.stitch_program import EXPENSIVE, REDUCTIONS

DEEP = 4  # bindings in a chain before a variable ends it


@dataclass(slots=True)
class RowVector:
    """16 lanes of an iteration, and the values that are computed for them so far.

    >>> RowVector(index=[0, 16], lanes=4, slot=1, row={}).bound  # columns 16 to 19 of row 0
    {}
    """

    index: list[Expr]  # along each axis
    lanes: int  # that count; the others are beyond the last column
    slot: int  # place among the vectors of a step
    row: dict[str, Expr]  # values of the whole row, which its vectors share
    bound: dict[str, Expr] = field(default_factory=dict)  # values of this vector


@dataclass(frozen=True, slots=True)
class OperandViews:
    """The memory of the operands, seen in the axes of an iteration space.

    ::

        views = OperandViews.declare(space, operands, names, buffers)
        views.buffers["x"]  # (batch, 64), if x varies along both axes
    """

    buffers: Mapping[str, Any]  # by value, with the axes along which the value varies
    extents: Sequence[Expr]  # of all axes, outermost first

    @classmethod
    def declare(
        cls, space: IterationSpace, operands: Sequence[Operand], names: Sequence[str], buffers: Sequence[Any]
    ) -> OperandViews:
        """Views of the buffers, which hold the values of these names, one for each operand."""
        symbols = {
            dim: buffer.shape[i]
            for operand, buffer in zip(operands, buffers, strict=True)
            if isinstance(operand, Activation)
            for i, dim in enumerate(operand.shape)
            if dim < 0
        }
        extents = [symbols[e] if e < 0 else e for e in space.extents]
        views: dict[str, Any] = {}
        for name, buffer in zip(names, buffers, strict=True):
            if name in space.varies:
                shape = [e for e, along in zip(extents, space.varies[name], strict=True) if along] or [1]
                views[name] = T.decl_buffer(shape, buffer.dtype, data=buffer.data)
        return cls(views, extents)


class ValueEmitter:
    """Emits reads, computations and writes of a program's values.

    `kept` are the values that stay in a buffer between phases, a line of `step` numbers for each place of the inner
    axes; `columns` is the width of a unit.

    ::

        values = ValueEmitter(space, views, space.kept(schedule.scheme), columns=64, step=32)
        values.begin_task()
        values.write("y", values.value("y", vector, phase=0), vector)
    """

    def __init__(
        self, space: IterationSpace, views: OperandViews, kept: Sequence[str], columns: int, step: int
    ) -> None:
        self.space, self.kept, self._views = space, kept, views
        self._columns, self._step = columns, step
        self.ops = {op.output: op for op in space.program.ops}
        self._depth = dict.fromkeys(space.program.leaves, 0)  # of the bindings behind a value
        for op in space.program.ops:
            deep = max((self._depth[name] for name in op.operands), default=0) + (DEEP if op.kind in EXPENSIVE else 1)
            self._depth[op.output] = 0 if op.kind in REDUCTIONS or deep > DEEP else deep

    def begin_task(self) -> None:
        """Allocates what a task needs."""
        self._pad = T.alloc_buffer((LANES,), "float32", scope="local")
        inside = 1
        for axis in self.space.inner:
            inside *= self.space.extents[axis]
        self._buffers = {name: T.alloc_buffer((inside * self._step,), "float32", scope="global") for name in self.kept}

    def value(self, name: str, vector: RowVector, phase: int) -> Expr:
        """A value of one vector: bound before, of the row, kept, read, or computed now."""
        if name in vector.bound:
            return vector.bound[name]
        if name in vector.row:
            return vector.row[name]
        if name not in self.ops:
            value = self._read(name, vector)
        elif name in self.kept and self.space.phase[name] < phase:
            value = vector_load(self._buffers[name], self._place_in_buffer(vector))
        else:
            op = self.ops[name]
            value = ELEMENTWISE[op.kind](
                *[self.value(t, vector, phase) if isinstance(t, str) else broadcast(t) for t in op.terms]
            )
        vector.bound[name] = self._settled(name, value)
        return vector.bound[name]

    def row_value(self, name: str, vector: RowVector) -> Expr:
        """A value that is one for the whole row: read, or computed from others of the row."""
        if name not in self.ops:
            return self._settled(name, self._read(name, vector))
        op = self.ops[name]
        terms = [vector.row[t] if isinstance(t, str) else broadcast(t) for t in op.terms]
        return self._settled(name, ELEMENTWISE[op.kind](*terms))

    def keep(self, name: str, value: Expr, vector: RowVector) -> None:
        """Stores a vector of a kept value in its buffer."""
        vector_store(self._buffers[name], value, self._place_in_buffer(vector))

    def write(self, name: str, value: Expr, vector: RowVector) -> None:
        """Stores a vector of an output."""
        view, place = self._views.buffers[name], self._place(name, vector)
        varies = self.space.varies[name][-1]
        if varies and vector.lanes == LANES:
            vector_store(view, value, *place)
            return
        count = vector.lanes if varies else 1
        if view.dtype == "uint16":
            value = round_bits_to_bf16(T.bind(T.reinterpret("uint32x16", value)))
        value = T.bind(value)
        for lane in range(count):
            one = T.cast(T.Shuffle([value], [T.int32(lane)]), view.dtype)
            T.buffer_store(view, one, [*place[:-1], place[-1] + lane] if count > 1 else place)

    def _read(self, name: str, vector: RowVector) -> Expr:
        view, place = self._views.buffers[name], self._place(name, vector)
        if not self.space.varies[name][-1]:
            return broadcast(_as_float(view[tuple(place)], 1))
        if vector.lanes == LANES:
            if view.dtype in ("float32", "uint16"):
                return vector_load(view, *place)
            return _as_float(view[(*place[:-1], T.ramp(place[-1], 1, LANES))], LANES)
        vector_store(self._pad, broadcast(0.0), 0)
        for lane in range(vector.lanes):
            T.buffer_store(self._pad, _as_float(view[(*place[:-1], place[-1] + lane)], 1), [lane])
        return T.bind(vector_load(self._pad, 0))

    def _place(self, name: str, vector: RowVector) -> list[Expr]:
        return [i for i, along in zip(vector.index, self.space.varies[name], strict=True) if along] or [0]

    def _place_in_buffer(self, vector: RowVector) -> Expr:
        """Where a vector lies in the buffer of a kept value: that of a row, or of a block of columns."""
        line: Expr = 0
        for axis in self.space.inner:
            line = line * self.space.extents[axis] + vector.index[axis]
        column = vector.slot * LANES if self.space.reduces_across else vector.index[-1]
        if not self.space.reduces_across and self._columns < self.space.extents[-1]:
            column = column % self._columns
        return line * self._step + column

    def _settled(self, name: str, value: Expr) -> Expr:
        """A value in a binding, or in a register where a chain of bindings would become too long."""
        return T.bind(value) if self._depth[name] or name not in self.ops else vector_in_register(value)


def _as_float(value: Expr, count: int) -> Expr:
    """The value as float32, whatever is stored."""
    kind = str(value.ty.dtype) if hasattr(value.ty, "dtype") else str(value.dtype)
    if kind.startswith("uint16"):
        return T.reinterpret("float32", T.shift_left(T.cast(value, "uint32"), T.uint32(16)))
    return value if kind.startswith("float32") else T.cast(value, "float32" if count == 1 else f"float32x{count}")
