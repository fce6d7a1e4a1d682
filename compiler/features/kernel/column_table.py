"""A description as tables: one row of numbers for each column, which one kernel reads (no code for each column).

Columns that take the same road through the kernel and have rows of one width stand together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import row_items, storage_of
from veltair.compiler.features.feature_description import (
    ColumnInput,
    Feature,
    FeatureColumn,
    FeatureDescription,
    TextPart,
)
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.index_ranges import (
    IndexRange,
    IndexStep,
    MapInto,
    RemoveOutside,
    ReplaceOutside,
    propagate_range,
    proves_in_bounds,
    simplify_steps,
)
from veltair.compiler.features.kernel.symbolic_shapes import Extent, Symbols, one_value
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.features.vocabularies import Vocabularies

ABSENT = -(1 << 31)  # an index that was removed, or of a value that is missing
UNLIMITED = (1 << 31) - 1
EDGES = 16  # boundaries are padded to vectors
COUNTED = 512  # boundaries; more are searched by halves
COMBINERS = ("sum", "mean", "sqrtn")
LARGE_BYTES = 1 << 20  # rows of tables above this are prefetched
TOKEN = 8  # bytes of a token, more or less


class Field(IntEnum):
    """Numbers of a column's row."""

    SOURCE = 0  # where the feature begins in its bank, times the batch; a text's ends
    WIDTH = 1  # values a row
    FIRST = 2  # boundaries: where they begin; vocabulary: where its slots begin
    SIZE = 3  # hash: buckets; identity: ids; boundaries: their number; vocabulary: slots
    KEYS = 4  # vocabulary: where its keys begin
    KEY_COUNT = 5
    DEFAULT = 6  # index of what is in no vocabulary or no identity; of NaN among boundaries, -1: the last
    OOV = 7
    TABLE = 8  # where the rows begin; ids: what is added to each
    ROWS = 9
    DIM = 10
    FILL = 11  # row that is read where nothing is left; ids: the one that stands there
    OUT = 12  # first number of the output
    CHECKED = 13  # 0: range propagation proved that no index is outside of the table
    GUARD = 14  # first guard
    GUARDS = 15
    MISSING = 16  # ints: the id that is absent; text in parts: the row of the first part
    DROPS = 17  # whether missing ids or empty texts are absent
    LIMIT = 18  # tokens of a row that are read
    SEPARATOR = 19
    COMBINER = 20  # place in COMBINERS
    LARGE = 21
    RECIPROCAL = 22  # hash: 2**64 over the buckets, rounded down; text in parts: how many
    LETTERS = 23  # where a feature's texts begin in their bank, times the batch
    ROOM = 24  # bytes that they have, times the batch


class PartField(IntEnum):
    """Numbers of a part's row, which stands behind those of all columns. Of features SOURCE, LETTERS and ROOM, too."""

    KIND = Field.DEFAULT  # place in PART_KINDS
    BEGIN = Field.FIRST  # constants: in the letters of vocabularies
    SIZE = Field.SIZE
    CASE = Field.OOV  # place in CASES


PART_KINDS = ("own", "other", "constant")
CASES = (None, "lower", "upper", "lower unicode", "upper unicode")


@dataclass(frozen=True, slots=True, repr=False)
class ColumnGroup:
    """Neighbouring columns [first, first + count) that run through the same code."""

    road: str  # "<kind of feature>.<step>", with ".many" where rows of several values are added up, ".rows" or ".ids"
    dim: int
    first: int
    count: int

    def __repr__(self) -> str:
        """Part of `ColumnTable.digest`, which tuning records are filed under: it stays as it is."""
        return f"Group(road={self.road!r}, dim={self.dim}, first={self.first}, count={self.count})"

    @property
    def one_row(self) -> bool:
        """Whether each value is a row of a table, and nothing is added up."""
        return not self.road.endswith((".many", ".rows", ".ids", ".copy", ".number", ".length", ".mask"))


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """All columns that one input of the model joins."""

    width: int  # of the output
    groups: tuple[ColumnGroup, ...]
    columns: NDArray[np.int64]  # (columns and parts, Field)
    guards: NDArray[np.int32]  # (guards, 4): 1 to remove, low, high, value
    edges: NDArray[np.float32]
    vocabularies: Vocabularies
    tables: NDArray[Any]  # of the store
    dropped_guards: int
    row_bytes: int  # of tables, read for a row of the batch, where a text has a token in every TOKEN bytes

    @property
    def note(self) -> str:
        """For people: what was fused, and which safety steps range propagation made needless."""
        counts = Counter(group.road.removesuffix(".many") for group in self.groups for _ in range(group.count))
        looked_up = self.columns[self.columns[:, Field.ROWS] > 0]
        single = sum(group.count for group in self.groups if group.one_row)
        kinds = ", ".join(f"{count} {road.replace('.', ' by ')}" for road, count in counts.most_common())
        total = sum(counts.values())
        return (
            f"{total} columns in one kernel ({kinds}); {single} of {len(looked_up)} lookups have one value "
            f"and no reduction; proved needless: {int((looked_up[:, Field.CHECKED] == 0).sum())} bounds checks, "
            f"{self.dropped_guards} guards; tables of {self.tables.nbytes / 1e6:.1f} MB in {self.storage}"
        )

    @property
    def storage(self) -> str:
        """How rows of tables are kept: one of `rows.STORAGES`."""
        return storage_of(self.tables)

    @property
    def digest(self) -> str:
        """Of all that code and time depend on: everything but the values of rows, boundaries and keys."""
        shapes = (len(self.tables), len(self.edges), len(self.vocabularies.keys), self.vocabularies.letters.size)
        text = repr((self.groups, shapes)).encode() + self.columns.tobytes() + self.guards.tobytes()
        return hashlib.sha256(text).hexdigest()[:16]


