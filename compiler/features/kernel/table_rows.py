"""Code that reads rows of the tables of a description, in whatever way they are stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.embedding.row_storage import RowReader, row_items, row_reader
from veltair.compiler.features.kernel.column_table import Field
from veltair.compiler.features.kernel.hashing import in_register
from veltair.compiler.features.kernel.index_emitter import ColumnTask, IndexEmitter
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import prefetch
from veltair.compiler.kernels.codegen.vectors import LANES, Expr

HALF = 8  # floats; rows of tables are often no wider
LINE = 64  # bytes of the cache


class TableRows:
    def __init__(self, work: ColumnTask, of: IndexEmitter) -> None:
        self._work, self._of = work, of

    def begin(self, column: Expr, index: Expr, width: Expr) -> Expr:
        """The item of all tables where a row begins."""
        items = row_items(width, self._work.buffers["tables"].dtype)
        return in_register(self._of.field(column, Field.TABLE, "int64") + T.cast(index, "int64") * items)

    def row(self, column: Expr, index: Expr, width: Expr) -> RowReader:
        return row_reader(self._work.buffers["tables"], self.begin(column, index, width), width)

    def fetch(self, begin: Expr, width: Expr) -> None:
        """Ask for the cache lines of a row."""
        tables = self._work.buffers["tables"]
        items, line = row_items(width, tables.dtype), LINE // np.dtype(str(tables.dtype)).itemsize
        with T.serial(T.int64(0), T.ceildiv(items, T.int64(line))) as number:
            prefetch(tables[begin + number * T.int64(line)], level=1)
        if tables.dtype == "uint8":  # rows begin anywhere in a line
            prefetch(tables[begin + items - 1], level=1)


def for_row_pieces(dim: int, width: Expr, body: Callable[[Expr, int], None]) -> None:
    """Code for a row's numbers in pieces (offset, how many): straight-line for a known `dim`, a loop for 0."""
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
