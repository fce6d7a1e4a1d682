"""Generated code from numbers to buckets: how many boundaries a number is not below, for many rows at a time.

Up to COUNTED boundaries lie in 16 stretches side by side (`slot_writer`): a vector holds one boundary of each stretch.
The first boundaries of the stretches tell which stretch a number falls into; then one vector holds the next boundary
of every stretch, and each number is compared with the lane of its own stretch. More boundaries are searched by halves,
one number at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch
from veltair.compiler.codegen.vectors import (
    LANES,
    Expr,
    broadcast,
    broadcast_uint32,
    permute_lanes,
    ramp,
    vector_type,
)
from veltair.compiler.features.kernel.code_path import ValueKind
from veltair.compiler.features.kernel.column_values import ColumnValues
from veltair.compiler.features.kernel.slot_writer import COUNTED, EDGES
from veltair.compiler.features.text_code.word_arithmetic import in_register

GANG = 4  # vectors of rows that are compared with a boundary together
MAGNITUDE_BITS, INFINITY_BITS = 0x7FFFFFFF, 0x7F800000  # of a float32


class BucketEmitter:
    """Emits the buckets of a tile's rows of one column, from `base` on in `out`.

    A NaN is below no boundary and so in the last bucket, or has the column's default, if that is not -1.

    ::

        BucketEmitter(values, column, base, path.kind, lookup.indices).emit()
    """

    def __init__(self, values: ColumnValues, column: Expr, base: Expr, kind: ValueKind, out: Any) -> None:
        self._task, self._base, self._out = values.task, base, out
        buffers = values.task.buffers
        self._edges = buffers["edges"]
        self._numbers = buffers["ints" if kind is ValueKind.INT else "floats"]
        self._number_bytes = 8 if kind is ValueKind.INT else 4
        self._first, self._size = values.slot(column, "first_boundary"), values.slot(column, "boundary_count")
        self._origin = values.place_of(column, values.task.start)
        self._depth = in_register(T.shift_right(self._size + EDGES - 1, 4))  # boundaries of a stretch
        self._nan_bucket = values.slot(column, "default_index")

    def emit(self) -> None:
        task = self._task
        with T.If(self._size > COUNTED):
            with T.Then(), T.serial(0, task.rows) as row:
                self._search(row)
            with T.Else(), T.If(task.start + task.rows < LANES):
                with T.Then():
                    self._count_few()
                with T.Else():
                    self._count_tile()

    def _count_tile(self) -> None:
        """Gangs of vectors, single vectors, and the last 16 rows, some of which are counted for the second time."""
        rows, gang = self._task.rows, GANG * LANES
        with T.serial(0, T.floordiv(rows, gang)) as g:
            self._count([in_register(g * gang + v * LANES) for v in range(GANG)], self._load)
        done = in_register(T.floordiv(rows, gang) * gang)
        with T.serial(0, T.floordiv(rows - done, LANES)) as v:
            self._count([in_register(done + v * LANES)], self._load)
        with when(T.floormod(rows, LANES) > 0):
            self._count([in_register(rows - LANES)], self._load)

    def _count_few(self) -> None:
        """A batch, or the rest of one that begins with this tile, of fewer than 16 rows: no vector can be loaded."""
        some = T.alloc_buffer((LANES,), "float32", scope="global")
        T.buffer_store(some, broadcast(0.0), [ramp(0)])
        with T.serial(0, self._task.rows) as row:
            T.buffer_store(some, T.cast(self._numbers[self._origin + T.cast(row, "int64")], "float32"), [row])
        self._count([T.int32(0)], lambda row: some[ramp(row)])

    def _load(self, row: Expr) -> Expr:
        """16 numbers from a row on. Those of the next tile are prefetched."""
        at = in_register(self._origin + T.cast(row, "int64"))
        for line in range(self._number_bytes // 4):  # a cache line holds 16 floats or 8 integers
            prefetch(self._numbers[at + self._task.most_rows + line * LANES // 2])
        return T.cast(self._numbers[ramp(at)], f"float32x{LANES}")

    def _count(self, rows: list[Expr], numbers: Callable[[Expr], Expr]) -> None:
        """The buckets of 16 rows from each of `rows` on: boundaries that the numbers are not below, counted."""
        xs = [in_register(numbers(row)) for row in rows]
        counts = T.alloc_buffer((len(rows) * LANES,), "int32", scope="global")
        places = [ramp(v * LANES) for v in range(len(rows))]

        def count(edge_of: Callable[[int], Expr]) -> None:
            """Adds 1 where a number is not below its edge; `edge_of` gives the edges for a vector by its place."""
            for number, (place, x) in enumerate(zip(places, xs, strict=True)):
                more = T.Select(x < edge_of(number), broadcast(T.int32(0)), broadcast(T.int32(1)))
                T.buffer_store(counts, counts[place] + more, [place])

        for place in places:
            T.buffer_store(counts, broadcast(T.int32(0)), [place])
        if self._task.permutes:  # in which stretch it falls, then how many of this stretch it is not below
            with T.serial(1, EDGES) as i:
                edge = in_register(broadcast(self._edges[self._first + i]))
                count(lambda number: edge)
            stretches = [in_register(counts[place]) for place in places]
            for place, stretch in zip(places, stretches, strict=True):
                T.buffer_store(counts, stretch * broadcast(self._depth), [place])
            with T.serial(0, self._depth) as i:
                line = in_register(self._edges[ramp(self._first + i * EDGES)])
                count(lambda number: in_register(permute_lanes(line, stretches[number])))
        else:
            with T.serial(0, self._depth * EDGES) as i:
                edge = in_register(broadcast(self._edges[self._first + i]))
                count(lambda number: edge)
        for place, row, x in zip(places, rows, xs, strict=True):
            # Infinity is not below the infinities that fill the last stretch.
            bucket = T.min(counts[place], broadcast(self._size))
            chosen = T.Select(self._is_own_nan(x, LANES), broadcast(self._nan_bucket), bucket)
            T.buffer_store(self._out, chosen, [ramp(self._base + row)])

    def _search(self, row: Expr) -> None:
        """The first boundary that the number is below, by halves."""
        span = T.alloc_buffer((2,), "int32", scope="global")  # the first boundary that is left, how many are left
        x = in_register(T.cast(self._numbers[self._origin + T.cast(row, "int64")], "float32"))
        T.buffer_store(span, T.int32(0), [0])
        T.buffer_store(span, self._size, [1])
        with T.While(span[1] > 0):
            half = in_register(T.shift_right(span[1], 1))
            below = T.bind(x < self._edges[self._first + span[0] + half])
            T.buffer_store(span, T.Select(below, span[0], span[0] + half + 1), [0])
            T.buffer_store(span, T.Select(below, half, span[1] - half - 1), [1])
        T.buffer_store(self._out, T.Select(self._is_own_nan(x, 1), self._nan_bucket, span[0]), [self._base + row])

    def _is_own_nan(self, x: Expr, count: int) -> Expr:
        """Whether x is NaN, and NaN has a bucket of its own. By its bits: TVM takes x != x for false."""
        bits = T.reinterpret(vector_type("uint32", count), x)
        magnitude = T.bitwise_and(bits, broadcast_uint32(MAGNITUDE_BITS, count))
        is_nan = magnitude > broadcast_uint32(INFINITY_BITS, count)
        return T.And(is_nan, broadcast(self._nan_bucket >= 0, count))
