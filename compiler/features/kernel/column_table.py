"""A description as a table of numbers that one kernel reads, so that the code does not grow with the columns.

`build_column_table` sorts the columns of an input by code path and width, so that each group runs through one piece of
code, and writes a row of `COLUMN_DTYPE` for each.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import row_items, storage_of
from veltair.compiler.features.feature_description import ColumnInput, Feature, FeatureColumn, FeatureDescription
from veltair.compiler.features.feature_tables import FeatureTable
from veltair.compiler.features.kernel.code_path import CodePath, code_path
from veltair.compiler.features.kernel.column_slots import SLOTS_PER_ROW
from veltair.compiler.features.kernel.slot_writer import UNLIMITED, SlotWriter
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.features.text_code.number_parser import powers_of_ten
from veltair.compiler.features.vocabularies import Vocabularies

TOKEN_BYTES = 8  # of a token with its separator, roughly


@dataclass(frozen=True, slots=True, repr=False)
class ColumnGroup:
    """Neighbouring columns [first, first + count) of one code path and row width.

    >>> from veltair.compiler.features.kernel.code_path import ColumnStep, ValueKind
    >>> ColumnGroup(CodePath(ValueKind.STRING, ColumnStep.HASH), dim=16, first=0, count=3)
    Group(road='string.hash', dim=16, first=0, count=3)
    """

    path: CodePath
    dim: int  # numbers that a column puts into a row of the output
    first: int
    count: int

    def __repr__(self) -> str:
        """Part of `ColumnTable.digest`, which tuning records are filed under: it stays as it is."""
        return f"Group(road='{self.path}', dim={self.dim}, first={self.first}, count={self.count})"


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """What the kernel reads besides raw features: all columns that one input of the model joins.

    `build_column_table` makes one; `ColumnsParameters.table` holds it.

    ::

        table = build_column_table(description, joined, store)
        table.slots  # what the kernel reads of each column, int64
    """

    width: int  # numbers of a row of the output
    groups: tuple[ColumnGroup, ...]
    names: tuple[str, ...]  # of the columns, in the order of the groups
    rows: NDArray[np.void]  # (columns and parts,) of COLUMN_DTYPE
    guards: NDArray[np.int32]  # (guards, 4): 1 to remove or 0 to replace, low, high, value
    edges: NDArray[np.float32]  # boundaries of all columns, padded
    vocabularies: Vocabularies
    tables: NDArray[Any]  # rows of all tables, as the store keeps them
    dropped_guards: int  # that range propagation proved needless
    part_kinds: frozenset[str]  # what crosses are made of, of PART_KINDS
    row_bytes: int  # of tables, read for a row of the batch, where a text has a token in every TOKEN_BYTES

    @property
    def slots(self) -> NDArray[np.int64]:
        """The rows as the kernel takes them: (columns and parts, SLOTS_PER_ROW)."""
        return self.rows.view(np.int64).reshape(len(self.rows), SLOTS_PER_ROW)

    def constants(self) -> dict[str, NDArray[Any]]:
        """What kernels read of the columns, by the names under which their code reads it, in the order of operands."""
        words = self.vocabularies
        return {
            "columns": self.slots,
            "guards": self.guards,
            "edges": self.edges,
            "slots": words.slots,
            "keys": words.keys,
            "spans": words.spans,
            "letters": words.letters,
            "powers": powers_of_ten(),
            "tables": self.tables,
        }

    @property
    def storage(self) -> str:
        """How rows of tables are kept: one of `row_storage.STORAGES`."""
        return storage_of(self.tables)

    @property
    def note(self) -> str:
        """A note for people: what was fused, and which safety steps range propagation made needless."""
        labels = Counter(group.path.label for group in self.groups for _ in range(group.count))
        looked_up = self.rows[self.rows["table_rows"] > 0]
        single = sum(group.count for group in self.groups if group.path.copies_rows)
        kinds = ", ".join(f"{count} {label}" for label, count in labels.most_common())
        total = sum(labels.values())
        return (
            f"{total} columns in one kernel ({kinds}); {single} of {len(looked_up)} lookups have one value "
            f"and no reduction; proved needless: {int((looked_up['bounds_checked'] == 0).sum())} bounds checks, "
            f"{self.dropped_guards} guards; tables of {self.tables.nbytes / 1e6:.1f} MB in {self.storage}"
        )

    @property
    def digest(self) -> str:
        """Digest of all that code and time depend on: everything but the values of rows, boundaries and keys."""
        shapes = (len(self.tables), len(self.edges), len(self.vocabularies.keys), self.vocabularies.letters.size)
        text = repr((self.groups, shapes)).encode() + self.rows.tobytes() + self.guards.tobytes()
        return hashlib.sha256(text).hexdigest()[:16]

    def moved_by(self, numbers: int) -> ColumnTable:
        """The table of a wider output, in whose rows that many numbers stand before the columns."""
        rows = self.rows.copy()
        rows["output_start"] += numbers
        return replace(self, rows=rows)


@dataclass(frozen=True, slots=True)
class _PlacedColumn:
    column: FeatureColumn
    feature: Feature
    table: FeatureTable | None
    path: CodePath
    width: int
    output_start: int  # first number in a row of the output

    @property
    def group(self) -> tuple[str, int]:
        return str(self.path), self.width


def build_column_table(description: FeatureDescription, joined: ColumnInput, store: TableStore) -> ColumnTable:
    """The table of the columns that give one input. `store` holds the rows of all tables of the description."""
    placed = _place_columns(description, joined)
    ordered = sorted(placed, key=lambda place: (*place.group, place.output_start))
    writer = SlotWriter(description, store, [place.column for place in ordered])
    for place in ordered:
        writer.write_column(place.column, place.feature, place.table, place.width, place.output_start)
    rows, vocabularies = writer.finish()
    return ColumnTable(
        width=sum(place.width for place in placed),
        groups=_group(ordered),
        names=tuple(place.column.name for place in ordered),
        rows=rows,
        guards=np.array(writer.guards or [(0, 0, 0, 0)], np.int32),
        edges=writer.all_edges,
        vocabularies=vocabularies,
        tables=store.rows,
        dropped_guards=sum(len(place.column.guards) for place in placed) - len(writer.guards),
        part_kinds=writer.part_kinds,
        row_bytes=sum(_bytes_read(place, store) for place in placed),
    )


def _place_columns(description: FeatureDescription, joined: ColumnInput) -> list[_PlacedColumn]:
    by_name = {column.name: column for column in description.columns}
    wanted = [by_name[name] for name in joined.columns]
    widths = [description.width_of(column) for column in wanted]
    starts = accumulate(widths, initial=0)
    return [
        _PlacedColumn(
            column=column,
            feature=(feature := description.feature_of(column)),
            table=description.table_of(column),
            path=code_path(column, feature),
            width=width,
            output_start=start,
        )
        for column, width, start in zip(wanted, widths, starts, strict=False)
    ]


def _group(ordered: Sequence[_PlacedColumn]) -> tuple[ColumnGroup, ...]:
    groups, first = list[ColumnGroup](), 0
    for (_, width), run in groupby(ordered, lambda place: place.group):
        members = list(run)
        groups.append(ColumnGroup(members[0].path, width, first, len(members)))
        first += len(members)
    return tuple(groups)


def _bytes_read(place: _PlacedColumn, store: TableStore) -> int:
    """Bytes of the column's table that are read for a row of the batch."""
    if place.table is None:
        return 0
    row = int(row_items(place.table.dim, store.rows.dtype.name)) * store.rows.itemsize
    return row * _usual_values(place.feature)


def _usual_values(feature: Feature) -> int:
    """Values of a row, roughly."""
    if feature.kind != "tokens":
        return feature.width
    return max(min(feature.max_bytes // TOKEN_BYTES, feature.truncate or UNLIMITED), 1)