def build_column_table(description: FeatureDescription, joined: ColumnInput, store: TableStore) -> ColumnTable:
    by_name = {column.name: column for column in description.columns}
    features = {feature.name: feature for feature in description.features}
    wanted = [by_name[name] for name in joined.columns]
    widths = [description.width(column) for column in wanted]
    outs = dict(zip(joined.columns, np.cumsum([0, *widths])[:-1].tolist(), strict=True))
    width_of = dict(zip(joined.columns, widths, strict=True))

    def key(column: FeatureColumn) -> tuple[str, int]:
        return road(column, features[column.feature]), width_of[column.name]

    ordered = sorted(wanted, key=lambda column: (*key(column), outs[column.name]))
    starts = FeatureLayout.from_description(description).starts
    edges: list[NDArray[np.float32]] = []
    guards: list[tuple[int, int, int, int]] = []
    vocabularies = Vocabularies.build({c.name: c.vocabulary for c in ordered if c.vocabulary is not None})
    parts: list[tuple[FeatureColumn, TextPart]] = []
    rows = np.zeros((len(ordered), len(Field)), np.int64)
    for row, column in zip(rows, ordered, strict=True):
        feature, table = features[column.feature], description.table(column)
        absent_free = not _may_be_absent(column, feature)
        steps = simplify_steps(steps_of(column))
        row[Field.SOURCE], row[Field.WIDTH] = starts[feature.name][0], feature.width
        if feature.textual:
            row[Field.LETTERS], row[Field.ROOM] = starts[feature.name][1], feature.max_bytes
        row[Field.OUT], row[Field.DIM] = outs[column.name], width_of[column.name] if table is None else table.dim
        row[Field.MISSING] = 0 if feature.missing is False else feature.missing
        row[Field.DROPS] = feature.empty == "drop" if feature.textual else feature.missing is not False
        row[Field.LIMIT] = feature.truncate or UNLIMITED
        row[Field.SEPARATOR] = ord(feature.separator)
        row[Field.COMBINER] = COMBINERS.index(column.combiner) if column.combiner in COMBINERS else 1
        row[Field.DEFAULT], row[Field.OOV] = column.default, column.oov
        row[Field.GUARD], found = len(guards), _guards(steps)
        guards += found
        row[Field.GUARDS] = len(found)
        if table is not None:
            row[Field.TABLE], row[Field.ROWS], row[Field.FILL] = store.location_of(column)
            row[Field.LARGE] = store.tables[table.name].nbytes > LARGE_BYTES
            row[Field.CHECKED] = not (absent_free and proves_in_bounds(steps, table.rows) and not _removes(steps))
        if column.ids:
            row[Field.TABLE], row[Field.FILL] = column.first_id, column.pad
        if column.boundaries is not None:
            row[Field.FIRST], row[Field.SIZE] = sum(map(len, edges)), len(column.boundaries)
            padded = np.full(-(-len(column.boundaries) // EDGES) * EDGES, np.inf, np.float32)
            padded[: len(column.boundaries)] = column.boundaries
            # Those that are counted lie in 16 stretches side by side: the first of each, the second of each, …
            counted = len(column.boundaries) <= COUNTED
            edges.append(padded.reshape(EDGES, -1).T.ravel() if counted else padded)
        if column.vocabulary is not None:
            first = vocabularies.first[column.name]
            row[Field.FIRST], row[Field.SIZE], row[Field.KEYS], row[Field.KEY_COUNT] = first
        if column.parts:
            row[Field.MISSING], row[Field.RECIPROCAL] = len(ordered) + len(parts), len(column.parts)
            parts += [(column, part) for part in column.parts]
        if column.hash is not None or column.identity is not None:
            row[Field.SIZE] = column.hash or column.identity or 0
            row[Field.RECIPROCAL] = np.uint64(((1 << 64) - 1) // int(row[Field.SIZE])).view(np.int64)

    def read_bytes(column: FeatureColumn) -> int:
        table = description.table(column)
        row = 0 if table is None else int(row_items(table.dim, store.rows.dtype.name)) * store.rows.itemsize
        return row * _values(features[column.feature])

    groups, first_column = [], 0
    for (name, dim), members in groupby(ordered, key):
        count = len(list(members))
        groups.append(ColumnGroup(name, dim, first_column, count))
        first_column += count
    if parts:
        behind, vocabularies = _parts(parts, starts, features, vocabularies)
        rows = np.concatenate([rows, behind])
    return ColumnTable(
        sum(widths), tuple(groups), rows,
        np.array(guards or [(0, 0, 0, 0)], np.int32),
        np.concatenate(edges) if edges else np.zeros(EDGES, np.float32), vocabularies, store.rows,
        sum(len(c.guards) for c in wanted) - len(guards),
        sum(map(read_bytes, wanted)),
    )  # fmt: skip


def _parts(
    parts: Sequence[tuple[FeatureColumn, TextPart]],
    starts: Mapping[str, tuple[int, ...]],
    features: Mapping[str, Feature],
    vocabularies: Vocabularies,
) -> tuple[NDArray[np.int64], Vocabularies]:
    """Rows of parts, and the vocabularies with the letters of constant ones behind theirs."""
    rows, letters = np.zeros((len(parts), len(Field)), np.int64), [vocabularies.letters.tobytes()]
    for row, (column, part) in zip(rows, parts, strict=True):
        row[PartField.CASE] = CASES.index(f"{part.case} unicode" if part.case and part.unicode else part.case)
        if part.feature is None:
            text = (part.text or "").encode()
            row[PartField.KIND], row[PartField.BEGIN] = PART_KINDS.index("constant"), sum(map(len, letters))
            row[PartField.SIZE] = len(text)
            letters.append(text)
        elif part.feature != column.feature:
            row[PartField.KIND] = PART_KINDS.index("other")
            row[Field.SOURCE], row[Field.LETTERS] = starts[part.feature]
            row[Field.ROOM] = features[part.feature].max_bytes
    return rows, replace(vocabularies, letters=np.frombuffer(b"".join(letters), np.uint8))


def _values(feature: Feature) -> int:
    """Of a row, more or less."""
    if feature.kind != "tokens":
        return feature.width
    return max(min(feature.max_bytes // TOKEN, feature.truncate or UNLIMITED), 1)


def road(column: FeatureColumn, feature: Feature) -> str:
    """One value a row at most is looked up without a reduction (RECom 5.2), whatever the combiner."""
    kind = "float" if feature.kind == "dense" else feature.kind
    name = f"{kind}.{'parts' if column.parts else column.step}"
    if column.ids or column.combiner == "sequence":
        return f"{name}.{'ids' if column.ids else 'rows'}"
    if column.step == "copy" or column.counts:
        return name
    return (
        name
        if one_value(feature, Symbols(), Extent.from_value("batch"), Extent.from_value("bytes"))
        else f"{name}.many"
    )


def id_range(column: FeatureColumn) -> IndexRange:
    """Of the ids that a column gives."""
    found = propagate_range(steps_of(column))[-1].intersection(IndexRange(low=0))
    pad = IndexRange(column.pad, column.pad + 1)
    return pad if found.empty else IndexRange(found.low + column.first_id, found.high + column.first_id).hull(pad)


def steps_of(column: FeatureColumn) -> tuple[IndexStep, ...]:
    """A column's way to its index in the terms of range propagation."""
    into = IndexRange()
    if column.hash is not None:
        into = IndexRange(0, column.hash)
    elif column.boundaries is not None:
        into = IndexRange(0, len(column.boundaries) + 1)
    elif column.identity is not None or column.vocabulary is not None:
        known = column.identity if column.vocabulary is None else len(column.vocabulary) + column.oov
        assert known is not None
        into = IndexRange(0, known)
        if not column.oov:
            into = into.hull(IndexRange(column.default, column.default + 1))
    steps: list[IndexStep] = [MapInto(into)]
    for guard in column.guards:
        inside = IndexRange(*guard.interval)
        steps.append(RemoveOutside(inside) if guard.remove is not None else ReplaceOutside(inside, guard.value))
    return tuple(steps)


def _guards(steps: Sequence[IndexStep]) -> list[tuple[int, int, int, int]]:
    """Intervals are cut to 32 bits, and an empty one to nothing, which loses no index."""
    found = []
    for step in steps:
        if isinstance(step, ReplaceOutside | RemoveOutside):
            low = max(step.inside.low, ABSENT + 1)
            high = max(min(step.inside.high, UNLIMITED), low)
            found.append(
                (int(isinstance(step, RemoveOutside)), low, high, 0 if isinstance(step, RemoveOutside) else step.value)
            )
    return found


def _removes(steps: Sequence[IndexStep]) -> bool:
    return any(isinstance(step, RemoveOutside) for step in steps)


def _may_be_absent(column: FeatureColumn, feature: Feature) -> bool:
    if feature.kind == "int":
        return feature.missing is not False and column.boundaries is None
    return feature.textual and feature.empty == "drop"
