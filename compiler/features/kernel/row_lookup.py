"""Generated code for columns of one index a row: the indices of a tile, then its rows of the tables, copied."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_store
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.kernel.bucketize import BucketEmitter
from veltair.compiler.features.kernel.code_path import CodePath
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.features.kernel.table_rows import TableRows, for_row_pieces
from veltair.compiler.features.text_code.word_arithmetic import in_register


class RowLookup:
    """Emits the indices of a tile, checked, into `indices`, and the copies of the rows that they name.

    ::

        lookup = RowLookup(emitter, table)
        lookup.emit_indices(column, place, path)  # for each column of the task
        lookup.emit_copies(dim=16)
    """

    def __init__(self, emitter: IndexEmitter, table: TableRows) -> None:
        self._emitter, self._table, self._task = emitter, table, emitter.task
        self._stride = self._task.most_rows + LANES  # the last vector may begin before the tile
        self.indices = T.alloc_buffer((self._task.most_columns * self._stride,), "int32", scope="global")

    def first_index(self, place: Expr) -> Expr:
        """Where the indices of the column at a place of the tile begin in `indices`."""
        return in_register(place * self._stride + LANES)

    def emit_indices(self, column: Expr, place: Expr, path: CodePath) -> None:
        """The guarded and checked indices of a column."""
        base = self.first_index(place)
        if path.step is ColumnStep.BOUNDARIES:
            BucketEmitter(self._emitter, column, base, path.kind, self.indices).emit()
        else:
            index = T.alloc_buffer((1,), "int32", scope="global")
            with T.serial(0, self._task.rows) as row:
                self._emitter.emit_index(column, path.kind, path.step, in_register(self._task.start + row), index)
                T.buffer_store(self.indices, index[0], [base + row])
        self._guard(column, base)
        self._check(column, base)

    def emit_copies(self, dim: int) -> None:
        """Rows of the tables to the output, side by side for each row of the batch. `dim`: their width, 0 for any."""
        task, out = self._task, self._task.buffers["out"]
        with T.serial(0, task.rows) as row, T.serial(0, task.columns) as place:
            column = in_register(task.first_column + place)
            width = T.int64(dim) if dim else self._emitter.slot(column, "row_width", "int64")
            source = self._table.row(column, self.indices[place * self._stride + LANES + row], width)
            target, where = self._emitter.slot(column, "output_start"), in_register(task.start + row)

            def piece(offset: Expr, count: int) -> None:
                vector_store(out, source(offset, count), where, target + offset, count=count)

            for_row_pieces(dim, width, piece)

    def _guard(self, column: Expr, base: Expr) -> None:
        with T.serial(0, self._emitter.slot(column, "guard_count")) as i:
            guard = in_register(self._emitter.slot(column, "first_guard") + i)
            with T.serial(0, T.ceildiv(self._task.rows, LANES)) as v:
                at = ramp(base + v * LANES)
                T.buffer_store(self.indices, self._emitter.guarded(guard, self.indices[at], LANES), [at])

    def _check(self, column: Expr, base: Expr) -> None:
        """One unsigned compare: an index of no row becomes that of the fill row (RECom 5.1)."""
        with (
            when(self._emitter.slot(column, "bounds_checked") == 1),
            T.serial(0, T.ceildiv(self._task.rows, LANES)) as v,
        ):
            at = ramp(base + v * LANES)
            index = in_register(self.indices[at])
            rows = broadcast(self._emitter.slot(column, "table_rows", "uint32"))
            fill = broadcast(self._emitter.slot(column, "fill_row"))
            T.buffer_store(self.indices, T.Select(T.cast(index, f"uint32x{LANES}") < rows, index, fill), [at])
        if self._task.prefetches:
            with when(self._emitter.slot(column, "is_large") == 1):
                width = self._emitter.slot(column, "row_width", "int64")
                with T.serial(0, self._task.rows) as row:
                    self._table.fetch(self._table.begin(column, self.indices[base + row], width), width)
