"""Writes the rows of a column table, and the guards, boundaries and constant texts that they point to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.column_ranges import index_steps
from veltair.compiler.features.feature_description import Feature, FeatureColumn, FeatureDescription, TextPart
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.feature_tables import FeatureTable
from veltair.compiler.features.index_ranges import (
    IndexStep,
    RemoveOutside,
    ReplaceOutside,
    proves_in_bounds,
    simplify_steps,
)
from veltair.compiler.features.kernel.column_slots import COLUMN_DTYPE, COMBINERS, PART_KINDS
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.features.text_code.letter_case import CASES
from veltair.compiler.features.vocabularies import Vocabularies

ABSENT = -(1 << 31)  # an index that was removed, or of a value that is missing
UNLIMITED = (1 << 31) - 1
EDGES = 16  # boundaries are padded to vectors
COUNTED = 512  # boundaries; more are searched by halves
LARGE_BYTES = 1 << 20  # rows of tables above this are prefetched


class SlotWriter:
    """Writes a row for each of the ordered columns, then one for each part of their texts.

    `build_column_table` is its only user: `write_column` for each column in order, then `finish`.

    ::

        writer = SlotWriter(description, store, [column])
        writer.write_column(column, feature, table, width=16, output_start=0)
        rows, vocabularies = writer.finish()
    """

    def __init__(self, description: FeatureDescription, store: TableStore, ordered: Sequence[FeatureColumn]) -> None:
        self.guards: list[tuple[int, int, int, int]] = []  # to remove (1) or replace (0), low, high, value
        self._columns = len(ordered)
        self._store = store
        self._starts = FeatureLayout.from_description(description).starts
        self._features = {feature.name: feature for feature in description.features}
        self._vocabularies = Vocabularies.build({c.name: c.vocabulary for c in ordered if c.vocabulary is not None})
        self._edges: list[NDArray[np.float32]] = []
        self._rows: list[dict[str, int]] = []
        # A text to be joined, a feature of a cross, or, with None, how the column hashes.
        self._parts: list[tuple[FeatureColumn, TextPart | Feature | None]] = []

    @property
    def all_edges(self) -> NDArray[np.float32]:
        return np.concatenate(self._edges) if self._edges else np.zeros(EDGES, np.float32)

    def write_column(
        self, column: FeatureColumn, feature: Feature, table: FeatureTable | None, width: int, output_start: int
    ) -> None:
        """The row of one column, whose output has `width` numbers."""
        steps = simplify_steps(index_steps(column))
        row = self._values(feature) | self._index(column) | self._guards(steps)
        row |= {
            "output_start": output_start,
            "row_width": width if table is None else table.dim,
            "combiner": COMBINERS.index(column.combiner if column.combiner in COMBINERS else "mean"),
        }
        if table is not None:
            row |= self._table(column, table)
            row["bounds_checked"] = not (
                not _may_be_absent(column, feature)
                and proves_in_bounds(steps, table.rows)
                and not any(isinstance(step, RemoveOutside) for step in steps)
            )
        if column.gives_ids:
            row |= {"first_id": column.first_id, "pad_id": column.pad}
        self._rows.append(row)

    def finish(self) -> tuple[NDArray[np.void], Vocabularies]:
        """All rows, and the vocabularies with the letters of constant parts behind theirs."""
        letters = [self._vocabularies.letters.tobytes()]
        rows = [*self._rows, *(self._part(column, part, letters) for column, part in self._parts)]
        table = np.zeros(len(rows), COLUMN_DTYPE)
        for place, row in enumerate(rows):
            for field, value in row.items():
                table[field][place] = value
        if len(letters) == 1:
            return table, self._vocabularies
        return table, replace(self._vocabularies, letters=np.frombuffer(b"".join(letters), np.uint8))

    def _values(self, feature: Feature) -> dict[str, int]:
        """Where the values of a feature are, and which of them count."""
        row = {
            "source_start": self._starts[feature.name][0],
            "values_per_row": feature.width,
            "missing_id": 0 if feature.missing is False else feature.missing,
            "drops_missing": feature.empty == "drop" if feature.is_text else feature.missing is not False,
            "token_limit": feature.truncate or UNLIMITED,
            "separator": ord(feature.separator),
        }
        if feature.is_text:
            row |= {"bytes_start": self._starts[feature.name][1], "bytes_room": feature.max_bytes}
        return row

    def _index(self, column: FeatureColumn) -> dict[str, int]:
        """How a value becomes an index."""
        row = {"default_index": column.default, "unknown_buckets": column.oov}
        if column.hash is not None:
            row |= {"buckets": column.hash, "reciprocal": _reciprocal(column.hash)}
            if column.is_keyed:
                row["hash_row"] = self._hashing(column)
            if column.cross:
                crossed = (column.feature, *column.cross)
                row |= {"first_cross": self._columns + len(self._parts), "cross_count": len(crossed)}
                row["cross_key"] = column.cross_key
                self._parts += [(column, self._features[name]) for name in crossed]
        elif column.identity is not None:
            row |= {"id_count": column.identity, "reciprocal": _reciprocal(column.identity)}
        elif column.boundaries is not None:
            row |= {"first_boundary": sum(map(len, self._edges)), "boundary_count": len(column.boundaries)}
            self._edges.append(_padded_edges(column.boundaries))
        elif column.vocabulary is not None:
            span = self._vocabularies.spans_of[column.name]
            row |= dict(zip(("first_slot", "slot_count", "first_key", "key_count"), span, strict=True))
            if column.oov and column.is_keyed:
                row["unknown_row"] = self._hashing(column)
        if column.parts:
            row |= {"first_part": self._columns + len(self._parts), "part_count": len(column.parts)}
            self._parts += [(column, part) for part in column.parts]
        return row

    def _hashing(self, column: FeatureColumn) -> int:
        """The row that says how values are hashed, other than by their fingerprints."""
        self._parts.append((column, None))
        return self._columns + len(self._parts) - 1

    def _guards(self, steps: Sequence[IndexStep]) -> dict[str, int]:
        """Intervals are cut to 32 bits, and an empty one to nothing, which loses no index."""
        first = len(self.guards)
        for step in steps:
            if isinstance(step, ReplaceOutside | RemoveOutside):
                removes = isinstance(step, RemoveOutside)
                low = max(step.inside.low, ABSENT + 1)
                high = max(min(step.inside.high, UNLIMITED), low)
                value = step.value if isinstance(step, ReplaceOutside) else 0
                self.guards.append((int(removes), low, high, value))
        return {"first_guard": first, "guard_count": len(self.guards) - first}

    def _table(self, column: FeatureColumn, table: FeatureTable) -> dict[str, int]:
        start, rows, fill = self._store.location_of(column)
        large = self._store.tables[table.name].nbytes > LARGE_BYTES
        return {"table_start": start, "table_rows": rows, "fill_row": fill, "is_large": large}

    def _part(self, column: FeatureColumn, part: TextPart | Feature | None, letters: list[bytes]) -> dict[str, int]:
        if part is None:
            key = np.array(column.strong_key or (0, 0), np.uint64).view(np.int64).tolist()
            return {"by_remainder": column.remainder, "first_word": key[0], "second_word": key[1]}
        if isinstance(part, Feature):
            return self._values(part) | {"part_kind": PART_KINDS.index("other" if part.is_text else "integer")}
        case = f"{part.case} unicode" if part.case and part.unicode else part.case
        row = {"letter_case": CASES.index(case)}
        if part.feature is None:
            text = (part.text or "").encode()
            row |= {"part_kind": PART_KINDS.index("constant"), "text_start": sum(map(len, letters))}
            row["text_bytes"] = len(text)
            letters.append(text)
        elif part.feature != column.feature:
            source, first_byte = self._starts[part.feature]
            row |= {"part_kind": PART_KINDS.index("other"), "source_start": source, "bytes_start": first_byte}
            row["bytes_room"] = self._features[part.feature].max_bytes
        return row


def _reciprocal(divisor: int) -> int:
    """2**64 over the divisor, rounded down, as the int64 of the same bits."""
    return int(np.uint64(((1 << 64) - 1) // divisor).view(np.int64))


def _padded_edges(boundaries: Sequence[float]) -> NDArray[np.float32]:
    """Boundaries padded with infinity to vectors.

    Those that are counted lie in 16 stretches side by side: the first of each, the second of each, …
    """
    padded = np.full(-(-len(boundaries) // EDGES) * EDGES, np.inf, np.float32)
    padded[: len(boundaries)] = boundaries
    return padded.reshape(EDGES, -1).T.ravel() if len(boundaries) <= COUNTED else padded


def _may_be_absent(column: FeatureColumn, feature: Feature) -> bool:
    if feature.kind == "int":
        return feature.missing is not False and column.boundaries is None
    return feature.is_text and feature.empty == "drop"
