"""All rows of all tables of a description in one array, which a file backs where they are many."""

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
    """Each table once, followed by the fill rows that its columns read where no value is left.

    Use::

        store = TableStore.load(description)
        first_item, rows, fill_row = store.location_of(description.columns[0])
    """

    rows: NDArray[Any]  # flat: float32, float16, or uint8 with a scale and a bias in each row
    tables: Mapping[str, NDArray[Any]]  # each table's rows as they are stored, views of `rows`
    first: Mapping[str, int]  # where each table begins
    fills: Mapping[str, tuple[int | None, ...]]  # by table: the row that is copied as a fill row; None for zeros

    @classmethod
    def load(
        cls,
        description: FeatureDescription,
        given: Mapping[str, NDArray[np.float32]] | None = None,
        storage: TableStorage | None = None,
    ) -> TableStore:
        """Reads and stores the tables of all columns.

        Args:
            given: rows of tables by name, in place of those that the description names.
            storage: how rows are stored, float32 by default.

        Raises ModelError for a table that cannot be read or stored.
        """
        storage = storage or TableStorage()
        dtype = np.dtype(DTYPES[storage.storage])
        fills: dict[str, tuple[int | None, ...]] = {}
        for column in description.columns:
            if column.table is not None:
                fills[column.table] = tuple(dict.fromkeys((*fills.get(column.table, ()), column.empty_row)))
        wanted = [table for table in description.tables if table.name in fills]
        first, size, line = {}, 0, LINE // dtype.itemsize
        for table in wanted:
            first[table.name] = size
            size += -(-(table.rows + len(fills[table.name])) * row_items(table.dim, dtype.name) // line) * line
        rows = storage.allocate((max(size, line),))
        tables = {}
        for table in wanted:
            begin, items = first[table.name], row_items(table.dim, dtype.name)
            end = begin + table.rows * items
            found = tables[table.name] = rows[begin:end].reshape(table.rows, items)
            if given is not None and table.name in given:
                storage.write_rows(table.name, given[table.name], found)
            else:
                step, part = read_parts(table, description.path)
                storage.write_parts(table.name, part, step, found)
            for place, row in enumerate(fills[table.name]):
                if row is not None:
                    rows[end + place * items :][:items] = found[row]
        return cls(rows, tables, first, fills)

    def location_of(self, column: FeatureColumn) -> tuple[int, int, int]:
        """The first item of the column's table, the number of its rows, and the index of the column's fill row."""
        assert column.table is not None
        rows = len(self.tables[column.table])
        return self.first[column.table], rows, rows + self.fills[column.table].index(column.empty_row)
