"""All rows of all tables of a description in one array, mapped from a file where they are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.columns.description import Column, Description
from veltair.compiler.columns.tables import copy_rows

LINE = 16  # floats; tables begin at a cache line
MAPPED = 1 << 24  # floats; more go to a file


@dataclass(frozen=True, slots=True)
class Store:
    """Each table once, followed by the rows that its columns read where nothing is left."""

    rows: NDArray[np.float32]
    tables: Mapping[str, NDArray[np.float32]]  # (rows, dim), views of `rows`
    first: Mapping[str, int]  # where each table begins
    fills: Mapping[str, tuple[int | None, ...]]  # of each table: the row that is repeated; None for zeros

    @classmethod
    def of(
        cls,
        description: Description,
        given: Mapping[str, NDArray[np.float32]] | None = None,
        folder: Path | None = None,
    ) -> Store:
        """`given`: rows of tables by name; of others, and by default, those that the description names. `folder` takes
        the file of a large store.

        Raises ModelError for a table that cannot be read.
        """
        fills: dict[str, tuple[int | None, ...]] = {}
        for column in description.columns:
            if column.table is not None:
                fills[column.table] = tuple(dict.fromkeys((*fills.get(column.table, ()), column.empty_row)))
        wanted = [table for table in description.tables if table.name in fills]
        first, size = {}, 0
        for table in wanted:
            first[table.name] = size
            size += -(-(table.rows + len(fills[table.name])) * table.dim // LINE) * LINE
        rows = _array(max(size, LINE), folder)
        tables = {}
        for table in wanted:
            begin, end = first[table.name], table.rows * table.dim
            found = tables[table.name] = rows[begin : begin + end].reshape(table.rows, table.dim)
            if given is not None and table.name in given:
                found[...] = given[table.name]
            else:
                copy_rows(table, description.path, found)
            for place, row in enumerate(fills[table.name]):
                if row is not None:
                    behind = begin + end + place * table.dim
                    rows[behind : behind + table.dim] = found[row]
        return cls(rows, tables, first, fills)

    def place(self, column: Column) -> tuple[int, int, int]:
        """First number, rows, the row that stands in for nothing."""
        assert column.table is not None
        rows = len(self.tables[column.table])
        return self.first[column.table], rows, rows + self.fills[column.table].index(column.empty_row)


def _array(size: int, folder: Path | None) -> NDArray[np.float32]:
    """Zeros."""
    if folder is None or size < MAPPED:
        return np.zeros(size, np.float32)
    return np.memmap(folder / "columns.tables", np.float32, "w+", shape=(size,))
