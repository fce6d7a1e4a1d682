"""Reads a kernel's TIR into a loop nest. Prefetches and buffers in registers do not count as accesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.target import codegen

from veltair.compiler.locality.affine import (
    UNKNOWN,
    AffineExpr,
    StridedRange,
    combine,
    full_range,
    loop_variable,
    single_value,
)
from veltair.compiler.locality.loop_nest import (
    Access,
    Body,
    Box,
    Condition,
    Guard,
    Loop,
    LoopNest,
    TensorStorage,
    add_box,
    merge_overrun_dimensions,
)

TILE_ROWS, TILE_ROW_BYTES = 16, 64  # of an AMX tile
REGISTER_BYTES = 64  # a buffer of no more is a variable, which LLVM makes a register
_TILE_MOVES = {"llvm.x86.tileloadd64", "llvm.x86.tilestored64"}
_OPERATORS = {"Min": "min", "Max": "max", "FloorDiv": "div", "FloorMod": "mod", "Div": "div", "Mod": "mod"}
_COMPARED = {"LT": (1, 0), "LE": (0, 0), "GT": (1, 1), "GE": (0, 1)}  # how much less, and whether sides are swapped


class UnreadableError(Exception):
    """Raised for code whose accesses cannot be derived from its text: indices from memory, blocks, views."""


def read_loop_nest(function: Any, shapes: Sequence[Sequence[int]]) -> LoopNest:
    """The loop nest of a PrimFunc whose parameters are tensors of these shapes.

    Raises UnreadableError for code that is no nest of loops over indices, such as that of TVM's schedules.
    """
    reader = TirReader()
    for parameter, shape in zip(function.params, shapes, strict=True):
        for dim, size in zip(parameter.shape, shape, strict=True):
            if isinstance(dim, ir.Var):
                reader.names[hash(dim)] = AffineExpr((), int(size))
        reader.add(parameter, tuple(map(int, shape)), scratch=False)
    nest = LoopNest(reader.storages, reader.body(function.body))
    merge_overrun_dimensions(nest)
    return nest


class TirReader:
    """Walks the statements of a PrimFunc and notes every access. ::

    reader = TirReader()
    reader.add(parameter, shape, scratch=False)
    reader.body(function.body)
    """

    def __init__(self) -> None:
        self.storages: list[TensorStorage] = []
        # TVM's variables, and numbers in registers, by their address, which is their hash.
        self.names: dict[int, AffineExpr] = {}
        self._numbers_read: set[int] = set()  # those of registers
        self._index: dict[int, int | None] = {}  # storage of a buffer; None: in registers
        self._accesses: list[dict[tuple[int, tuple[AffineExpr, ...]], Access]] = []

    def add(self, buffer: Any, shape: tuple[int, ...], scratch: bool) -> None:
        if scratch and _is_in_registers(buffer, shape):
            self._index[hash(buffer)] = None
            return
        self._index[hash(buffer)] = len(self.storages)
        self.storages.append(TensorStorage(shape, np.dtype(str(buffer.dtype)).itemsize, scratch))

    def body(self, *statements: Any) -> Body:
        found = Body()
        self._accesses.append({})
        for statement in statements:
            self._statement(statement, found)
        found.accesses = list(self._accesses.pop().values())
        return found

    def _statement(self, node: Any, into: Body) -> None:
        if isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self._statement(part, into)
        elif isinstance(node, tirx.BufferStore):
            self._value(node.value)
            self._access(node.buffer, node.indices)
            self._keep_number(node)
        elif isinstance(node, tirx.Bind):
            self._value(node.value)
            if str(node.value.ty) in ("int32", "int64"):
                self.names[hash(node.var)] = self._linear(node.value)
        elif isinstance(node, tirx.AttrStmt):
            self._statement(node.body, into)
        elif isinstance(node, tirx.Evaluate):
            self._value(node.value)
        elif isinstance(node, tirx.AllocBuffer):
            shape = tuple(self._linear(dim).span({}).first for dim in node.buffer.shape)
            self.add(node.buffer, shape, scratch=True)
        elif isinstance(node, tirx.For):
            number = hash(node.loop_var)
            self.names[number] = loop_variable(number)
            start, extent = self._linear(node.min), self._linear(node.extent)
            parallel = int(node.kind) == int(tirx.ForKind.PARALLEL)
            into.inner.append(Loop(number, start, extent, parallel, self.body(node.body)))
        elif isinstance(node, tirx.IfThenElse):
            self._value(node.condition)
            into.inner.append(Guard(self._condition(node.condition), self.body(node.then_case)))
            if node.else_case is not None:
                into.inner.append(Guard(Condition(), self.body(node.else_case)))
        else:
            raise UnreadableError(type(node).__name__)

    def _keep_number(self, store: Any) -> None:
        """What is stored once to a register is known; what changes is not."""
        number = hash(store.buffer)
        if self._index[number] is not None or str(store.value.ty) not in ("int32", "int64"):
            return
        if number in self._numbers_read:
            raise UnreadableError("a number that changes")
        self.names[number] = UNKNOWN if number in self.names else self._linear(store.value)

    def _value(self, node: Any) -> None:
        """Note the accesses of an expression."""
        if isinstance(node, ir.Call):
            self._call(node)
        elif type(node).__name__ == "TensorLoad":
            self._access(node.source, node.indices)
        else:
            for child in _children(node):
                self._value(child)

    def _call(self, call: Any) -> None:
        name = call.op.name
        if name.startswith("tirx.call_llvm"):
            name = str(codegen.llvm_get_intrinsic_name(int(call.args[0])))
        if "prefetch" in name:
            return
        for at, argument in enumerate(call.args):
            if not (isinstance(argument, ir.Call) and argument.op.name == "tirx.address_of"):
                self._value(argument)
            elif name in _TILE_MOVES:
                self._tile(argument.args[0], int(call.args[at + 1]))
            else:
                load = argument.args[0]
                self._access(load.source, load.indices, _first_ones(load, call.args))

    def _tile(self, load: Any, stride: int) -> None:
        """16 rows of 64 bytes, `stride` bytes apart."""
        at = self._index[hash(load.source)]
        if at is None:
            return
        storage = self.storages[at]
        pitches = np.cumprod((1, *storage.shape[:0:-1]))[::-1] * storage.item_bytes  # bytes between neighbours
        rows = next(i for i, pitch in enumerate(pitches) if stride % pitch == 0)
        box = [single_value(0)] * len(pitches)
        box[-1] = full_range(TILE_ROW_BYTES // storage.item_bytes)
        step = stride // int(pitches[rows])
        box[rows] = box[rows].plus(StridedRange(0, step * (TILE_ROWS - 1), step))
        self._access(load.source, load.indices, tuple(box))

    def _access(self, buffer: Any, indices: Sequence[Any], box: Box | None = None) -> None:
        if hash(buffer) not in self._index:
            raise UnreadableError("a view of a buffer")
        at = self._index[hash(buffer)]
        if at is None:
            return
        corner, offsets = [], []
        for i, index in enumerate(indices):
            reach = box[i] if box else single_value(0)
            if isinstance(index, tirx.Ramp):
                lanes, step = int(index.lanes), int(index.stride)
                index, reach = index.base, StridedRange(0, (lanes - 1) * step, step)
            place = self._linear(index)
            if not place.known:
                raise UnreadableError("an index from memory")
            corner.append(AffineExpr(place.terms))
            offsets.append(reach.plus(single_value(place.constant)))
        key = (at, tuple(corner))
        access = self._accesses[-1].setdefault(key, Access(at, key[1], []))
        add_box(access.boxes, tuple(offsets))

    def _linear(self, node: Any) -> AffineExpr:
        kind = type(node).__name__
        if kind == "IntImm":
            return AffineExpr((), int(node))
        if kind == "Var":
            return self.names.get(hash(node), UNKNOWN)
        if kind == "Cast":
            return self._linear(node.value)
        if kind == "TensorLoad":
            self._numbers_read.add(hash(node.source))
            return self.names.get(hash(node.source), UNKNOWN)
        if kind == "Select":
            return combine("any", self._linear(node.true_value), self._linear(node.false_value))
        if isinstance(node, ir.Call) and node.op.name.endswith(".if_then_else"):
            return combine("any", self._linear(node.args[1]), self._linear(node.args[2]))
        if kind not in ("Add", "Sub", "Mul", *_OPERATORS):
            return UNKNOWN
        left, right = self._linear(node.a), self._linear(node.b)
        if kind == "Add":
            return left.plus(right)
        if kind == "Sub":
            return left.plus(right.times(-1))
        if kind == "Mul":
            for side, other in ((left, right), (right, left)):
                if not side.terms:
                    return other.times(side.constant)
            return combine("product", left, right)
        return combine(_OPERATORS[kind], left, right)

    def _condition(self, node: Any) -> Condition:
        kind = type(node).__name__
        if kind == "And":
            return Condition(self._condition(node.a).sides + self._condition(node.b).sides)
        if kind in _COMPARED:
            margin, swapped = _COMPARED[kind]
            less, more = (node.b, node.a) if swapped else (node.a, node.b)
            return Condition((self._linear(more).plus(self._linear(less).times(-1)).plus(AffineExpr((), -margin)),))
        return Condition()


def _is_in_registers(buffer: Any, shape: tuple[int, ...]) -> bool:
    dtype = str(buffer.dtype)
    if "x" in dtype or str(buffer.scope()).startswith("local"):  # a register tile
        return True
    return int(np.prod(shape)) * np.dtype(dtype).itemsize <= REGISTER_BYTES


def _first_ones(load: Any, arguments: Sequence[Any]) -> Box | None:
    """What a masked move accesses: as many neighbours as its mask `ramp < count` has, all where that varies."""
    mask = next((a for a in arguments if isinstance(a, tirx.LT) and isinstance(a.a, tirx.Ramp)), None)
    if mask is None:
        return None
    count = mask.b.value
    lanes = int(count) if isinstance(count, tirx.IntImm) else int(mask.a.lanes)
    return (*[single_value(0)] * (len(load.indices) - 1), full_range(lanes))


def _children(node: Any) -> Iterator[Any]:
    for name in ("a", "b", "value", "condition", "true_value", "false_value", "base", "body"):
        child = getattr(node, name, None)
        if child is not None:
            yield child
    yield from getattr(node, "vectors", ())
