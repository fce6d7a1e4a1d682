"""Rows of tables by index: one a column copied, several added up; and numbers that need no table."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.kernel import text
from veltair.compiler.features.kernel.bucketize import emit_buckets
from veltair.compiler.features.kernel.column_table import COMBINERS, Field
from veltair.compiler.features.kernel.hashing import in_register
from veltair.compiler.features.kernel.index_emitter import ColumnTask, IndexEmitter
from veltair.compiler.features.kernel.sequence_emitter import SequenceEmitter
from veltair.compiler.features.kernel.table_rows import TableRows, for_row_pieces
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import vector_store
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast, ramp


class ColumnEmitter:
    """Code for each kind of column; `run` emits one."""

    def __init__(self, work: ColumnTask) -> None:
        self.work, self.of = work, IndexEmitter(work)
        self.table = TableRows(work, self.of)
        self.sequences = SequenceEmitter(work, self.of, self.table)
        self.stride = work.rows + LANES  # the last vector may begin before the tile
        self.indices = T.alloc_buffer((work.columns * self.stride,), "int32", scope="global")

    def run(self, road: str) -> None:
        """Everything of a column that may have several values a row or no table; else the indices of the tile."""
        kind, step, *many = road.split(".")
        if step == "copy":
            self._each_column(self._copy)
        elif step == "number":
            self._each_column(lambda column, place: self._numbers(column, kind))
        elif step in ("length", "mask"):
            self._each_column(lambda column, place: self.sequences.counts(column, kind, step))
        elif many == ["ids"] and step == "boundaries":
            self._each_column(lambda column, place: self._bucket(column, place, kind))
        elif many == ["ids"]:
            self._each_column(lambda column, place: self.sequences.ids(column, kind, step))
        elif many == ["rows"]:
            self._each_column(lambda column, place: self.sequences.rows(column, kind, step))
        elif many:
            self._each_column(lambda column, place: self._sums(column, kind, step))
        else:
            self._each_column(lambda column, place: self._one(column, place, kind, step))

    def _each_column(self, body: Callable[[Expr, Expr], None]) -> None:
        with T.serial(0, self.work.many) as place:
            body(in_register(self.work.first + place), place)

    def _one(self, column: Expr, place: Expr, kind: str, step: str) -> None:
        base = in_register(place * self.stride + LANES)
        if step == "boundaries":
            emit_buckets(self.of, column, base, kind, self.indices)
        else:
            index = T.alloc_buffer((1,), "int32", scope="global")
            with T.serial(0, self.work.count) as row:
                self.of.index(column, kind, step, in_register(self.work.start + row), index)
                T.buffer_store(self.indices, index[0], [base + row])
        self._guard(column, base)
        self._check(column, base)

    def _bucket(self, column: Expr, place: Expr, kind: str) -> None:
        """Buckets as ids."""
        self._one(column, place, kind, "boundaries")
        base = in_register(place * self.stride + LANES)
        with T.serial(0, self.work.count) as r:
            self.sequences.put(column, in_register(self.work.start + r), T.int32(0), self.indices[base + r])

    def _guard(self, column: Expr, base: Expr) -> None:
        with T.serial(0, self.of.field(column, Field.GUARDS)) as i:
            guard = in_register(self.of.field(column, Field.GUARD) + i)
            with T.serial(0, T.ceildiv(self.work.count, LANES)) as v:
                at = ramp(base + v * LANES)
                T.buffer_store(self.indices, self.of.guarded(guard, self.indices[at], LANES), [at])

    def _check(self, column: Expr, base: Expr) -> None:
        """One unsigned compare: what is in no row reads the row that stands in for nothing (RECom 5.1)."""
        with when(self.of.field(column, Field.CHECKED) == 1), T.serial(0, T.ceildiv(self.work.count, LANES)) as v:
            at = ramp(base + v * LANES)
            index = in_register(self.indices[at])
            rows = broadcast(self.of.field(column, Field.ROWS, "uint32"))
            fill = broadcast(self.of.field(column, Field.FILL))
            T.buffer_store(self.indices, T.Select(T.cast(index, f"uint32x{LANES}") < rows, index, fill), [at])
        if self.work.ahead:
            with when(self.of.field(column, Field.LARGE) == 1):
                width = self.of.field(column, Field.DIM, "int64")
                with T.serial(0, self.work.count) as row:
                    self.table.fetch(self.table.begin(column, self.indices[base + row], width), width)

    def rows(self, dim: int) -> None:
        """Rows of the tables to the output, side by side for each row of the batch."""
        work, out = self.work, self.work.buffers["out"]
        with T.serial(0, work.count) as row, T.serial(0, work.many) as place:
            column = in_register(work.first + place)
            width = T.int64(dim) if dim else self.of.field(column, Field.DIM, "int64")
            source = self.table.row(column, self.indices[place * self.stride + LANES + row], width)
            target, where = self.of.field(column, Field.OUT), in_register(work.start + row)

            def piece(offset: Expr, count: int) -> None:
                vector_store(out, source(offset, count), where, target + offset, count=count)

            for_row_pieces(dim, width, piece)

    # Several values a row.

    def _sums(self, column: Expr, kind: str, step: str) -> None:
        """Ids are looked for in advance of their rows, those of some rows of the batch together, and no token is stored
        (AtRec IV-A, Ember)."""
        work, out = self.work, self.work.buffers["out"]
        width, target = self.of.field(column, Field.DIM, "int64"), self.of.field(column, Field.OUT)
        rows, room = self.of.field(column, Field.ROWS, "uint32"), text.NOTED
        ids = T.alloc_buffer((room,), "int32", scope="global")
        sums = T.alloc_buffer((work.widest,), "float32", scope="global")  # of the first row that is not finished
        stops, totals = (T.alloc_buffer((work.rows,), "int32", scope="global") for _ in range(2))
        first, begin, waiting, total, index = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(5))

        def source(index: Expr, offset: Expr, count: int) -> Expr:
            return self.table.row(column, index, width)(offset, count)

        def clear() -> None:
            for_row_pieces(
                0, width, lambda offset, count: T.buffer_store(sums, broadcast(0.0, count), [ramp(offset, count)])
            )

        def add_up(stop: Expr) -> None:
            def piece(offset: Expr, count: int) -> None:
                acc, all_ = T.alloc_buffer((count,), "float32", scope="global"), ramp(0, count)
                T.buffer_store(acc, sums[ramp(offset, count)], [all_])
                with T.serial(0, stop - begin[0]) as i:
                    T.buffer_store(acc, acc[all_] + source(ids[begin[0] + i], offset, count), [all_])
                T.buffer_store(sums, acc[all_], [ramp(offset, count)])

            for_row_pieces(0, width, piece)
            T.buffer_store(begin, stop, [0])

        def finish(r: Expr) -> None:
            row = in_register(work.start + r)
            with T.If(totals[r] == 0):
                with T.Then():
                    fill = self.of.field(column, Field.FILL)

                    def filled(offset: Expr, count: int) -> None:
                        vector_store(out, source(fill, offset, count), row, target + offset, count=count)

                    for_row_pieces(0, width, filled)
                with T.Else():
                    scale = in_register(T.cast(self._scale(column, totals[r]), "float32"))

                    def scaled(offset: Expr, count: int) -> None:
                        vector_store(
                            out, sums[ramp(offset, count)] * broadcast(scale, count), row, target + offset, count=count
                        )

                    for_row_pieces(0, width, scaled)
            clear()

        def settle(stop: Expr) -> None:
            """Rows below `stop` are finished; what waits of it is added up."""
            T.buffer_store(begin, T.int32(0), [0])
            with T.serial(0, stop - first[0]) as number:
                r = in_register(first[0] + number)
                add_up(in_register(stops[r]))
                finish(r)
            add_up(in_register(waiting[0]))
            T.buffer_store(first, stop, [0])
            T.buffer_store(waiting, T.int32(0), [0])

        T.buffer_store(first, T.int32(0), [0])
        T.buffer_store(waiting, T.int32(0), [0])
        clear()
        with T.serial(0, work.count) as r:
            T.buffer_store(total, T.int32(0), [0])
            with self.of.values(column, kind, step, in_register(work.start + r), index):
                found = in_register(index[0])
                proved = self.of.field(column, Field.CHECKED) == 0
                with when(T.Or(proved, T.cast(found, "uint32") < rows)):
                    T.buffer_store(ids, found, [waiting[0]])
                    T.buffer_store(waiting, waiting[0] + 1, [0])
                    T.buffer_store(total, total[0] + 1, [0])
                    if work.ahead:
                        with when(self.of.field(column, Field.LARGE) == 1):
                            self.table.fetch(self.table.begin(column, found, width), width)
                    with when(waiting[0] == room):
                        settle(r)
            T.buffer_store(stops, waiting[0], [r])
            T.buffer_store(totals, total[0], [r])
        settle(in_register(work.count))

    def _numbers(self, column: Expr, kind: str) -> None:
        """Tokens to numbers to their mean in one pass (AtRec IV-A)."""
        work, powers = self.work, self.work.buffers["powers"]
        value, total = (T.alloc_buffer((1,), "float64", scope="global") for _ in range(2))
        valid, count = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        with T.serial(0, work.count) as r:
            row = in_register(work.start + r)
            T.buffer_store(total, T.float64(0), [0])
            T.buffer_store(count, T.int32(0), [0])
            with self.of.texts(column, kind, row) as (begin, size):
                text.number(work.buffers["bytes"], begin, size, powers, value, valid)
                with when(valid[0] == 1):
                    T.buffer_store(total, total[0] + value[0], [0])
                    T.buffer_store(count, count[0] + 1, [0])
            result = T.cast(total[0] * self._scale(column, T.max(count[0], 1)), "float32")
            vector_store(work.buffers["out"], result, row, self.of.field(column, Field.OUT), count=1)

    def _scale(self, column: Expr, count: Expr) -> Expr:
        """What a sum of so many is multiplied by, float64."""
        combiner, count = self.of.field(column, Field.COMBINER), in_register(T.cast(count, "float64"))
        mean, root = T.float64(1) / count, T.float64(1) / T.sqrt(count)
        inverse = T.Select(combiner == COMBINERS.index("mean"), mean, root)
        return T.Select(combiner == COMBINERS.index("sum"), T.float64(1), inverse)

    def _copy(self, column: Expr, place: Expr) -> None:
        work = self.work
        width = self.of.field(column, Field.WIDTH)
        with T.serial(0, work.count) as r, T.serial(0, width) as value:
            row = in_register(work.start + r)
            found = work.buffers["floats"][self.of.at(column, row, value)]
            vector_store(work.buffers["out"], found, row, self.of.field(column, Field.OUT) + value, count=1)
