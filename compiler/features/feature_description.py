"""The feature description: what ONNX cannot say of a recommendation model's inputs, as TOML (docs/features.md).

The semantics are TensorFlow's (tf.feature_column, tf.strings); where they leave a choice, it is documented there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from veltair.compiler.features.feature_tables import Count, FeatureTable, Name, Small

Interval = tuple[int, int]  # [low, high)
DEFAULT_TEXT_BYTES = 256  # room for a row's text where nothing is said

INDICES = ("hash", "boundaries", "vocabulary", "identity")  # steps that give the index of a row, or an id
STEPS = (*INDICES, "number", "length", "mask")
# What each kind of feature may go through; a float or dense feature without a step is passed on as it is.
STEPS_OF_KIND = {
    "int": ("hash", "boundaries", "vocabulary", "identity", "length", "mask"),
    "float": ("boundaries", "copy"),
    "string": ("hash", "vocabulary", "number"),
    "tokens": ("hash", "vocabulary", "number", "length", "mask"),
    "dense": ("copy",),
}


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One raw input. Shapes: int (B, width) int64; float (B,), dense (B, width) float32; string, tokens B strings."""

    name: Name
    kind: Literal["int", "float", "string", "tokens", "dense"]
    width: Small = 1
    missing: int | Literal[False] = -1  # int: this id counts as absent
    empty: Literal["drop", "keep"] = "drop"  # string, tokens: whether an empty one counts as absent
    separator: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    truncate: Count | None = None  # tokens: those beyond are not read
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = (
        DEFAULT_TEXT_BYTES  # string, tokens: for each row, on average
    )

    @property
    def textual(self) -> bool:
        return self.kind in ("string", "tokens")

    @property
    def values(self) -> int | None:
        """The most values of a row; None where there is no bound."""
        return self.truncate if self.kind == "tokens" else self.width


class IndexGuard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to an index outside of an interval: it is replaced by `value`, or removed."""

    replace: Interval | None = None
    value: int = 0
    remove: Interval | None = None

    @property
    def interval(self) -> Interval:
        found = self.remove or self.replace
        assert found is not None  # checked when it was read
        return found


class TextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stretch of the text that a vocabulary is asked for: a feature's, or always the same."""

    feature: Name | None = None  # a string; of tokens, the column's own alone
    text: str | None = None
    case: Literal["lower", "upper"] | None = None  # ASCII letters change to
    unicode: bool = False  # letters that become ASCII ones as well: the signs of kelvin, İ; ı, ſ


class FeatureColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One feature's way to its numbers: a step to an index, guards, and the rows of a table combined."""

    feature: Name
    name: str = ""  # default: the feature's
    hash: Count | None = None  # buckets
    boundaries: tuple[float, ...] | None = None
    vocabulary: tuple[str | int, ...] | None = None
    vocabulary_file: str | None = None  # a key a line
    oov: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0  # buckets behind the vocabulary for what is not in it
    parts: tuple[TextPart, ...] = ()  # vocabulary: looked up is what these make together; default: the feature's text
    identity: Count | None = None  # ids below this
    number: Literal[True] | None = None
    length: Literal[True] | None = None  # how many values a row has
    mask: Literal[True] | None = None  # 1 for each of them, 0 for each that may follow
    default: Annotated[int, msgspec.Meta(ge=-(1 << 30), lt=(1 << 31) - 1)] = -1  # for any other key
    guards: tuple[IndexGuard, ...] = ()
    table: str | None = None  # none: the index itself is passed on, as an id
    first_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 30)] = 0  # what is added to it
    pad: Annotated[int, msgspec.Meta(ge=-(1 << 30), lt=1 << 31)] = 0  # the id where there is no value, or no index
    combiner: Literal["none", "sum", "mean", "sqrtn", "sequence"] | None = None
    empty_row: Annotated[int, msgspec.Meta(ge=0)] | None = None  # stands in where nothing is left; default: zeros

    @property
    def step(self) -> str:
        """One of STEPS, or "copy"."""
        return next((step for step in STEPS if getattr(self, step) is not None), "copy")

    @property
    def ids(self) -> bool:
        """Whether it gives whole numbers, for a model that has the tables itself."""
        return self.table is None and self.step in INDICES

    @property
    def counts(self) -> bool:
        """Whether it gives small numbers, of any type."""
        return self.step in ("length", "mask")


def features_read(column: FeatureColumn) -> tuple[str, ...]:
    """The features that a column is made from, its own first."""
    return (column.feature, *(part.feature for part in column.parts if part.feature is not None))


class ColumnInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of the ONNX model, (B, sum of widths), or in other dimensions: the outputs of these columns side by
    side."""

    name: Name
    columns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class FeatureDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked description: every name that it uses is there, every step fits its feature."""

    features: tuple[Feature, ...]
    columns: tuple[FeatureColumn, ...]
    inputs: tuple[ColumnInput, ...]
    tables: tuple[FeatureTable, ...] = ()
    path: Path = Path("features.toml")

    def feature(self, column: FeatureColumn) -> Feature:
        return next(f for f in self.features if f.name == column.feature)

    def reads(self, names: Iterable[str] | None = None) -> set[str]:
        """The features that columns, all by default, read."""
        chosen = set(names) if names is not None else {column.name for column in self.columns}
        return {f for column in self.columns if column.name in chosen for f in features_read(column)}

    def table(self, column: FeatureColumn) -> FeatureTable | None:
        return next((t for t in self.tables if t.name == column.table), None)

    def width(self, column: FeatureColumn) -> int:
        """Numbers that a column puts into its input for each row."""
        table, feature = self.table(column), self.feature(column)
        steps = (feature.values or 1) if column.combiner == "sequence" or column.step == "mask" else 1
        if table is not None:
            return steps * table.dim
        return feature.width if column.step == "copy" else steps

    def gives_ids(self, joined: ColumnInput) -> bool:
        """Whether an input is of whole numbers: where all its columns can be."""
        return all(column.ids or column.counts for column in self.columns if column.name in joined.columns)
