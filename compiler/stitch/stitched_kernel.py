"""One kernel of a stitched program: a parallel loop over units of work, and in each the phases of its composition.

A unit is a row: one place along the axes that no reduction runs over. Reductions run along the vectors and are folded
at the end of a phase; or, where the last axis is not reduced, across them, and a unit is a few vectors of columns.
Values are vectors of 16 floats throughout; what is one for a row is the same in every lane. The lanes beyond the last
column are filled with zeros, kept out of reductions and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.kernels.codegen import vector_math as vm
from veltair.compiler.kernels.codegen.bf16 import round_bits_to_bf16
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import Operand, build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.stitch.iteration_space import IterationSpace
from veltair.compiler.stitch.stitch_program import EXPENSIVE, REDUCTIONS, StitchOp

DEEP = 4  # bindings in a chain before a variable ends it
NEUTRAL = {"reduce_sum": 0.0, "reduce_max": float("-inf"), "reduce_min": float("inf")}
COMBINE: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "reduce_sum": lambda a, b: a + b,
    "reduce_max": lambda a, b: T.max(a, b),
    "reduce_min": lambda a, b: T.min(a, b),
}
FOLD: Mapping[str, Callable[[Expr], Expr]] = {
    "reduce_sum": vm.sum_lanes,
    "reduce_max": vm.max_lanes,
    "reduce_min": vm.min_lanes,
}


def _truth(condition: Expr) -> Expr:
    return T.Select(condition, broadcast(1.0), broadcast(0.0))


ELEMENTWISE: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: T.Div(a, b),
    "min": lambda a, b: T.min(b, a),
    "max": lambda a, b: T.max(b, a),
    "neg": lambda a: broadcast(0.0) - a,
    "abs": lambda a: T.max(a, broadcast(0.0) - a),
    "exp": vm.exp,
    "log": vm.log,
    "erf": vm.erf,
    "tanh": vm.tanh,
    "sigmoid": vm.sigmoid,
    "sqrt": lambda a: T.sqrt(a),
    "reciprocal": lambda a: T.Div(broadcast(1.0), a),
    "less": lambda a, b: _truth(a < b),
    "less_equal": lambda a, b: _truth(a <= b),
    "equal": lambda a, b: _truth(T.EQ(a, b)),
    "where": lambda c, a, b: T.Select(c > broadcast(0.5), a, b),
}


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """What is chosen for a kernel: units a task, the composition scheme, vectors a step, columns a unit (0: all)."""

    rows: int
    scheme: str
    unroll: int
    columns: int = 0


def stitched_function(
    domains: Sequence[tuple[IterationSpace, KernelSchedule]], operands: Sequence[Operand], names: Sequence[str]
) -> Any:
    """A PrimFunc over the operands in order, which hold the values of these names.

    Several programs are packed: each has a range of the tasks of one parallel loop.
    """

    def body(*buffers: Any) -> None:
        kernels = [_Kernel(d, setting, _views(d, operands, names, buffers)) for d, setting in domains]
        firsts: list[Expr] = [0]
        for kernel in kernels:
            firsts.append(firsts[-1] + kernel.tasks)
        if len(kernels) == 1 and kernels[0].tasks_at_batch_1 == 1 and not kernels[0].is_batched:
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


def _views(
    domain: IterationSpace, operands: Sequence[Operand], names: Sequence[str], buffers: Sequence[Any]
) -> dict[str, Any]:
    """The operands' memory in the merged axes along which each varies, and the domain's extents as "extents"."""
    symbols = {
        dim: buffer.shape[i]
        for operand, buffer in zip(operands, buffers, strict=True)
        if isinstance(operand, Activation)
        for i, dim in enumerate(operand.shape)
        if dim < 0
    }
    extents = [symbols[e] if e < 0 else e for e in domain.extents]
    views: dict[str, Any] = {"": extents}
    for name, buffer in zip(names, buffers, strict=True):
        if name in domain.varies:
            shape = [e for e, along in zip(extents, domain.varies[name], strict=True) if along] or [1]
            views[name] = T.decl_buffer(shape, buffer.dtype, data=buffer.data)
    return views


@dataclass(slots=True)
class _Vector:
    """16 lanes of an iteration: where they are, how many of them count, and the values bound so far."""

    index: list[Expr]  # along each axis
    lanes: int
    slot: int  # among the vectors of a step
    row: dict[str, Expr]  # values of the row, shared by its vectors
    bound: dict[str, Expr] = field(default_factory=dict)


class _Kernel:
    def __init__(self, domain: IterationSpace, setting: KernelSchedule, views: Mapping[str, Any]) -> None:
        self.domain, self.setting, self.views = domain, setting, views
        self.ops = {op.output: op for op in domain.program.ops}
        self.extents: list[Expr] = views[""]
        self.width = domain.extents[-1]
        self.columns = min(setting.columns or self.width, self.width) if domain.splits else self.width
        self.chunks = -(-self.width // self.columns)
        self.kept = domain.kept(setting.scheme)
        self.depth = dict.fromkeys(domain.program.leaves, 0)  # of the bindings behind a value
        for op in domain.program.ops:
            deep = max((self.depth[name] for name in op.operands), default=0) + (DEEP if op.kind in EXPENSIVE else 1)
            self.depth[op.output] = 0 if op.kind in REDUCTIONS or deep > DEEP else deep
        self.units: Expr = self.chunks
        for axis in domain.outer:
            self.units = self.units * self.extents[axis]
        self.tasks: Expr = (self.units + (setting.rows - 1)) // setting.rows
        self.is_batched = any(domain.extents[axis] < 0 for axis in domain.outer)
        units = self.chunks
        for axis in domain.outer:
            units *= abs(domain.extents[axis])
        self.tasks_at_batch_1 = -(-units // setting.rows)

    def emit(self, task: Expr) -> None:
        rows = self.setting.rows
        self.buffers: dict[str, Any] = {}
        self.pad = T.alloc_buffer((LANES,), "float32", scope="local")
        inside = 1
        for axis in self.domain.inner:
            inside *= self.domain.extents[axis]
        step = self.setting.unroll * LANES if self.domain.across else -(-self.columns // LANES) * LANES
        for name in self.kept:
            self.buffers[name] = T.alloc_buffer((inside * step,), "float32", scope="global")
        self.step = step
        self.accumulators = {
            op.output: T.alloc_buffer((self.setting.unroll * LANES,), "float32", scope="local")
            for op in self.ops.values()
            if op.kind in REDUCTIONS
        }
        if rows == 1:
            self._unit(task)
        else:
            with T.serial(0, T.min(rows, self.units - task * rows)) as r:
                self._unit(T.bind(task * rows + r))

    def _unit(self, unit: Expr) -> None:
        index: list[Expr] = [0] * len(self.extents)
        rest, chunk = (unit, 0) if self.chunks == 1 else (T.bind(unit // self.chunks), T.bind(unit % self.chunks))
        outer = self.domain.outer
        for place, axis in enumerate(reversed(outer)):
            last = place == len(outer) - 1
            index[axis] = rest if last else T.bind(rest % self.extents[axis])
            rest = rest if last else T.bind(rest // self.extents[axis])
        if self.domain.across:
            for columns, first in self._steps(chunk):
                vectors = [_Vector([*index[:-1], first + k * LANES], lanes, k, {}) for k, lanes in enumerate(columns)]
                for phase in range(self.domain.phases):
                    self._phase(phase, vectors, vectors, chunk)
                self._store_rows(vectors)
        else:
            row = _Vector(index, 1, 0, {})
            for phase in range(self.domain.phases):
                self._phase(phase, [row], None, chunk)
            self._store_rows([row])

    def _steps(self, chunk: Expr) -> Iterator[tuple[list[int], Expr]]:
        """Steps over the columns of a chunk: lanes that count in each vector, and the first column."""
        unroll = self.setting.unroll
        stride = unroll * LANES
        start = chunk * self.columns
        end = start + self.columns if self.chunks == 1 else T.min(start + self.columns, self.width)
        full = self.columns // stride if self.chunks == 1 else T.bind((end - start) // stride)
        if not isinstance(full, int) or full > 1:
            with T.serial(0, full) as i:
                yield [LANES] * unroll, start + i * stride
        elif full == 1:
            yield [LANES] * unroll, start
        left = self.width % stride
        if left:  # columns and strides divide each other, so only the last chunk has any
            vectors = [LANES] * (left // LANES) + ([left % LANES] if left % LANES else [])
            with ExitStack() as stack:
                if self.chunks > 1:
                    stack.enter_context(when(T.EQ(chunk, self.chunks - 1)))
                yield vectors, self.width - left

    def _phase(self, phase: int, rows: Sequence[_Vector], across: Sequence[_Vector] | None, chunk: Expr) -> None:
        """What can be computed once the reductions of all phases before are there."""
        domain = self.domain
        for vector in rows:
            for name, when_ in domain.phase.items():
                if when_ == phase and domain.is_row(name) and name not in vector.row and self._is_used(name):
                    vector.row[name] = self._settled(name, self._row_value(name, vector))
        sinks = [op for op in self.ops.values() if self._is_sink(op, phase)]
        if not sinks:
            return
        reductions = [op for op in sinks if op.kind in REDUCTIONS]
        slots = len(rows) if across else self.setting.unroll
        for op in reductions:
            for k in range(slots):
                vector_store(self.accumulators[op.output], broadcast(NEUTRAL[op.kind]), k * LANES)
        with self._inner() as place:
            if across:
                vectors = [_Vector(self._placed(v.index, place), v.lanes, v.slot, v.row) for v in across]
                self._step(phase, sinks, vectors)
            else:
                for columns, first in self._steps(chunk):
                    index = self._placed(rows[0].index, place)[:-1]
                    self._step(
                        phase,
                        sinks,
                        [
                            _Vector([*index, first + k * LANES], lanes, k, rows[0].row)
                            for k, lanes in enumerate(columns)
                        ],
                    )
        for op in reductions:
            accumulator = self.accumulators[op.output]
            if across:
                for vector in rows:
                    vector.row[op.output] = _held(vector_load(accumulator, vector.slot * LANES))
            else:
                total = vector_load(accumulator, 0)
                for k in range(1, slots):
                    total = COMBINE[op.kind](total, vector_load(accumulator, k * LANES))
                rows[0].row[op.output] = _held(broadcast(FOLD[op.kind](total)))

    @contextmanager
    def _inner(self) -> Iterator[list[Expr]]:
        extents = [self.domain.extents[axis] for axis in self.domain.inner]
        if not extents:
            yield []
            return
        with T.grid(*extents) as place:
            yield list(place) if len(extents) > 1 else [place]

    def _placed(self, index: Sequence[Expr], place: Sequence[Expr]) -> list[Expr]:
        placed = list(index)
        for axis, at in zip(self.domain.inner, place, strict=True):
            placed[axis] = at
        return placed

    def _is_used(self, name: str) -> bool:
        return any(name in op.operands for op in self.ops.values()) or name in self.domain.program.outputs

    def _is_sink(self, op: StitchOp, phase: int) -> bool:
        """Whether a loop over the row has to run for an operator in this phase."""
        if op.kind in REDUCTIONS:
            return self.domain.phase[op.output] == phase + 1
        stays = op.output in self.kept or op.output in self.domain.program.outputs
        return stays and self.domain.phase[op.output] == phase and not self.domain.is_row(op.output)

    def _step(self, phase: int, sinks: Sequence[StitchOp], vectors: Sequence[_Vector]) -> None:
        """One place of the inner loops: operator by operator, so that independent vectors stand side by side."""
        for op in sinks:
            for vector in vectors:
                if op.kind in REDUCTIONS:
                    value = self._value(str(op.terms[0]), vector, phase)
                    if vector.lanes < LANES and not self.domain.across:
                        inside = T.ramp(T.int32(0), 1, LANES) < T.broadcast(T.int32(vector.lanes), LANES)
                        value = T.Select(inside, value, broadcast(NEUTRAL[op.kind]))
                    accumulator = self.accumulators[op.output]
                    slot = vector.slot * LANES
                    vector_store(accumulator, COMBINE[op.kind](vector_load(accumulator, slot), value), slot)
                    continue
                value = self._value(op.output, vector, phase)
                if op.output in self.kept:
                    vector_store(self.buffers[op.output], value, self._slot(vector))
                if op.output in self.domain.program.outputs:
                    self._write(op.output, value, vector)

    def _slot(self, vector: _Vector) -> Expr:
        """Where a vector lies in a row's or block's buffer."""
        line: Expr = 0
        for axis in self.domain.inner:
            line = line * self.domain.extents[axis] + vector.index[axis]
        column = vector.slot * LANES if self.domain.across else vector.index[-1]
        if not self.domain.across and self.chunks > 1:
            column = column % self.columns
        return line * self.step + column

    def _value(self, name: str, vector: _Vector, phase: int) -> Expr:
        """A value of one vector: bound before, of the row, kept, loaded, or computed now."""
        if name in vector.bound:
            return vector.bound[name]
        if name in vector.row:
            return vector.row[name]
        if name not in self.ops:
            value = self._read(name, vector)
        elif name in self.kept and self.domain.phase[name] < phase:
            value = vector_load(self.buffers[name], self._slot(vector))
        else:
            op = self.ops[name]
            value = ELEMENTWISE[op.kind](
                *[self._value(t, vector, phase) if isinstance(t, str) else broadcast(t) for t in op.terms]
            )
        vector.bound[name] = self._settled(name, value)
        return vector.bound[name]

    def _row_value(self, name: str, vector: _Vector) -> Expr:
        if name not in self.ops:
            return self._read(name, vector)
        op = self.ops[name]
        return ELEMENTWISE[op.kind](*[vector.row[t] if isinstance(t, str) else broadcast(t) for t in op.terms])

    def _settled(self, name: str, value: Expr) -> Expr:
        return T.bind(value) if self.depth[name] or name not in self.ops else _held(value)

    def _place(self, name: str, vector: _Vector) -> list[Expr]:
        return [i for i, along in zip(vector.index, self.domain.varies[name], strict=True) if along] or [0]

    def _read(self, name: str, vector: _Vector) -> Expr:
        view, place = self.views[name], self._place(name, vector)
        if not self.domain.varies[name][-1]:
            return broadcast(_float(view[tuple(place)], 1))
        if vector.lanes == LANES:
            if view.dtype in ("float32", "uint16"):
                return vector_load(view, *place)
            return _float(view[(*place[:-1], T.ramp(place[-1], 1, LANES))], LANES)
        vector_store(self.pad, broadcast(0.0), 0)
        for lane in range(vector.lanes):
            T.buffer_store(self.pad, _float(view[(*place[:-1], place[-1] + lane)], 1), [lane])
        return T.bind(vector_load(self.pad, 0))

    def _write(self, name: str, value: Expr, vector: _Vector) -> None:
        view, place = self.views[name], self._place(name, vector)
        if self.domain.varies[name][-1] and vector.lanes == LANES:
            vector_store(view, value, *place)
            return
        count = vector.lanes if self.domain.varies[name][-1] else 1
        if view.dtype == "uint16":
            value = round_bits_to_bf16(T.bind(T.reinterpret("uint32x16", value)))
        value = T.bind(value)
        for lane in range(count):
            one = T.cast(T.Shuffle([value], [T.int32(lane)]), view.dtype)
            T.buffer_store(view, one, [*place[:-1], place[-1] + lane] if count > 1 else place)

    def _store_rows(self, vectors: Sequence[_Vector]) -> None:
        for name in self.domain.program.outputs:
            if self.domain.is_row(name):
                for vector in vectors:
                    self._write(name, vector.row[name], vector)


def _held(value: Expr) -> Expr:
    """A vector in a variable of its own, which LLVM makes a register.

    A binding would do, but TVM looks through bindings, in time exponential in the length of their chain.
    """
    variable = T.alloc_buffer((LANES,), "float32", scope="local")  # of vectors, TVM would ask the heap for it
    vector_store(variable, value, 0)
    return vector_load(variable, 0)


def _float(value: Expr, count: int) -> Expr:
    """As float32, whatever is stored."""
    kind = str(value.ty.dtype) if hasattr(value.ty, "dtype") else str(value.dtype)
    if kind.startswith("uint16"):
        return T.reinterpret("float32", T.shift_left(T.cast(value, "uint32"), T.uint32(16)))
    return value if kind.startswith("float32") else T.cast(value, "float32" if count == 1 else f"float32x{count}")
