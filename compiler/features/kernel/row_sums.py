"""Generated code for columns of several values a row: sums and means of rows of a table, or of spelled numbers."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_store
from veltair.compiler.codegen.vectors import Expr, broadcast, ramp
from veltair.compiler.features.kernel.code_path import CodePath, ValueKind
from veltair.compiler.features.kernel.column_slots import COMBINERS
from veltair.compiler.features.kernel.column_values import ColumnValues
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.features.kernel.seen_indices import SeenIndices
from veltair.compiler.features.kernel.table_rows import TableRows, for_row_pieces
from veltair.compiler.features.text_code.number_parser import NumberParser
from veltair.compiler.features.text_code.tokens import NOTED
from veltair.compiler.features.text_code.word_arithmetic import in_register


class RowSums:
    """Emits the sums of one column.

    Indices are found in advance of their rows, those of some rows of the batch together, and no token is stored (AtRec
    IV-A, Ember): up to NOTED indices wait in `_ids`, each row of the batch remembers where its own end, and `_settle`
    adds up what waits.

    ::

        RowSums(emitter, table, column, path).emit()
    """

    def __init__(self, emitter: IndexEmitter, table: TableRows, column: Expr, path: CodePath) -> None:
        self._emitter, self._table, self._column, self._path = emitter, table, column, path
        task = self._task = emitter.task
        self._width, self._target = emitter.slot(column, "row_width", "int64"), emitter.slot(column, "output_start")
        self._rows = emitter.slot(column, "table_rows", "uint32")
        self._ids = T.alloc_buffer((NOTED,), "int32", scope="global")
        self._sums = T.alloc_buffer((task.widest,), "float32", scope="global")  # of the first row not finished
        # By row of the tile: where its indices end among those that wait, and how many it has in all.
        self._stops, self._totals = (T.alloc_buffer((task.most_rows,), "int32", scope="global") for _ in range(2))
        # The first row that is not finished, the first index not added, how many wait; of the row, how many it has so
        # far, and the index just found.
        self._seen = SeenIndices(path.distinct)
        variables = [T.alloc_buffer((1,), "int32", scope="global") for _ in range(5)]
        self._first, self._begin, self._waiting, self._total, self._index = variables

    def emit(self) -> None:
        task, room = self._task, NOTED
        T.buffer_store(self._first, T.int32(0), [0])
        T.buffer_store(self._waiting, T.int32(0), [0])
        self._clear()
        with T.serial(0, task.rows) as r:
            T.buffer_store(self._total, T.int32(0), [0])
            self._seen.clear()
            row = in_register(task.start + r)
            with self._emitter.for_each_value(self._column, self._path.kind, self._path.step, row, self._index):
                found = in_register(self._index[0])
                proved = self._emitter.slot(self._column, "bounds_checked") == 0
                inside = T.bind(T.Or(proved, T.cast(found, "uint32") < self._rows))
                with when(self._seen.is_new(found, inside) if self._path.distinct else inside):
                    T.buffer_store(self._ids, found, [self._waiting[0]])
                    T.buffer_store(self._waiting, self._waiting[0] + 1, [0])
                    T.buffer_store(self._total, self._total[0] + 1, [0])
                    if task.prefetches:
                        with when(self._emitter.slot(self._column, "is_large") == 1):
                            self._table.fetch(self._table.begin(self._column, found, self._width), self._width)
                    with when(self._waiting[0] == room):
                        self._settle(r)
            T.buffer_store(self._stops, self._waiting[0], [r])
            T.buffer_store(self._totals, self._total[0], [r])
        self._settle(in_register(task.rows))

    def _settle(self, stop: Expr) -> None:
        """Finishes the rows below `stop`, and adds up what waits of row `stop` itself."""
        T.buffer_store(self._begin, T.int32(0), [0])
        with T.serial(0, stop - self._first[0]) as number:
            r = in_register(self._first[0] + number)
            self._add_up(in_register(self._stops[r]))
            self._finish(r)
        self._add_up(in_register(self._waiting[0]))
        T.buffer_store(self._first, stop, [0])
        T.buffer_store(self._waiting, T.int32(0), [0])

    def _add_up(self, stop: Expr) -> None:
        """Adds the rows of the waiting indices before `stop` to the sums."""

        def piece(offset: Expr, count: int) -> None:
            acc, all_ = T.alloc_buffer((count,), "float32", scope="global"), ramp(0, count)
            T.buffer_store(acc, self._sums[ramp(offset, count)], [all_])
            with T.serial(0, stop - self._begin[0]) as i:
                T.buffer_store(acc, acc[all_] + self._source(self._ids[self._begin[0] + i], offset, count), [all_])
            T.buffer_store(self._sums, acc[all_], [ramp(offset, count)])

        for_row_pieces(0, self._width, piece)
        T.buffer_store(self._begin, stop, [0])

    def _finish(self, r: Expr) -> None:
        """Stores the result of a row of the tile: the fill row, or the scaled sums."""
        row, out = in_register(self._task.start + r), self._task.buffers["out"]
        with T.If(self._totals[r] == 0):
            with T.Then():
                fill = self._emitter.slot(self._column, "fill_row")

                def filled(offset: Expr, count: int) -> None:
                    vector_store(out, self._source(fill, offset, count), row, self._target + offset, count=count)

                for_row_pieces(0, self._width, filled)
            with T.Else():
                factor = combiner_scale(self._emitter, self._column, self._totals[r])
                scale = in_register(T.cast(factor, "float32"))

                def scaled(offset: Expr, count: int) -> None:
                    value = self._sums[ramp(offset, count)] * broadcast(scale, count)
                    vector_store(out, value, row, self._target + offset, count=count)

                for_row_pieces(0, self._width, scaled)
        self._clear()

    def _clear(self) -> None:
        def piece(offset: Expr, count: int) -> None:
            T.buffer_store(self._sums, broadcast(0.0, count), [ramp(offset, count)])

        for_row_pieces(0, self._width, piece)

    def _source(self, index: Expr, offset: Expr, count: int) -> Expr:
        return self._table.row(self._column, index, self._width)(offset, count)


def emit_numbers(values: ColumnValues, column: Expr, kind: ValueKind) -> None:
    """Texts to numbers to their combination in one pass (AtRec IV-A); texts that spell no number do not count."""
    task = values.task
    powers = task.buffers["powers"]
    value, total = (T.alloc_buffer((1,), "float64", scope="global") for _ in range(2))
    valid, count = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
    with T.serial(0, task.rows) as r:
        row = in_register(task.start + r)
        T.buffer_store(total, T.float64(0), [0])
        T.buffer_store(count, T.int32(0), [0])
        with values.for_each_text(column, kind, row) as (begin, size):
            NumberParser(task.buffers["bytes"], begin, size).emit(powers, value, valid)
            with when(valid[0] == 1):
                T.buffer_store(total, total[0] + value[0], [0])
                T.buffer_store(count, count[0] + 1, [0])
        scale = combiner_scale(values, column, T.max(count[0], 1))
        result = T.cast(total[0] * scale, "float32")
        vector_store(task.buffers["out"], result, row, values.slot(column, "output_start"), count=1)


def combiner_scale(values: ColumnValues, column: Expr, count: Expr) -> Expr:
    """The factor of a sum of `count` values, as float64: 1, 1 / count or 1 / sqrt(count)."""
    combiner, count = values.slot(column, "combiner"), in_register(T.cast(count, "float64"))
    mean, root = T.float64(1) / count, T.float64(1) / T.sqrt(count)
    inverse = T.Select(combiner == COMBINERS.index("mean"), mean, root)
    return T.Select(combiner == COMBINERS.index("sum"), T.float64(1), inverse)
