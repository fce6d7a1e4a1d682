"""Sorts the columns of a description into parts, each of which one kernel computes for a model in training.

Texts are read where they lie, and each has memory of its own. So the columns of a text are a part for themselves,
unless they join it with other texts; all columns of numbers are one part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec
import numpy as np

from veltair.compiler.features.feature_description import (
    ColumnInput,
    ColumnStep,
    Feature,
    FeatureColumn,
    FeatureDescription,
    features_read,
)
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.kernel.column_table import ColumnTable, build_column_table
from veltair.compiler.features.table_store import TableStore
from veltair.errors import ModelError

NO_ID = -1  # in place of a row that serving fills with zeros
NO_LIMIT = (1 << 31) - 1  # of ids that the model looks up itself


class TrainingForm(StrEnum):
    """What a column gives to a model in training."""

    BAG = "bag"  # the ids of its rows, as many as there are
    IDS = "ids"  # (batch, places) ids, lengths or masks
    NUMBERS = "numbers"  # (batch, 1) float32
    VALUES = "values"  # the feature's values as they are


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """Columns of one form that one kernel computes; `training_parts` makes them.

    The rows of `table` are those of the serving kernel except for three slots: `table_rows` bounds the indices that are
    kept, `pad_id` stands for none, and `output_start` is a bag's number.
    """

    form: TrainingForm
    features: tuple[Feature, ...]  # that the columns read, in the order of their memory
    table: ColumnTable
    columns: tuple[FeatureColumn, ...]  # in the order of the table
    widths: tuple[int, ...]  # numbers of each in a row of the output; of bags, values that a row has at most, or 1


def form_of(column: FeatureColumn) -> TrainingForm:
    """What a column gives."""
    if column.step is ColumnStep.COPY:
        return TrainingForm.VALUES
    if column.step is ColumnStep.NUMBER:
        return TrainingForm.NUMBERS
    if column.table is not None and column.combiner != "sequence":
        return TrainingForm.BAG
    return TrainingForm.IDS


def training_parts(description: FeatureDescription) -> tuple[TrainingPart, ...]:
    """The parts of a description; columns that pass on values are in none."""
    parts = []
    texts = {feature.name for feature in description.features if feature.is_text}
    together = _joined_texts(description, texts)
    by_part: dict[tuple[str, TrainingForm], list[FeatureColumn]] = {}
    for column in description.columns:
        if (form := form_of(column)) is not TrainingForm.VALUES:
            by_part.setdefault((together.get(column.feature, ""), form), []).append(column)
    for (_, form), columns in by_part.items():
        parts.append(_make_part(description, form, columns))
    return tuple(parts)


def _joined_texts(description: FeatureDescription, texts: set[str]) -> dict[str, str]:
    """The leader of each text: the first of those that some column joins it with, directly or through others."""
    first = {name: name for name in sorted(texts)}
    for column in description.columns:
        read = [first[name] for name in features_read(column) if name in texts]
        wide = [f.name for f in description.features if f.is_text and f.width > 1 and f.name in features_read(column)]
        if wide and len({name for name in features_read(column) if name in texts}) > 1:
            raise ModelError(
                f"{description.path}: column {column.name!r} crosses the several texts a row of {wide[0]!r} with other "
                "texts: training takes such a feature alone"
            )
        if len(read) > 1:
            joined = set(read)
            first = {name: min(joined) if root in joined else root for name, root in first.items()}
    return first


def _make_part(description: FeatureDescription, form: TrainingForm, columns: list[FeatureColumn]) -> TrainingPart:
    limits = {c.name: t.rows if (t := description.table_of(c)) is not None else NO_LIMIT for c in columns}
    pads = {c.name: _stand_in(c) if c.table is not None else c.pad for c in columns}
    alone = [msgspec.structs.replace(c, table=None, empty_row=None) for c in columns]
    joined = ColumnInput(name="x", columns=tuple(c.name for c in alone))
    read = {name for column in alone for name in features_read(column)}
    features = tuple(feature for feature in description.features if feature.name in read)
    part = FeatureDescription(features=features, columns=tuple(alone), inputs=(joined,), path=description.path)
    table = build_column_table(part, joined, TableStore.load(part))
    by_name = {column.name: column for column in alone}
    ordered = tuple(by_name[name] for name in table.names)
    widths = tuple(part.width_of(column) for column in ordered)
    rows = table.rows.copy()
    count = len(ordered)
    rows["table_rows"][:count] = [limits[name] for name in table.names]
    if form is not TrainingForm.NUMBERS:
        rows["pad_id"][:count] = [pads[name] for name in table.names]
    if form is TrainingForm.BAG:
        rows["output_start"][:count] = np.arange(count)
    else:
        rows["output_start"][:count] = np.concatenate([[0], np.cumsum(widths)[:-1]])
    layout = FeatureLayout.from_description(part)
    return TrainingPart(form, layout.features, replace(table, rows=rows), ordered, widths)


def _stand_in(column: FeatureColumn) -> int:
    """The id of the row that stands where no value is left."""
    return NO_ID if column.empty_row is None else column.empty_row
