"""Values that stay apart: ids in their order, rows of a table side by side, and how many there are.

A row of the batch has room for so many values; an id or a row that stands for nothing fills what they leave.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.kernel.column_table import Field
from veltair.compiler.features.kernel.hashing import in_register
from veltair.compiler.features.kernel.index_emitter import ColumnTask, IndexEmitter
from veltair.compiler.features.kernel.table_rows import TableRows, for_row_pieces
from veltair.compiler.kernels.codegen.memory import vector_store
from veltair.compiler.kernels.codegen.vectors import Expr


class SequenceEmitter:
    def __init__(self, work: ColumnTask, of: IndexEmitter, table: TableRows) -> None:
        self._work, self._of, self._table = work, of, table
        self._out = work.buffers["out"]

    def ids(self, column: Expr, kind: str, step: str) -> None:
        """A dropped index keeps its place, so that sequences of several features stay side by side."""
        index, used = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        with T.serial(0, self._work.count) as r:
            row = in_register(self._work.start + r)
            T.buffer_store(used, T.int32(0), [0])
            with self._of.values(column, kind, step, row, index):
                self.put(column, row, used[0], index[0])
                T.buffer_store(used, used[0] + 1, [0])
            with T.serial(0, self._room(column, kind) - used[0]) as more:
                self.put(column, row, used[0] + more, T.int32(-1))

    def put(self, column: Expr, row: Expr, place: Expr, index: Expr) -> None:
        """An index as an id; one below zero is none."""
        index = in_register(index)
        first, pad = self._of.field(column, Field.TABLE), self._of.field(column, Field.FILL)
        found = T.cast(T.Select(index < 0, pad, index + first), self._out.dtype)
        T.buffer_store(self._out, found, [row, self._of.field(column, Field.OUT) + place])

    def rows(self, column: Expr, kind: str, step: str) -> None:
        index, used = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        width, target = self._of.field(column, Field.DIM, "int64"), self._of.field(column, Field.OUT)
        count, fill = self._of.field(column, Field.ROWS, "uint32"), self._of.field(column, Field.FILL)
        with T.serial(0, self._work.count) as r:
            row = in_register(self._work.start + r)

            def copy(place: Expr, index: Expr) -> None:
                source = self._table.row(column, index, width)
                begin = in_register(target + place * T.cast(width, "int32"))

                def piece(offset: Expr, count: int) -> None:
                    vector_store(self._out, source(offset, count), row, begin + offset, count=count)

                for_row_pieces(0, width, piece)

            T.buffer_store(used, T.int32(0), [0])
            with self._of.values(column, kind, step, row, index):
                inside = T.cast(index[0], "uint32") < count
                copy(used[0], in_register(T.Select(inside, index[0], fill)))
                T.buffer_store(used, used[0] + 1, [0])
            with T.serial(0, self._room(column, kind) - used[0]) as more:
                copy(used[0] + more, fill)

    def counts(self, column: Expr, kind: str, step: str) -> None:
        """How many values a row has; or a one for each."""
        used, target = T.alloc_buffer((1,), "int32", scope="global"), self._of.field(column, Field.OUT)

        def put(row: Expr, place: Expr, value: Expr) -> None:
            T.buffer_store(self._out, T.cast(value, self._out.dtype), [row, target + place])

        with T.serial(0, self._work.count) as r:
            row = in_register(self._work.start + r)
            T.buffer_store(used, T.int32(0), [0])
            with self._of.values(column, kind, "", row, used):
                T.buffer_store(used, used[0] + 1, [0])
            if step == "length":
                put(row, T.int32(0), used[0])
            else:
                with T.serial(0, self._room(column, kind)) as place:
                    put(row, place, T.cast(place < used[0], "int32"))

    def _room(self, column: Expr, kind: str) -> Expr:
        """Values of a row that are passed on."""
        return self._of.field(column, Field.LIMIT if kind == "tokens" else Field.WIDTH)
