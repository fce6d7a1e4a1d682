"""Generated code for values that stay apart: ids in their order, rows of a table side by side, counts and masks.

A row of the batch has room for as many values as its feature has at most; the id or the row that stands for none fills
the places that its values leave.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_store
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.kernel.code_path import CodePath, ValueKind
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.features.kernel.table_rows import TableRows, for_row_pieces
from veltair.compiler.features.text_code.word_arithmetic import in_register


class SequenceEmitter:
    """Emits columns whose combiner is "sequence", and those that pass on ids, lengths or masks.

    ::

        sequences = SequenceEmitter(emitter, table)
        sequences.emit_ids(column, path)  # one id for each value, then the column's pad
    """

    def __init__(self, emitter: IndexEmitter, table: TableRows) -> None:
        self._task, self._emitter, self._table = emitter.task, emitter, table
        self._out = emitter.task.buffers["out"]

    def emit_ids(self, column: Expr, path: CodePath) -> None:
        """An index that a guard removed keeps its place, so that sequences of several features stay aligned."""
        index, used = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        with T.serial(0, self._task.rows) as r:
            row = in_register(self._task.start + r)
            T.buffer_store(used, T.int32(0), [0])
            with self._emitter.for_each_value(column, path.kind, path.step, row, index):
                self.store_id(column, row, used[0], index[0])
                T.buffer_store(used, used[0] + 1, [0])
            with T.serial(0, self._most_values(column, path.kind) - used[0]) as more:
                self.store_id(column, row, used[0] + more, T.int32(-1))

    def store_id(self, column: Expr, row: Expr, place: Expr, index: Expr) -> None:
        """Stores an index as an id, at a place of the column's output; an index below zero is none."""
        index = in_register(index)
        first, pad = self._emitter.slot(column, "first_id"), self._emitter.slot(column, "pad_id")
        found = T.cast(T.Select(index < 0, pad, index + first), self._out.dtype)
        T.buffer_store(self._out, found, [row, self._emitter.slot(column, "output_start") + place])

    def emit_rows(self, column: Expr, path: CodePath) -> None:
        """The table's rows of a sequence, side by side."""
        index, used = (T.alloc_buffer((1,), "int32", scope="global") for _ in range(2))
        width = self._emitter.slot(column, "row_width", "int64")
        target = self._emitter.slot(column, "output_start")
        count, fill = self._emitter.slot(column, "table_rows", "uint32"), self._emitter.slot(column, "fill_row")
        with T.serial(0, self._task.rows) as r:
            row = in_register(self._task.start + r)

            def copy(place: Expr, index: Expr) -> None:
                source = self._table.row(column, index, width)
                begin = in_register(target + place * T.cast(width, "int32"))

                def piece(offset: Expr, count: int) -> None:
                    vector_store(self._out, source(offset, count), row, begin + offset, count=count)

                for_row_pieces(0, width, piece)

            T.buffer_store(used, T.int32(0), [0])
            with self._emitter.for_each_value(column, path.kind, path.step, row, index):
                inside = T.cast(index[0], "uint32") < count
                copy(used[0], in_register(T.Select(inside, index[0], fill)))
                T.buffer_store(used, used[0] + 1, [0])
            with T.serial(0, self._most_values(column, path.kind) - used[0]) as more:
                copy(used[0] + more, fill)

    def emit_counts(self, column: Expr, path: CodePath) -> None:
        """How many values a row has, or a mask: 1 for each of them, 0 for each that may follow."""
        used, target = T.alloc_buffer((1,), "int32", scope="global"), self._emitter.slot(column, "output_start")

        def put(row: Expr, place: Expr, value: Expr) -> None:
            T.buffer_store(self._out, T.cast(value, self._out.dtype), [row, target + place])

        with T.serial(0, self._task.rows) as r:
            row = in_register(self._task.start + r)
            T.buffer_store(used, T.int32(0), [0])
            with self._emitter.for_each_value(column, path.kind, None, row, used):
                T.buffer_store(used, used[0] + 1, [0])
            if path.step is ColumnStep.LENGTH:
                put(row, T.int32(0), used[0])
            else:
                with T.serial(0, self._most_values(column, path.kind)) as place:
                    put(row, place, T.cast(place < used[0], "int32"))

    def _most_values(self, column: Expr, kind: ValueKind) -> Expr:
        """Values of a row that are passed on."""
        return self._emitter.slot(column, "token_limit" if kind is ValueKind.TOKENS else "values_per_row")
