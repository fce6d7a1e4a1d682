"""Generated code of the execute side: what tokens do with rows and numbers, in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.streaming_stores import stream_vector
from veltair.compiler.codegen.vector_math import sigmoid, sum_lanes
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp, vector_type
from veltair.compiler.embedding.row_storage import RowReader
from veltair.compiler.embedding.slc import (
    AddToVariable,
    ElementLoop,
    MemoryCell,
    Operation,
    ReduceCell,
    SetVariable,
    Statement,
    StoreCell,
    Value,
)

UNROLLED = 16  # vectors of a row that are straight-line code, their sums in registers


@dataclass(frozen=True, slots=True)
class TokenOperands:
    """Operands of a token: numbers and readers of rows, by name.

    >>> TokenOperands().rows
    {}
    """

    numbers: Mapping[str, Expr] = field(default_factory=dict)
    rows: Mapping[str, RowReader] = field(default_factory=dict)


class ExecuteEmitter:
    """Emits the bodies of tokens. To be made inside the task that they run in, which owns its variables.

    `AccessEmitter` makes one and runs the tokens in it.

    Use, inside a task::

        execute = ExecuteEmitter(out, dim=64, wide=True)
        execute.declare_sums()
        execute.run(token.body, TokenOperands(numbers, rows))
    """

    def __init__(self, out: Any, dim: int, wide: bool, streamed: bool = False) -> None:
        """out: the output as a flat buffer, `dim` numbers (or one) a segment. wide: rows are taken in vectors.
        streamed: results are stored past the caches; they are stored once (emb-opt3), in whole cache lines."""
        self._out, self._dim, self._wide, self._streamed = out, dim, wide, streamed
        self._variables: dict[str, tuple[Any, Any]] = {}  # partial sums of lanes, and the sum of all else
        self._sums: dict[int, Any] = {}  # by offset, where rows are straight-line code
        self._memory = None if dim <= UNROLLED * LANES else T.alloc_buffer((dim,), "float32", scope="global")

    def run(self, body: tuple[Statement, ...], given: TokenOperands) -> None:
        for statement in body:
            if isinstance(statement, ElementLoop):
                for_elements(self._dim, statement.lanes, lambda o, w, s=statement: self.step(s.body, given, o, w))  # type: ignore[misc]
            else:
                self.step((statement,), given, T.int32(0), 1)

    def step(self, body: tuple[Statement, ...], given: TokenOperands, offset: Expr, width: int) -> None:
        """Statements on `width` elements of the rows from `offset` on."""
        for statement in body:
            match statement:
                case StoreCell(cell, value):
                    self._store(cell, self._value(value, given, offset, width), given, offset, width)
                case ReduceCell(cell, value, by):
                    more, held = self._value(value, given, offset, width), self._load(cell, given, offset, width)
                    self._store(cell, _OPERATIONS[by](held, more), given, offset, width)
                case SetVariable(name, value):
                    partial, beside = self._variables[name]
                    result = self._value(value, given, offset, 1)
                    if self._wide:
                        T.buffer_store(partial, broadcast(0.0), [0])
                    T.buffer_store(beside, result, [0])
                case AddToVariable(name, value):
                    self._gain(*self._variables[name], T.bind(self._value(value, given, offset, width)), width)

    def _gain(self, partial: Any, beside: Any, value: Expr, width: int) -> None:
        if width == LANES:
            T.buffer_store(partial, partial[0] + value, [0])
        for lane in range(width if width < LANES else 0):
            one = value if width == 1 else T.Shuffle([value], [T.int32(lane)])
            T.buffer_store(beside, beside[0] + one, [0])

    def declare(self, names: tuple[str, ...]) -> None:
        """Allocates variables; the task does so at its begin, since an allocation in a loop ends with the loop."""
        for name in names:
            partial = T.alloc_buffer((1,), "float32x16", scope="local") if self._wide else None
            self._variables[name] = partial, T.alloc_buffer((1,), "float32", scope="local")

    def declare_sums(self) -> None:
        if self._memory is None:
            for offset, width in vector_pieces(self._dim):
                self._sums[offset] = T.alloc_buffer((1,), vector_type("float32", width), scope="local")

    def _value(self, value: Value, given: TokenOperands, offset: Expr, width: int) -> Expr:
        match value:
            case float():
                return broadcast(value, width)
            case MemoryCell():
                return self._load(value, given, offset, width)
            case Operation(operation, arguments):
                return _OPERATIONS[operation](*(self._value(a, given, offset, width) for a in arguments))
        if value in given.rows:
            return given.rows[value](offset, width)
        if value in self._variables:
            partial, beside = self._variables[value]
            return broadcast(beside[0] + sum_lanes(partial[0]) if self._wide and width == 1 else beside[0], width)
        return broadcast(given.numbers[value], width)

    def _place(self, cell: MemoryCell, given: TokenOperands, offset: Expr, width: int) -> Expr:
        segment = T.cast(given.numbers[cell.at[0]], "int64")
        if len(cell.at) == 1:
            return segment
        at = segment * T.int64(self._dim) + T.cast(offset, "int64")
        return ramp(at, width)

    def _load(self, cell: MemoryCell, given: TokenOperands, offset: Expr, width: int) -> Expr:
        if cell.memory == "out":
            return self._out[self._place(cell, given, offset, width)]
        if self._memory is None:
            return self._sums[int(offset)][0]
        return self._memory[ramp(offset, width)]

    def _store(self, cell: MemoryCell, value: Expr, given: TokenOperands, offset: Expr, width: int) -> None:
        if cell.memory == "out" and self._streamed and width == LANES:
            segment = T.cast(given.numbers[cell.at[0]], "int64")
            stream_vector(self._out[segment * T.int64(self._dim) + T.cast(offset, "int64")], value)
        elif cell.memory == "out":
            T.buffer_store(self._out, value, [self._place(cell, given, offset, width)])
        elif self._memory is None:
            T.buffer_store(self._sums[int(offset)], value, [0])
        else:
            T.buffer_store(self._memory, value, [ramp(offset, width)])


def for_elements(dim: int, vector: int, body: Callable[[Expr, int], None]) -> None:
    """Code for the elements of a row, (offset, how many) at a time.

    A loop of single elements where `vector` is 1; else vectors, straight-line where they are few, then halves.
    """
    if vector == 1:
        with T.serial(0, dim) as e:
            body(e, 1)
        return
    whole = dim // LANES
    looped = whole if whole > UNROLLED else 0
    if looped:
        with T.serial(0, whole) as v:
            body(T.bind(v * LANES), LANES)
    for offset, width in vector_pieces(dim):
        if offset >= looped * LANES:
            body(T.int32(offset), width)


def vector_pieces(dim: int) -> list[tuple[int, int]]:
    """(offset, lanes) of whole vectors, then of halves, down to one."""
    found, offset = [], 0
    for width in (LANES, 8, 4, 2, 1):
        while offset + width <= dim:
            found.append((offset, width))
            offset += width
    return found


def _sigmoid(value: Expr) -> Expr:
    """The sigmoid of one number, computed in lanes: that code is polynomials and no call."""
    return T.Shuffle([sigmoid(broadcast(value))], [T.int32(0)])


_OPERATIONS: Mapping[str, Callable[..., Expr]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "max": T.max,
    "where": lambda kept, a, b: T.Select(kept > T.float32(0), a, b),
    "neg": lambda a: T.float32(0) - a,
    "abs": T.abs,
    "square": lambda a: a * a,
    "root": T.sqrt,
    "sigmoid": _sigmoid,
}
