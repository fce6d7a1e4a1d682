"""Writes the rows of a column table, and the guards, boundaries and constant texts that they point to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.column_ranges import index_steps
from veltair.compiler.features.feature_description import (
    CrossPart,
    Feature,
    FeatureColumn,
    FeatureDescription,
    TextPart,
)
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.feature_tables import FeatureTable
from veltair.compiler.features.index_ranges import (
    IndexStep,
    RemoveOutside,
    ReplaceOutside,
    proves_in_bounds,
    simplify_steps,
)
from veltair.compiler.features.kernel.column_slots import COLUMN_DTYPE, COMBINERS, NO_VALUE, PART_KINDS
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.features.text_code.letter_case import CASES
from veltair.compiler.features.vocabularies import Vocabularies

ABSENT = -(1 << 31)  # an index that was removed, or of a value that is missing
UNLIMITED = (1 << 31) - 1
EDGES = 16  # boundaries are padded to vectors
COUNTED = 512  # boundaries; more are searched by halves
VOCABULARY_SLOTS = ("first_slot", "slot_count", "first_key", "key_count")
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
        words = {c.name: c.vocabulary for c in ordered if c.vocabulary is not None}
        words |= {
            _part_name(c, at): part.vocabulary
            for c in ordered
            for at, part in enumerate(c.cross_parts)
            if part.vocabulary
        }
        self._vocabularies = Vocabularies.build(words)
        self._part_values: list[int] = []  # of crosses, behind the keys of vocabularies
        self.part_kinds = frozenset[str]()
        self._edges: list[NDArray[np.float32]] = []
        self._rows: list[dict[str, int]] = []
        # A text to be joined, the fields of a part of a cross, or, with None, how the column hashes.
        self._parts: list[tuple[FeatureColumn, TextPart | Mapping[str, int] | None]] = []

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
        words = self._vocabularies
        if self._part_values:
            words = replace(words, keys=np.concatenate([words.keys, np.array(self._part_values, np.int64)]))
        if len(letters) > 1:
            words = replace(words, letters=np.frombuffer(b"".join(letters), np.uint8))
        return table, words

    def _values(self, feature: Feature) -> dict[str, int]:
        """Where the values of a feature are, and which of them count."""
        row = {
            "source_start": self._starts[feature.name][0],
            "values_per_row": feature.width,
            "missing_id": 0 if feature.missing is False else feature.missing,
            "drops_missing": feature.empty == "drop" if feature.is_text else feature.missing is not False,
            "token_limit": feature.truncate or UNLIMITED,
            "separator": ord(feature.separator[:1] or " "),  # white space and characters are part of the code path
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
            if column.cross_parts:
                row |= {"first_cross": self._columns + len(self._parts), "cross_count": len(column.cross_parts)}
                row["cross_key"] = column.cross_key
                self._cross(column)
        elif column.identity is not None:
            row |= {"id_count": column.identity, "reciprocal": _reciprocal(column.identity)}
        elif column.boundaries is not None:
            row |= self._boundaries(column.boundaries)
        elif column.vocabulary is not None:
            span = self._vocabularies.spans_of[column.name]
            row |= dict(zip(VOCABULARY_SLOTS, span, strict=True))
            if column.oov and column.is_keyed:
                row["unknown_row"] = self._hashing(column)
        if column.parts:
            row |= {"first_part": self._columns + len(self._parts), "part_count": len(column.parts)}
            self._parts += [(column, part) for part in column.parts]
        return row

    def _cross(self, column: FeatureColumn) -> None:
        """The rows of the parts of a cross, and behind them those with their boundaries and vocabularies."""
        parts = column.cross_parts
        features = [self._features[part.feature] for part in parts]
        rows, behind = [self._values(feature) for feature in features], list[dict[str, int]]()
        first_step = self._columns + len(self._parts) + len(parts)
        for at, (part, feature, row) in enumerate(zip(parts, features, rows, strict=True)):
            kind = "other" if feature.is_text else "integer" if part.missing is None else "sparse integer"
            if part.missing is not None:
                row |= {"missing_id": part.missing}
            if part.gives_numbers:
                kind = "interval" if part.boundaries is not None else "text key" if feature.is_text else "number key"
                row |= {"step_row": first_step + len(behind), "first_value": self._first_value(part)}
                row["value_stride"] = part.places if len(part.values) > part.places else 0
                behind.append(self._values(feature) | self._step(part, _part_name(column, at)))
            row |= {"part_kind": PART_KINDS.index(kind), "part_stride": prod(f.width for f in features[at + 1 :])}
            self.part_kinds |= {kind}
        self._parts += [(column, row) for row in (*rows, *behind)]

    def _first_value(self, part: CrossPart) -> int:
        first = len(self._vocabularies.keys) + len(self._part_values)
        self._part_values += [NO_VALUE if value is False else value for value in part.numbers]
        return first

    def _step(self, part: CrossPart, name: str) -> dict[str, int]:
        """The slots of a part's boundaries or vocabulary."""
        if part.boundaries is not None:
            return self._boundaries(part.boundaries)
        row = {"default_index": len(part.vocabulary or ()), "unknown_buckets": part.oov}
        return row | dict(zip(VOCABULARY_SLOTS, self._vocabularies.spans_of[name], strict=True))

    def _boundaries(self, edges: Sequence[float]) -> dict[str, int]:
        first = sum(map(len, self._edges))
        self._edges.append(_padded_edges(edges))
        return {"first_boundary": first, "boundary_count": len(edges)}

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

    def _part(
        self, column: FeatureColumn, part: TextPart | Mapping[str, int] | None, letters: list[bytes]
    ) -> dict[str, int]:
        if part is None:
            key = np.array(column.strong_key or (0, 0), np.uint64).view(np.int64).tolist()
            return {"by_remainder": column.remainder, "first_word": key[0], "second_word": key[1]}
        if isinstance(part, Mapping):
            return dict(part)
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


def _part_name(column: FeatureColumn, place: int) -> str:
    """Under which name the vocabulary of a part of a cross is kept; no column has it, since names have no line ends."""
    return f"{column.name}\n{place}"


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
    if any(part.may_be_absent for part in column.cross_parts):
        return True
    if feature.kind == "int":
        return feature.missing is not False and column.boundaries is None
    return feature.is_text and feature.empty == "drop"
