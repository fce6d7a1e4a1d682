"""Generated code of the access side, and how it and the execute side take turns on one core.

A CPU has no second unit: one thread does both in turn. A row is found `ahead` rows before it is needed: its id is read
and compared once, its place computed, and its cache lines are prefetched. The queue holds the rows in between.

    coupled (emb-opt0, emb-opt1; any with ahead 0)   each row is used where it is found
    lagging (emb-opt2)    the access loop leads: it pushes an entry and executes the one pushed `ahead` entries before
    leading (emb-opt3)    the execute loop leads: it pops a row and finds the one that is `ahead` of it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch
from veltair.compiler.codegen.streaming_stores import end_stream
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.embedding.dlc import DecoupledProgram, SendToken, Traversal
from veltair.compiler.embedding.execute_emitter import ExecuteEmitter, TokenOperands, for_elements
from veltair.compiler.embedding.row_storage import RowReader, row_items, row_reader
from veltair.compiler.embedding.slc import AddToVariable, SetVariable, Statement
from veltair.compiler.embedding.streams import (
    AluStream,
    InverseStream,
    KeptStream,
    LoadStream,
    RepeatedStream,
    StartStream,
    Stream,
    StreamIndex,
)

LINE = 64
FETCHED = 32  # lines of a row that are prefetched; the hardware foresees the rest
DISTANCES = (0, 4, 8, 16, 32)  # rows; a power of two, since the queue is a ring


@dataclass(frozen=True, slots=True)
class FlatMemory:
    """An operand as one flat buffer; `flat_memory` makes one.

    Use, inside a kernel::

        memories = {name: flat_memory(buffer) for name, buffer in operands.items()}
        first = memories["table"].flat[0]
    """

    flat: Any
    rows: Expr  # an id of a table is compared with it


class AccessEmitter:
    """Emits a tile of segments of one operation. To be made inside the task that runs it.

    Use, inside a kernel::

        AccessEmitter(decouple(program), memories, lookups, ahead=16).tile(first, count)
    """

    def __init__(
        self,
        decoupled: DecoupledProgram,
        memories: Mapping[str, FlatMemory],
        lookups: Expr,
        ahead: int,
        streamed: bool = False,
    ) -> None:
        """lookups: their number in all segments; nothing behind them is read, whatever the offsets say. streamed: see
        `ExecuteEmitter`."""
        self._decoupled, self._memories, self._lookups = decoupled, memories, lookups
        self._ragged = "lengths" in memories  # what lies between two segments is no lookup
        self._dim = decoupled.program.dim
        self._ahead = ahead if decoupled.queued else 0
        elements = [node for node in decoupled.lookups.inner() if node.stop == "dim"]
        self._rows = {
            name: stream for node in elements for name, stream in node.streams if isinstance(stream, LoadStream)
        }
        bodies = [token.body for token in decoupled.tokens.values()]
        wide, self._streamed = any(node.lanes > 1 for node in elements), streamed
        self._execute = ExecuteEmitter(memories["out"].flat, self._dim, wide, streamed)
        self._execute.declare(tuple(dict.fromkeys(name for body in bodies for name in _variables(body))))
        self._execute.declare_sums()

    def tile(self, first: Expr, count: Expr) -> None:
        """Code for `count` segments from `first` on."""
        if not self._ahead:
            self._for_each_lookup(first, count, self._coupled)
        elif self._decoupled.counter:
            self._leading(first, count)
        else:
            self._lagging(first, count)
        if self._streamed:
            end_stream()

    def _for_each_lookup(self, first: Expr, count: Expr, visit: Callable[[Traversal, dict[str, Expr]], None]) -> None:
        """Code for each lookup of each segment, with the numbers that its streams load."""
        with T.serial(0, count) as step:
            numbers = self._segment(T.bind(first + step))
            for node in self._decoupled.access.body:
                if isinstance(node, SendToken):
                    self._run(node.token, numbers, {})
                    continue
                begin, stop = self._ends(node, numbers)
                with T.serial(0, stop - begin) as offset:
                    visit(node, self._streams(node, numbers | {"p": T.bind(begin + offset)}))

    def _coupled(self, node: Traversal, numbers: dict[str, Expr]) -> None:
        rows = {name: self._reader(name, T.bind(self._begin(name, numbers))) for name in self._rows}
        for inner in node.body:
            if isinstance(inner, SendToken):
                self._run(inner.token, numbers, rows)
            elif inner.body:
                token = self._decoupled.tokens[f"{inner.index}_ite"]
                given = TokenOperands(numbers, rows)
                for_elements(self._dim, inner.lanes, lambda o, w, t=token, g=given: self._execute.step(t.body, g, o, w))  # type: ignore[misc]

    def _lagging(self, first: Expr, count: Expr) -> None:
        token = self._decoupled.tokens["e_end"]
        fields = (*token.rows, *token.scalars)
        queue = T.alloc_buffer((self._ahead * len(fields),), "int64", scope="global")
        sent = T.alloc_buffer((1,), "int32", scope="local")
        floats = [name for name in token.scalars if self._is_float(name)]

        def pop(entry: Expr) -> None:
            slot = T.bind(T.bitwise_and(entry, self._ahead - 1) * len(fields))
            popped = {name: T.bind(queue[slot + i]) for i, name in enumerate(fields)}
            rows = {name: self._reader(name, popped[name]) for name in token.rows}
            numbers = {name: popped[name] for name in token.scalars}
            numbers |= {name: T.bind(T.reinterpret("float32", T.cast(popped[name], "int32"))) for name in floats}
            self._execute.run(token.body, TokenOperands(numbers, rows))

        def push(node: Traversal, numbers: dict[str, Expr]) -> None:
            places = {name: T.bind(self._begin(name, numbers)) for name in token.rows}
            for name, place in places.items():
                self._fetch(name, place)
            with when(sent[0] >= self._ahead):
                pop(sent[0])
            slot = T.bind(T.bitwise_and(sent[0], self._ahead - 1) * len(fields))
            for i, name in enumerate(fields):
                value = places.get(name, numbers.get(name))
                if name in floats:
                    value = T.reinterpret("int32", value)
                T.buffer_store(queue, T.cast(value, "int64"), [slot + i])
            T.buffer_store(sent, sent[0] + 1, [0])

        T.buffer_store(sent, T.int32(0), [0])
        self._for_each_lookup(first, count, push)
        left = T.bind(T.min(sent[0], self._ahead))
        with T.serial(0, left) as entry:
            pop(T.bind(sent[0] - left + entry))

    def _leading(self, first: Expr, count: Expr) -> None:
        token, node = self._decoupled.tokens["e_end"], self._decoupled.lookups
        inside = {name for name, _ in node.streams}
        queued = [name for name in token.rows if self._rows[name].at[0] in inside]
        queues = {name: T.alloc_buffer((self._ahead,), "int64", scope="global") for name in queued}
        following = T.alloc_buffer((1,), "int32", scope="local")  # the lookup behind the last one executed

        def slot(p: Expr) -> Expr:
            return T.bitwise_and(p, self._ahead - 1)

        def push(p: Expr) -> None:
            found = self._streams(node, {"p": p}, {str(self._rows[name].at[0]) for name in queued})
            for name in queued:
                place = T.bind(self._begin(name, found))
                self._fetch(name, place)
                T.buffer_store(queues[name], place, [slot(p)])

        T.buffer_store(following, T.int32(-1), [0])
        with T.serial(0, count) as step:
            numbers = self._segment(T.bind(first + step))
            numbers[self._decoupled.counter] = numbers[self._decoupled.access.index]
            begin, stop = self._ends(node, numbers)
            end = stop if self._ragged else self._lookups
            unknown = T.bool(True) if self._ragged else T.Not(T.EQ(begin, following[0]))
            with when(unknown), T.serial(0, T.min(self._ahead, end - begin)) as more:
                push(T.bind(begin + more))
            rows = {name: T.bind(self._begin(name, numbers)) for name in token.rows if name not in queues}
            for other in self._decoupled.access.body:
                if isinstance(other, SendToken):
                    self._run(other.token, numbers, {})
                    continue
                with T.serial(0, stop - begin) as offset:
                    p = T.bind(begin + offset)
                    popped = {name: T.bind(queue[slot(p)]) for name, queue in queues.items()}
                    with when(p + self._ahead < end):
                        push(T.bind(p + self._ahead))
                    beside = self._streams(node, numbers | {"p": p}, set(token.scalars))
                    readers = {name: self._reader(name, place) for name, place in (rows | popped).items()}
                    self._execute.run(token.body, TokenOperands(beside, readers))
            T.buffer_store(following, stop, [0])

    def _run(self, name: str, numbers: Mapping[str, Expr], rows: Mapping[str, RowReader]) -> None:
        self._execute.run(self._decoupled.tokens[name].body, TokenOperands(numbers, rows))

    def _segment(self, number: Expr) -> dict[str, Expr]:
        loop = self._decoupled.access
        return self._streams(
            loop, {loop.index: number} | ({self._decoupled.counter: number} if self._decoupled.counter else {})
        )

    def _ends(self, node: Traversal, numbers: Mapping[str, Expr]) -> tuple[Expr, Expr]:
        """Begin and end of a segment's lookups, clipped to those that exist; none where its offsets fall."""
        begin, stop = (self._place(place, numbers) for place in (node.begin, node.stop))
        begin = T.bind(T.min(T.max(begin, 0), self._lookups))
        return begin, T.bind(T.min(T.max(stop, begin), self._lookups))

    def _streams(self, node: Traversal, numbers: Mapping[str, Expr], wanted: set[str] | None = None) -> dict[str, Expr]:
        found = dict(numbers)
        for name, stream in node.streams:
            if wanted is None or name in wanted:
                found[name] = T.bind(self._stream(stream, found))
        return found

    def _stream(self, stream: Stream, numbers: Mapping[str, Expr]) -> Expr:
        match stream:
            case AluStream():
                return self._place(stream, numbers)
            case InverseStream(begin, stop, skipped):
                return T.float32(1) / T.cast(T.max(self._count(numbers[begin], numbers[stop], skipped), 1), "float32")
            case StartStream(begin, stop, skipped):
                some = self._count(numbers[begin], numbers[stop], skipped) > 0
                return T.Select(some, T.float32(-math.inf), T.float32(0))
            case KeptStream(memory, at, skipped):
                return T.cast(_differs(self._memories[memory].flat[numbers[at[0]]], skipped), "float32")
            case RepeatedStream(memory, at, ids, rows):
                found, p = self._memories[memory].flat, numbers[at]
                return found[T.truncmod(p, ids)] + T.Cast(found.dtype, T.truncdiv(p, ids) * rows)
        value = self._memories[stream.memory].flat[self._place(stream.at[0], numbers)]
        if stream.memory in ("offsets", "lengths"):  # 64 bits wide, but within the lookups
            limit = T.cast(self._lookups, "int64")
            return T.cast(T.min(T.max(value, T.int64(0)), limit), "int32")
        return value

    def _count(self, begin: Expr, stop: Expr, skipped: int | None) -> Expr:
        """The lookups of a segment, without those of the id `skipped`."""
        if skipped is None:
            return stop - begin
        ids = self._memories["ids"].flat
        found = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(found, T.int32(0), [0])
        with T.serial(0, stop - begin) as offset:
            T.buffer_store(found, found[0] + T.cast(_differs(ids[begin + offset], skipped), "int32"), [0])
        return T.bind(found[0])

    def _place(self, place: StreamIndex | int, numbers: Mapping[str, Expr]) -> Expr:
        if isinstance(place, AluStream):
            value = numbers[place.stream]
            by = numbers[place.by] if isinstance(place.by, str) else place.by
            if place.operation == "min":
                return T.min(value, by)
            return value + by if place.operation == "+" else value * by
        return T.int32(place) if isinstance(place, int) else numbers[place]

    def _begin(self, name: str, numbers: Mapping[str, Expr]) -> Expr:
        """The item where a row of its table begins: negative ids count from the end (ONNX); what is no row is row 0."""
        stream = self._rows[name]
        table = self._memories[stream.memory]
        found = T.bind(T.cast(self._place(stream.at[0], numbers), "int64"))
        found = T.bind(T.Select(found < 0, found + T.cast(table.rows, "int64"), found))
        inside = T.cast(found, "uint64") < T.cast(table.rows, "uint64")
        return T.Select(inside, found, T.int64(0)) * T.int64(row_items(self._dim, table.flat.dtype))

    def _reader(self, name: str, begin: Expr) -> RowReader:
        return row_reader(self._memories[self._rows[name].memory].flat, begin, self._dim)

    def _fetch(self, name: str, begin: Expr) -> None:
        flat = self._memories[self._rows[name].memory].flat
        item = np.dtype(str(flat.dtype)).itemsize
        size = row_items(self._dim, flat.dtype) * item
        places = [*range(0, min(size, FETCHED * LINE), LINE)]
        if size % LINE and size < FETCHED * LINE:  # rows begin anywhere in a line
            places.append(size - item)
        for place in places:
            prefetch(flat[begin + T.int64(place // item)], level=1)

    def _is_float(self, name: str) -> bool:
        streams = dict(self._decoupled.access.streams) | dict(self._decoupled.lookups.streams)
        computed = isinstance(streams.get(name), (InverseStream, StartStream, KeptStream))
        return computed or _memory(streams.get(name)) == "weights"


def _differs(found: Expr, skipped: int) -> Expr:
    return T.NE(T.cast(found, "int64"), T.int64(skipped))


def _memory(stream: Stream | None) -> str:
    return stream.memory if isinstance(stream, LoadStream) else ""


def _variables(body: tuple[Statement, ...]) -> list[str]:
    inner = [s for statement in body for s in getattr(statement, "body", (statement,))]
    return [s.variable for s in inner if isinstance(s, (SetVariable, AddToVariable))]
