"""Rows of tables by index: one a column copied, several added up; and numbers that need no table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.columns import text
from veltair.compiler.columns.hashing import held
from veltair.compiler.columns.indices import Indices, Work
from veltair.compiler.columns.plan import COMBINERS, Field
from veltair.compiler.embedding.rows import Reader, reader, row_items
from veltair.compiler.kernels.emit import LANES, Expr, lanes, splat, when

HALF = 8  # floats; rows of tables are often no wider
LINE = 64  # bytes of the cache


class Roads:
    """Code for each kind of column; `run` emits one."""

    def __init__(self, work: Work) -> None:
        self.work, self.of = work, Indices(work)
        self.stride = work.rows + LANES  # the last vector may begin before the tile
        self.indices = T.alloc_buffer((work.columns * self.stride,), "int32", scope="global")

    def run(self, road: str) -> None:
        """Everything of a column that may have several values a row or no table; else the indices of the tile."""
        kind, step, *many = road.split(".")
        if step == "copy":
            self._each_column(self._copy)
        elif step == "number":
            self._each_column(lambda column, place: self._numbers(column, kind))
        elif many:
            self._each_column(lambda column, place: self._sums(column, kind, step))
        else:
            self._each_column(lambda column, place: self._one(column, place, kind, step))

    def _each_column(self, body: Callable[[Expr, Expr], None]) -> None:
        with T.serial(0, self.work.many) as place:
            body(held(self.work.first + place), place)

    def _one(self, column: Expr, place: Expr, kind: str, step: str) -> None:
        base = held(place * self.stride + LANES)
        if step == "boundaries":
            self.of.buckets(column, base, kind, self.indices)
        else:
            index = T.alloc_buffer((1,), "int32", scope="global")
            with T.serial(0, self.work.count) as row:
                self.of.index(column, kind, step, held(self.work.start + row), index)
                T.buffer_store(self.indices, index[0], [base + row])
        self._guard(column, base)
        self._check(column, base)

    def _guard(self, column: Expr, base: Expr) -> None:
        with T.serial(0, self.of.field(column, Field.GUARDS)) as i:
            guard = held(self.of.field(column, Field.GUARD) + i)
            with T.serial(0, T.ceildiv(self.work.count, LANES)) as v:
                at = lanes(base + v * LANES)
                T.buffer_store(self.indices, self.of.guarded(guard, self.indices[at], LANES), [at])

    def _check(self, column: Expr, base: Expr) -> None:
        """One unsigned compare: what is in no row reads the row that stands in for nothing (RECom 5.1)."""
        with when(self.of.field(column, Field.CHECKED) == 1), T.serial(0, T.ceildiv(self.work.count, LANES)) as v:
            at = lanes(base + v * LANES)
            index = held(self.indices[at])
            rows = T.broadcast(self.of.field(column, Field.ROWS, "uint32"), LANES)
            fill = T.broadcast(self.of.field(column, Field.FILL), LANES)
            T.buffer_store(self.indices, T.Select(T.cast(index, f"uint32x{LANES}") < rows, index, fill), [at])
        if self.work.ahead:
            with when(self.of.field(column, Field.LARGE) == 1):
                width = self.of.field(column, Field.DIM, "int64")
                with T.serial(0, self.work.count) as row:
                    self._fetch(self._begin(column, self.indices[base + row], width), width)

    def _begin(self, column: Expr, index: Expr, width: Expr) -> Expr:
        """The item of all tables where a row begins."""
        items = row_items(width, self.work.buffers["tables"].dtype)
        return held(self.of.field(column, Field.TABLE, "int64") + T.cast(index, "int64") * items)

    def _row(self, begin: Expr, width: Expr) -> Reader:
        return reader(self.work.buffers["tables"], begin, width)

    def _fetch(self, begin: Expr, width: Expr) -> None:
        tables = self.work.buffers["tables"]
        items, line = row_items(width, tables.dtype), LINE // np.dtype(str(tables.dtype)).itemsize

        def ask(item: Expr) -> None:
            at = T.address_of(tables[item])
            T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", at, *map(T.int32, (0, 3, 1))))

        with T.serial(T.int64(0), T.ceildiv(items, T.int64(line))) as number:
            ask(begin + number * T.int64(line))
        if tables.dtype == "uint8":  # rows begin anywhere in a line
            ask(begin + items - 1)

    def rows(self, dim: int) -> None:
        """Rows of the tables to the output, side by side for each row of the batch."""
        work, out = self.work, self.work.buffers["out"]
        with T.serial(0, work.count) as row, T.serial(0, work.many) as place:
            column = held(work.first + place)
            width = T.int64(dim) if dim else self.of.field(column, Field.DIM, "int64")
            source = self._row(self._begin(column, self.indices[place * self.stride + LANES + row], width), width)
            target, where = self.of.field(column, Field.OUT), held(work.start + row)

            def piece(offset: Expr, count: int) -> None:
                T.buffer_store(out, source(offset, count), [where, lanes(target + offset, count)])

            _across(dim, width, piece)

    # Several values a row.

    def _sums(self, column: Expr, kind: str, step: str) -> None:
        """Ids are looked for up to `ahead` in advance of their rows, and no token is stored (AtRec IV-A, Ember)."""
        work, out = self.work, self.work.buffers["out"]
        width, target = self.of.field(column, Field.DIM, "int64"), self.of.field(column, Field.OUT)
        rows, room = self.of.field(column, Field.ROWS, "uint32"), work.ahead or 1
        ids = T.alloc_buffer((room,), "int32", scope="global")
        waiting, total, index = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(3))
        with T.serial(0, work.count) as r:
            row = held(work.start + r)

            def source(index: Expr, offset: Expr, count: int) -> Expr:
                return self._row(self._begin(column, index, width), width)(offset, count)

            def add_up() -> None:
                def piece(offset: Expr, count: int) -> None:
                    acc, all_ = T.alloc_buffer((count,), "float32", scope="global"), lanes(0, count)
                    T.buffer_store(acc, out[row, lanes(target + offset, count)], [all_])
                    with T.serial(0, waiting[0]) as i:
                        T.buffer_store(acc, acc[all_] + source(ids[i], offset, count), [all_])
                    T.buffer_store(out, acc[all_], [row, lanes(target + offset, count)])

                _across(0, width, piece)
                T.buffer_store(waiting, T.int32(0), [0])

            def take() -> None:
                with T.serial(0, self.of.field(column, Field.GUARDS)) as i:
                    guard = held(self.of.field(column, Field.GUARD) + i)
                    T.buffer_store(index, self.of.guarded(guard, index[0], 1), [0])
                found = held(index[0])
                proved = self.of.field(column, Field.CHECKED) == 0
                with when(T.Or(proved, T.cast(found, "uint32") < rows)):
                    T.buffer_store(ids, found, [waiting[0]])
                    T.buffer_store(waiting, waiting[0] + 1, [0])
                    T.buffer_store(total, total[0] + 1, [0])
                    if work.ahead:
                        with when(self.of.field(column, Field.LARGE) == 1):
                            self._fetch(self._begin(column, found, width), width)
                    with when(waiting[0] == room):
                        add_up()

            T.buffer_store(waiting, T.int32(0), [0])
            T.buffer_store(total, T.int32(0), [0])
            _across(
                0,
                width,
                lambda offset, count: T.buffer_store(out, splat(0.0, count), [row, lanes(target + offset, count)]),
            )
            if kind == "int":
                with T.serial(0, self.of.field(column, Field.WIDTH)) as value:
                    number = held(work.buffers["ints"][self.of.at(column, row, value)])
                    with when(T.Not(self.of.missing(column, number))):
                        self.of.of_int(column, step, number, index)
                        take()
            else:
                with self.of.texts(column, kind, row) as (begin, size):
                    self.of.of_text(column, step, row, begin, size, index)
                    take()
            add_up()
            with T.If(total[0] == 0):
                with T.Then():
                    fill = self.of.field(column, Field.FILL)
                    _across(
                        0,
                        width,
                        lambda offset, count: T.buffer_store(
                            out, source(fill, offset, count), [row, lanes(target + offset, count)]
                        ),
                    )
                with T.Else(), when(self.of.field(column, Field.COMBINER) != COMBINERS.index("sum")):
                    scale = held(T.cast(self._scale(column, total[0]), "float32"))

                    def scaled(offset: Expr, count: int) -> None:
                        spot = [row, lanes(target + offset, count)]
                        T.buffer_store(out, out[(*spot,)] * splat(scale, count), spot)

                    _across(0, width, scaled)

    def _numbers(self, column: Expr, kind: str) -> None:
        """Tokens to numbers to their mean in one pass (AtRec IV-A)."""
        work, powers = self.work, self.work.buffers["powers"]
        value, total = (T.alloc_buffer((1,), "float64", scope="global") for _ in range(2))
        valid, count = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        with T.serial(0, work.count) as r:
            row = held(work.start + r)
            T.buffer_store(total, T.float64(0), [0])
            T.buffer_store(count, T.int32(0), [0])
            with self.of.texts(column, kind, row) as (begin, size):
                text.number(work.buffers["bytes"], begin, size, powers, value, valid)
                with when(valid[0] == 1):
                    T.buffer_store(total, total[0] + value[0], [0])
                    T.buffer_store(count, count[0] + 1, [0])
            result = T.cast(total[0] * self._scale(column, T.max(count[0], 1)), "float32")
            T.buffer_store(work.buffers["out"], result, [row, self.of.field(column, Field.OUT)])

    def _scale(self, column: Expr, count: Expr) -> Expr:
        """What a sum of so many is multiplied by, float64."""
        combiner, count = self.of.field(column, Field.COMBINER), held(T.cast(count, "float64"))
        mean, root = T.float64(1) / count, T.float64(1) / T.sqrt(count)
        inverse = T.Select(combiner == COMBINERS.index("mean"), mean, root)
        return T.Select(combiner == COMBINERS.index("sum"), T.float64(1), inverse)

    def _copy(self, column: Expr, place: Expr) -> None:
        work = self.work
        width = self.of.field(column, Field.WIDTH)
        with T.serial(0, work.count) as r, T.serial(0, width) as value:
            row = held(work.start + r)
            found = work.buffers["floats"][self.of.at(column, row, value)]
            T.buffer_store(work.buffers["out"], found, [row, self.of.field(column, Field.OUT) + value])


def _across(dim: int, width: Expr, body: Callable[[Expr, int], None]) -> None:
    """Code for a row's numbers in pieces (offset, how many): straight-line for a known `dim`, a loop for 0."""
    if not dim:
        width = held(T.cast(width, "int32"))
        with T.serial(0, T.floordiv(width, LANES)) as piece:
            body(held(piece * LANES), LANES)
        done = held(T.floordiv(width, LANES) * LANES)
        with when(width - done >= HALF):
            body(done, HALF)
        with T.serial(0, T.floormod(width, HALF)) as rest:
            body(held(width - 1 - rest), 1)
        return
    offset = 0
    for count in (LANES, HALF, 1):
        while offset + count <= dim:
            body(T.int32(offset), count)
            offset += count
