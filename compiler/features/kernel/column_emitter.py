"""Generated code of each code path: `ColumnEmitter`, whose `emit` chooses the emitter for a path."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_store
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.kernel.code_path import CodePath, Combination, ValueKind
from veltair.compiler.features.kernel.column_task import ColumnTask
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.features.kernel.row_lookup import RowLookup
from veltair.compiler.features.kernel.row_sums import RowSums, emit_numbers
from veltair.compiler.features.kernel.sequence_emitter import SequenceEmitter
from veltair.compiler.features.kernel.table_rows import TableRows
from veltair.compiler.features.text_code.word_arithmetic import in_register


class ColumnEmitter:
    """Emits the code for one task's columns. To be made inside the task that runs it.

    ::

        code = ColumnEmitter(task)
        code.emit(path)  # the code path of all columns of the task
        code.emit_copies(dim=16)  # of columns that copy a row of a table
    """

    def __init__(self, task: ColumnTask) -> None:
        self._task, self._indices = task, IndexEmitter(task)
        self._table = TableRows(self._indices)
        self._sequences = SequenceEmitter(self._indices, self._table)
        self._lookup = RowLookup(self._indices, self._table)

    def emit(self, path: CodePath) -> None:
        """All of a column that has several values a row or no table; of others the indices, for `emit_copies`."""
        self._indices.read_texts(path)
        match path.step, path.combination:
            case ColumnStep.COPY, _:
                self._for_each_column(lambda column, place: self._copy_numbers(column))
            case ColumnStep.NUMBER, _:
                self._for_each_column(lambda column, place: emit_numbers(self._indices, column, path.kind))
            case ColumnStep.LENGTH | ColumnStep.MASK, _:
                self._for_each_column(lambda column, place: self._sequences.emit_counts(column, path))
            case ColumnStep.BOUNDARIES, Combination.IDS if path.kind is not ValueKind.FLOATS:
                self._for_each_column(lambda column, place: self._emit_buckets(column, place, path))
            case _, Combination.IDS:
                self._for_each_column(lambda column, place: self._sequences.emit_ids(column, path))
            case _, Combination.ROWS:
                self._for_each_column(lambda column, place: self._sequences.emit_rows(column, path))
            case _, Combination.MANY:
                self._for_each_column(lambda column, place: self._emit_sums(column, path))
            case _:
                self._for_each_column(lambda column, place: self._lookup.emit_indices(column, place, path))

    def emit_copies(self, dim: int) -> None:
        """Copies one row of a table for each column and row of the batch; `dim` is the rows' width, 0 for any."""
        self._lookup.emit_copies(dim)

    def _for_each_column(self, body: Callable[[Expr, Expr], None]) -> None:
        with T.serial(0, self._task.columns) as place:
            body(in_register(self._task.first_column + place), place)

    def _emit_sums(self, column: Expr, path: CodePath) -> None:
        RowSums(self._indices, self._table, column, path).emit()

    def _emit_buckets(self, column: Expr, place: Expr, path: CodePath) -> None:
        """Buckets as ids."""
        self._lookup.emit_indices(column, place, path)
        base = self._lookup.first_index(place)
        with T.serial(0, self._task.rows) as r:
            row = in_register(self._task.start + r)
            self._sequences.store_id(column, row, T.int32(0), self._lookup.indices[base + r])

    def _copy_numbers(self, column: Expr) -> None:
        task, values = self._task, self._indices
        width = values.slot(column, "values_per_row")
        with T.serial(0, task.rows) as r, T.serial(0, width) as value:
            row = in_register(task.start + r)
            found = task.buffers["floats"][values.place_of(column, row, value)]
            target = values.slot(column, "output_start") + value
            vector_store(task.buffers["out"], found, row, target, count=1)
