"""One kernel of stitched programs: a parallel loop over units of work, and in each the phases of its composition.

A unit is a row: one place along the axes that no reduction runs over. Reductions run along the vectors and are folded
at the end of a phase; or, where the last axis is not reduced, across them, and a unit is a few vectors of columns.
Values are vectors of 16 floats throughout; a value that is one for a row is the same in every lane. The lanes beyond
the last column are filled with zeros, kept out of reductions and never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_in_register, vector_load, vector_store
from veltair.compiler.codegen.prim_func import Operand, build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.stitch.iteration_space import IterationSpace, KernelSchedule
from veltair.compiler.stitch.operators.operator_code import COMBINE, FOLD, NEUTRAL
from veltair.compiler.stitch.stitch_program import REDUCTIONS, StitchOp
from veltair.compiler.stitch.value_emitter import OperandViews, RowVector, ValueEmitter


def stitched_function(
    spaces: Sequence[tuple[IterationSpace, KernelSchedule]],
    operands: Sequence[Operand],
    names: Sequence[str],
    slices: int = 0,
) -> Any:
    """A PrimFunc over the operands in order, which hold the values of these names.

    Several programs are packed: each has a range of the tasks of one parallel loop. Where there are `slices`, each of
    that many tasks does an equal share of every program instead, so that threads end together.
    """

    def body(*buffers: Any) -> None:
        kernels = [
            StitchedKernel(space, schedule, OperandViews.declare(space, operands, names, buffers))
            for space, schedule in spaces
        ]
        if slices == 1:
            for kernel in kernels:
                kernel.emit_slice(0, 1)
            return
        if slices:
            with T.parallel(0, slices) as part:
                for kernel in kernels:
                    kernel.emit_slice(part, slices)
            return
        firsts: list[Expr] = [0]
        for kernel in kernels:
            firsts.append(firsts[-1] + kernel.tasks)
        if len(kernels) == 1 and kernels[0].is_single_task:
            kernels[0].emit(0)
            return
        with T.parallel(0, firsts[-1]) as task:
            for kernel, first, end in zip(kernels, firsts[:-1], firsts[1:], strict=True):
                if len(kernels) == 1:
                    kernel.emit(task)
                else:
                    with when(T.And(task >= first, task < end)):
                        kernel.emit(T.bind(task - first))

    return build_prim_func(operands, body)


class StitchedKernel:
    """Emits the tasks of one program; `stitched_function` makes it inside the function that it emits into.

    ::

        kernel = StitchedKernel(space, schedule, OperandViews.declare(space, operands, names, buffers))
        with T.parallel(0, kernel.tasks) as task:
            kernel.emit(task)
    """

    def __init__(self, space: IterationSpace, schedule: KernelSchedule, views: OperandViews) -> None:
        self.space, self.schedule, self._extents = space, schedule, views.extents
        self._width = space.extents[-1]
        self._columns = min(schedule.columns or self._width, self._width) if space.splits else self._width
        self._chunks = -(-self._width // self._columns)
        step = schedule.unroll * LANES if space.reduces_across else -(-self._columns // LANES) * LANES
        self._values = ValueEmitter(space, views, space.kept(schedule.scheme), self._columns, step)
        self._ops = self._values.ops
        self._units: Expr = self._chunks
        for axis in space.outer:
            self._units = self._units * self._extents[axis]
        self.tasks: Expr = (self._units + (schedule.rows - 1)) // schedule.rows

    @property
    def is_single_task(self) -> bool:
        """Whether one task does all, at any batch."""
        outer = [self.space.extents[axis] for axis in self.space.outer]
        units = self._chunks
        for extent in outer:
            units *= abs(extent)
        return units <= self.schedule.rows and not any(extent < 0 for extent in outer)

    def emit(self, task: Expr) -> None:
        """The code of one task."""
        rows = self.schedule.rows
        self._emit_units(task * rows, 1 if rows == 1 else T.min(rows, self._units - task * rows))

    def emit_slice(self, part: Expr, slices: int) -> None:
        """The code of one of equal shares of the units."""
        if slices == 1:
            self._emit_units(0, self._units)
            return
        each, left = T.bind(self._units // slices), T.bind(self._units % slices)
        self._emit_units(T.bind(part * each + T.min(part, left)), each + T.Select(part < left, 1, 0))

    def _emit_units(self, first: Expr, count: Expr) -> None:
        self._values.begin_task()
        self._accumulators = {
            op.output: T.alloc_buffer((self.schedule.unroll * LANES,), "float32", scope="local")
            for op in self._ops.values()
            if op.kind in REDUCTIONS
        }
        if isinstance(count, int) and count == 1:
            self._emit_unit(first)
        else:
            with T.serial(0, count) as r:
                self._emit_unit(T.bind(first + r))

    def _emit_unit(self, unit: Expr) -> None:
        index: list[Expr] = [0] * len(self._extents)
        rest, chunk = (unit, 0) if self._chunks == 1 else (T.bind(unit // self._chunks), T.bind(unit % self._chunks))
        outer = self.space.outer
        for place, axis in enumerate(reversed(outer)):
            last = place == len(outer) - 1
            index[axis] = rest if last else T.bind(rest % self._extents[axis])
            rest = rest if last else T.bind(rest // self._extents[axis])
        if self.space.reduces_across:
            for columns, first in self._steps(chunk):
                vectors = [RowVector([*index[:-1], first + k * LANES], lanes, k, {}) for k, lanes in enumerate(columns)]
                for phase in range(self.space.phases):
                    self._emit_phase(phase, vectors, chunk)
                self._write_rows(vectors)
        else:
            row = RowVector(index, 1, 0, {})
            for phase in range(self.space.phases):
                self._emit_phase(phase, [row], chunk)
            self._write_rows([row])

    def _steps(self, chunk: Expr) -> Iterator[tuple[list[int], Expr]]:
        """Steps over the columns of a chunk: lanes that count in each vector, and the first column."""
        unroll = self.schedule.unroll
        stride = unroll * LANES
        start = chunk * self._columns
        end = start + self._columns if self._chunks == 1 else T.min(start + self._columns, self._width)
        full = self._columns // stride if self._chunks == 1 else T.bind((end - start) // stride)
        if not isinstance(full, int) or full > 1:
            with T.serial(0, full) as i:
                yield [LANES] * unroll, start + i * stride
        elif full == 1:
            yield [LANES] * unroll, start
        left = self._width % stride
        if left:  # columns and strides divide each other, so only the last chunk has any
            vectors = [LANES] * (left // LANES) + ([left % LANES] if left % LANES else [])
            with ExitStack() as stack:
                if self._chunks > 1:
                    stack.enter_context(when(T.EQ(chunk, self._chunks - 1)))
                yield vectors, self._width - left

    def _emit_phase(self, phase: int, rows: Sequence[RowVector], chunk: Expr) -> None:
        """All that can be computed once the reductions of the phases before are done.

        `rows`: the vectors of the step where reductions run across vectors; else one, which stands for the row.
        """
        space = self.space
        for vector in rows:
            for name, ready in space.phase.items():
                if ready == phase and space.is_row(name) and name not in vector.row and self._is_used(name):
                    vector.row[name] = self._values.row_value(name, vector)
        sinks = [op for op in self._ops.values() if self._is_sink(op, phase)]
        if not sinks:
            return
        reductions = [op for op in sinks if op.kind in REDUCTIONS]
        slots = len(rows) if space.reduces_across else self.schedule.unroll
        for op in reductions:
            for k in range(slots):
                vector_store(self._accumulators[op.output], broadcast(NEUTRAL[op.kind]), k * LANES)
        with self._inner_loops() as place:
            if space.reduces_across:
                placed = [RowVector(self._placed(v.index, place), v.lanes, v.slot, v.row) for v in rows]
                self._emit_step(phase, sinks, placed)
            else:
                (row,) = rows
                for columns, first in self._steps(chunk):
                    index = self._placed(row.index, place)[:-1]
                    vectors = [
                        RowVector([*index, first + k * LANES], lanes, k, row.row) for k, lanes in enumerate(columns)
                    ]
                    self._emit_step(phase, sinks, vectors)
        for op in reductions:
            self._end_reduction(op, rows, slots)

    def _end_reduction(self, op: StitchOp, rows: Sequence[RowVector], slots: int) -> None:
        """Makes what the accumulators of a reduction hold values of the rows."""
        accumulator = self._accumulators[op.output]
        if self.space.reduces_across:
            for vector in rows:
                vector.row[op.output] = vector_in_register(vector_load(accumulator, vector.slot * LANES))
            return
        total = vector_load(accumulator, 0)
        for k in range(1, slots):
            total = COMBINE[op.kind](total, vector_load(accumulator, k * LANES))
        rows[0].row[op.output] = vector_in_register(broadcast(FOLD[op.kind](total)))

    @contextmanager
    def _inner_loops(self) -> Iterator[list[Expr]]:
        """Loops over the reduced axes but the last one: the place along each."""
        extents = [self.space.extents[axis] for axis in self.space.inner]
        if not extents:
            yield []
            return
        with T.grid(*extents) as place:
            yield list(place) if len(extents) > 1 else [place]

    def _placed(self, index: Sequence[Expr], place: Sequence[Expr]) -> list[Expr]:
        placed = list(index)
        for axis, at in zip(self.space.inner, place, strict=True):
            placed[axis] = at
        return placed

    def _is_used(self, name: str) -> bool:
        return any(name in op.operands for op in self._ops.values()) or name in self.space.program.outputs

    def _is_sink(self, op: StitchOp, phase: int) -> bool:
        """Whether a loop over the row has to run for an operator in this phase."""
        if op.kind in REDUCTIONS:
            return self.space.phase[op.output] == phase + 1
        stays = op.output in self._values.kept or op.output in self.space.program.outputs
        return stays and self.space.phase[op.output] == phase and not self.space.is_row(op.output)

    def _emit_step(self, phase: int, sinks: Sequence[StitchOp], vectors: Sequence[RowVector]) -> None:
        """One place of the inner loops: operator by operator, so that independent vectors stand side by side."""
        for op in sinks:
            for vector in vectors:
                if op.kind in REDUCTIONS:
                    self._accumulate(op, vector, phase)
                    continue
                value = self._values.value(op.output, vector, phase)
                if op.output in self._values.kept:
                    self._values.keep(op.output, value, vector)
                if op.output in self.space.program.outputs:
                    self._values.write(op.output, value, vector)

    def _accumulate(self, op: StitchOp, vector: RowVector, phase: int) -> None:
        value = self._values.value(str(op.terms[0]), vector, phase)
        if vector.lanes < LANES and not self.space.reduces_across:
            inside = T.ramp(T.int32(0), 1, LANES) < T.broadcast(T.int32(vector.lanes), LANES)
            value = T.Select(inside, value, broadcast(NEUTRAL[op.kind]))
        accumulator = self._accumulators[op.output]
        slot = vector.slot * LANES
        vector_store(accumulator, COMBINE[op.kind](vector_load(accumulator, slot), value), slot)

    def _write_rows(self, vectors: Sequence[RowVector]) -> None:
        for name in self.space.program.outputs:
            if self.space.is_row(name):
                for vector in vectors:
                    self._values.write(name, vector.row[name], vector)
