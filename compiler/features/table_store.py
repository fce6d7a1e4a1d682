"""All rows of all tables of a description in one array, mapped from a file where they are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import DTYPES, row_items
from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features.feature_description import FeatureColumn, FeatureDescription
from veltair.compiler.features.feature_tables import read_parts

LINE = 64  # bytes; tables begin at a cache line


@dataclass(frozen=True, slots=True)
class TableStore:
    """Each table once, followed by the rows that its columns read where nothing is left."""

    rows: NDArray[Any]  # flat; of float32, float16 or, with a scale and a bias in each row, uint8
    tables: Mapping[str, NDArray[Any]]  # each table's rows as they are stored, views of `rows`
    first: Mapping[str, int]  # where each table begins
    fills: Mapping[str, tuple[int | None, ...]]  # of each table: the row that is repeated; None for zeros

    @classmethod
    def load(
        cls,
        description: FeatureDescription,
        given: Mapping[str, NDArray[np.float32]] | None = None,
        kept: TableStorage | None = None,
    ) -> TableStore:
        """`given`: rows of tables by name; of others, and by default, those that the description names. `kept`: how
        rows are stored, float32 by default.

        Raises ModelError for a table that cannot be read or stored.
        """
        kept = kept or TableStorage()
        dtype = np.dtype(DTYPES[kept.storage])
        fills: dict[str, tuple[int | None, ...]] = {}
        for column in description.columns:
            if column.table is not None:
                fills[column.table] = tuple(dict.fromkeys((*fills.get(column.table, ()), column.empty_row)))
        wanted = [table for table in description.tables if table.name in fills]
        first, size, line = {}, 0, LINE // dtype.itemsize
        for table in wanted:
            first[table.name] = size
            size += -(-(table.rows + len(fills[table.name])) * row_items(table.dim, dtype.name) // line) * line
        rows = kept.allocate((max(size, line),))
        tables = {}
        for table in wanted:
            begin, items = first[table.name], row_items(table.dim, dtype.name)
            end = begin + table.rows * items
            found = tables[table.name] = rows[begin:end].reshape(table.rows, items)
            if given is not None and table.name in given:
                kept.write_rows(table.name, given[table.name], found)
            else:
                step, part = read_parts(table, description.path)
                kept.write_parts(table.name, part, step, found)
            for place, row in enumerate(fills[table.name]):
                if row is not None:
                    rows[end + place * items :][:items] = found[row]
        return cls(rows, tables, first, fills)

    def location_of(self, column: FeatureColumn) -> tuple[int, int, int]:
        """First item, rows, the row that stands in for nothing."""
        assert column.table is not None
        rows = len(self.tables[column.table])
        return self.first[column.table], rows, rows + self.fills[column.table].index(column.empty_row)
