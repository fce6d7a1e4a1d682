"""Generated code that reads rows of the tables of a description, in whatever way they are stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import prefetch
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.embedding.row_storage import RowReader, row_items, row_reader
from veltair.compiler.features.kernel.column_values import ColumnValues
from veltair.compiler.features.text_code.word_arithmetic import in_register

HALF = 8  # floats; rows of tables are often no wider
LINE = 64  # bytes of the cache


class TableRows:
    """Emits reads of rows. `width`: numbers of a row, int64 in code.

    ::

        table = TableRows(values)
        table.fetch(table.begin(column, index, width), width)  # in advance
        reader = table.row(column, index, width)
    """

    def __init__(self, values: ColumnValues) -> None:
        self._values, self._tables = values, values.task.buffers["tables"]

    def begin(self, column: Expr, index: Expr, width: Expr) -> Expr:
        """The item of "tables" where a row of the column's table begins."""
        items = row_items(width, self._tables.dtype)
        return in_register(self._values.slot(column, "table_start", "int64") + T.cast(index, "int64") * items)

    def row(self, column: Expr, index: Expr, width: Expr) -> RowReader:
        return row_reader(self._tables, self.begin(column, index, width), width)

    def fetch(self, begin: Expr, width: Expr) -> None:
        """Prefetches the cache lines of the row that begins at an item."""
        items, line = row_items(width, self._tables.dtype), LINE // np.dtype(str(self._tables.dtype)).itemsize
        with T.serial(T.int64(0), T.ceildiv(items, T.int64(line))) as number:
            prefetch(self._tables[begin + number * T.int64(line)], level=1)
        if self._tables.dtype == "uint8":  # rows begin anywhere in a line
            prefetch(self._tables[begin + items - 1], level=1)


def for_row_pieces(dim: int, width: Expr, body: Callable[[Expr, int], None]) -> None:
    """Code for the numbers of a row in pieces (offset, how many): vectors, a half of one, single numbers.

    Straight-line code for a row of a known `dim`; for 0 a loop over `width` numbers.
    """
    if not dim:
        width = in_register(T.cast(width, "int32"))
        with T.serial(0, T.floordiv(width, LANES)) as piece:
            body(in_register(piece * LANES), LANES)
        done = in_register(T.floordiv(width, LANES) * LANES)
        with when(width - done >= HALF):
            body(done, HALF)
        with T.serial(0, T.floormod(width, HALF)) as rest:
            body(in_register(width - 1 - rest), 1)
        return
    offset = 0
    for count in (LANES, HALF, 1):
        while offset + count <= dim:
            body(T.int32(offset), count)
            offset += count
