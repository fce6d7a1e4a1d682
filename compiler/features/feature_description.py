"""The feature description: what ONNX cannot say of a recommendation model's inputs, as TOML (docs/features.md).

The semantics are TensorFlow's (tf.feature_column, tf.strings); docs/features.md says where they leave a choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from veltair.compiler.features.feature_tables import Count, FeatureTable, Name, Small
from veltair.compiler.features.fingerprint import CROSS_KEY

Interval = tuple[int, int]  # [low, high)
SEPARATORS = r"(?s)^(.?|characters)$"
KeyWord = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # TOML has no more bits
CHARACTERS = "characters"  # the separator of a column whose tokens are the characters of a text
DEFAULT_TEXT_BYTES = 256  # room for a row's text where the description does not say it


class ColumnStep(StrEnum):
    """How a column turns values into an index or into numbers; the first seven are keys of a column's TOML table."""

    HASH = "hash"  # the bucket of a value's fingerprint
    BOUNDARIES = "boundaries"  # the interval that a number falls into
    VOCABULARY = "vocabulary"  # the place of a key in a list
    IDENTITY = "identity"  # the id itself
    NUMBER = "number"  # the number that a text spells
    LENGTH = "length"  # how many values a row has
    MASK = "mask"  # 1 for each value, 0 for each that may follow
    COPY = "copy"  # no step: floats are passed on
    CROSS = "cross"  # inside the kernel: a hash of the values of several features
    KEYED_HASH = "keyed hash"  # inside the kernel: a hash by SipHash, or by the remainder of a number
    KEYED_VOCABULARY = "keyed vocabulary"  # inside the kernel: a vocabulary that does so with unknown keys
    PARTS = "parts"  # inside the kernel: a vocabulary that is asked for several texts together


INDEX_STEPS = (ColumnStep.HASH, ColumnStep.BOUNDARIES, ColumnStep.VOCABULARY, ColumnStep.IDENTITY)  # to a row or an id
STEPS = (*INDEX_STEPS, ColumnStep.NUMBER, ColumnStep.LENGTH, ColumnStep.MASK)
# The steps of each kind of feature; a float or dense feature without a step is passed on as it is.
STEPS_OF_KIND = {
    "int": (*INDEX_STEPS, ColumnStep.LENGTH, ColumnStep.MASK),
    "float": (ColumnStep.BOUNDARIES, ColumnStep.COPY),
    "string": (ColumnStep.HASH, ColumnStep.VOCABULARY, ColumnStep.NUMBER),
    "tokens": (ColumnStep.HASH, ColumnStep.VOCABULARY, ColumnStep.NUMBER, ColumnStep.LENGTH, ColumnStep.MASK),
    "dense": (ColumnStep.COPY,),
}


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One raw input. Shapes: int (B, width) int64; float (B,), dense (B, width) float32; string (B, width), tokens B
    strings.

    >>> Feature(name="history", kind="tokens", truncate=50).most_values
    50
    """

    name: Name
    kind: Literal["int", "float", "string", "tokens", "dense"]
    width: Small = 1
    missing: int | Literal[False] = -1  # int: this id counts as absent
    empty: Literal["drop", "keep"] = "drop"  # string, tokens: whether an empty one counts as absent
    separator: Annotated[str, msgspec.Meta(max_length=1)] = ","  # "": stretches of ASCII white space
    truncate: Count | None = None  # tokens: those beyond are not read
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = (
        DEFAULT_TEXT_BYTES  # string, tokens: for all text of a row, on average
    )

    @property
    def is_text(self) -> bool:
        return self.kind in ("string", "tokens")

    @property
    def most_values(self) -> int | None:
        """Values that a row has at most; None where there is no bound."""
        return self.truncate if self.kind == "tokens" else self.width


class IndexGuard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to an index outside of an interval: it is replaced by `value`, or removed.

    >>> IndexGuard(remove=(0, 10)).interval
    (0, 10)
    """

    replace: Interval | None = None
    value: int = 0
    remove: Interval | None = None

    @property
    def interval(self) -> Interval:
        found = self.remove or self.replace
        assert found is not None  # checked when it was read
        return found


class TextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the text that a vocabulary is asked for: the text of a feature, or a constant.

    >>> TextPart(feature="city", case="lower").text is None
    True
    """

    feature: Name | None = None  # a string feature; where the column reads tokens, only its own feature
    text: str | None = None
    case: Literal["lower", "upper"] | None = None  # ASCII letters change to this case
    unicode: bool = False  # so do the letters that become ASCII ones: the kelvin sign, İ; ı, ſ


class CrossPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a cross: the values of a feature, or whole numbers that stand for them.

    >>> CrossPart(feature="age", boundaries=(18, 65)).gives_numbers
    True
    """

    feature: Name
    boundaries: tuple[float, ...] | None = None  # of a float feature: the interval, NaN in the last
    vocabulary: tuple[str | int, ...] | None = None  # of an int or string feature: the place, else behind all keys
    oov: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0  # the buckets of unknown keys, behind the vocabulary
    missing: int | None = None  # of an int feature without a vocabulary: this id gives no value
    values: tuple[int | Literal[False], ...] = ()  # what stands for each place; False: no value. Default: the place
    # For a feature of several values a row, `values` may say so for the first of them, then for the second, …

    @property
    def gives_numbers(self) -> bool:
        """Whether numbers of `boundaries` or `vocabulary` are crossed, and not the feature's own values."""
        return self.boundaries is not None or self.vocabulary is not None

    @property
    def may_be_absent(self) -> bool:
        """Whether there may be no value."""
        return self.missing is not None or any(value is False for value in self.values)

    @property
    def places(self) -> int:
        """How many places there are, of interval or key."""
        if self.boundaries is not None:
            return len(self.boundaries) + 1
        return len(self.vocabulary or ()) + max(self.oov, 1)

    @property
    def numbers(self) -> tuple[int | Literal[False], ...]:
        """What stands for each place."""
        return self.values or tuple(range(self.places))


class FeatureColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One feature's way to its numbers: a step to an index, guards, and the rows of a table combined.

    >>> FeatureColumn(feature="user", hash=1000, table="users").step
    <ColumnStep.HASH: 'hash'>
    """

    feature: Name
    name: str = ""  # default: the feature's
    hash: Count | None = None  # buckets
    cross: tuple[Name, ...] = ()  # hash: other features, whose values are hashed together with the feature's
    crossed: tuple[CrossPart, ...] = ()  # hash: all parts of a cross in their order, instead of `cross`
    strong_key: tuple[KeyWord, KeyWord] | None = None  # hash, oov: by SipHash with this key
    remainder: bool = False  # hash, oov of an int feature: the remainder of the value itself
    cross_key: KeyWord = CROSS_KEY
    boundaries: tuple[float, ...] | None = None
    vocabulary: tuple[str | int, ...] | None = None
    vocabulary_file: str | None = None  # one key on each line
    oov: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0  # buckets for unknown keys, behind the vocabulary
    case: Literal["lower", "upper"] | None = None  # hash, vocabulary of text: ASCII letters change to this case before
    strip: bool = False  # hash, vocabulary of text: without the ASCII white space around it
    remove: str = ""  # vocabulary of text: ASCII characters that are left out
    keep: str = ""  # vocabulary of text: all but these ASCII characters are left out
    separator: Annotated[str, msgspec.Meta(pattern=SEPARATORS)] | None = None  # of a string: its tokens are read
    truncate: Count | None = None  # with `separator`: tokens of a row that are read
    parts: tuple[TextPart, ...] = ()  # vocabulary: the texts whose concatenation is the key; default: the feature's
    identity: Count | None = None  # ids below this
    number: Literal[True] | None = None
    length: Literal[True] | None = None  # how many values a row has
    mask: Literal[True] | None = None  # 1 for each of them, 0 for each that may follow
    default: Annotated[int, msgspec.Meta(ge=-(1 << 30), lt=(1 << 31) - 1)] = -1  # index of any other key
    guards: tuple[IndexGuard, ...] = ()
    table: str | None = None  # None: the index itself is passed on, as an id
    first_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 30)] = 0  # added to every id
    pad: Annotated[int, msgspec.Meta(ge=-(1 << 30), lt=1 << 31)] = 0  # the id where a value or its index is missing
    distinct: bool = False  # sum: an index that a row has several times counts once
    combiner: Literal["none", "sum", "mean", "sqrtn", "sequence"] | None = None
    empty_row: Annotated[int, msgspec.Meta(ge=0)] | None = None  # result where no value is left; default: zeros

    @property
    def step(self) -> ColumnStep:
        """One of STEPS, or COPY."""
        return next((step for step in STEPS if getattr(self, step) is not None), ColumnStep.COPY)

    @property
    def removed_bytes(self) -> bytes:
        """The bytes that are left out of a text, rising."""
        if not self.keep:
            return bytes(sorted(set(self.remove.encode())))
        return bytes(byte for byte in range(256) if byte not in self.keep.encode())

    @property
    def cross_parts(self) -> tuple[CrossPart, ...]:
        """What is hashed together; () for a column that is no cross."""
        names = (self.feature, *self.cross) if self.cross else ()
        return self.crossed or tuple(CrossPart(feature=name) for name in names)

    @property
    def is_keyed(self) -> bool:
        """Whether values are hashed by something else than their fingerprints."""
        return self.remainder or self.strong_key is not None

    @property
    def gives_ids(self) -> bool:
        """Whether the column gives ids, for a model that has the tables itself."""
        return self.table is None and self.step in INDEX_STEPS

    @property
    def gives_counts(self) -> bool:
        """Whether the column gives small whole numbers, which any type holds."""
        return self.step in (ColumnStep.LENGTH, ColumnStep.MASK)


def features_read(column: FeatureColumn) -> tuple[str, ...]:
    """Names of the features that a column reads, its own first."""
    joined = (part.feature for part in column.parts if part.feature is not None)
    return (column.feature, *joined, *(part.feature for part in column.cross_parts))


def feature_of(column: FeatureColumn, features: Iterable[Feature]) -> Feature:
    """The feature whose values a column reads: of a column that splits a string its tokens, of a cross as wide as the
    parts have combinations of values.
    """
    by_name = {feature.name: feature for feature in features}
    own = by_name[column.feature]
    if column.separator is not None:
        empty: Literal["drop", "keep"] = own.empty if column.separator else "drop"
        return msgspec.structs.replace(
            own, kind="tokens", separator=column.separator, truncate=column.truncate, empty=empty
        )
    if not column.cross_parts:
        return own
    return msgspec.structs.replace(own, width=prod(by_name[part.feature].width for part in column.cross_parts))


class ColumnInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of the ONNX model that columns give: their outputs side by side, (B, sum of widths) or in other
    dimensions.

    >>> ColumnInput(name="x", columns=("age", "user")).columns
    ('age', 'user')
    """

    name: Name
    columns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class FeatureDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked description: every name that it uses is defined, every step fits its feature.

    `description_file.load_description` reads one from TOML.

    >>> user, joined = Feature(name="user", kind="int"), ColumnInput(name="x", columns=("user",))
    >>> column = FeatureColumn(feature="user", name="user", identity=100)
    >>> FeatureDescription(features=(user,), columns=(column,), inputs=(joined,)).gives_ids(joined)
    True
    """

    features: tuple[Feature, ...]
    columns: tuple[FeatureColumn, ...]
    inputs: tuple[ColumnInput, ...]
    tables: tuple[FeatureTable, ...] = ()
    path: Path = Path("features.toml")
    texts: Mapping[str, tuple[str, ...]] = {}  # features that ONNX Runtime reads, and words that it knows

    def feature_of(self, column: FeatureColumn) -> Feature:
        """The feature whose values a column reads; see the function of that name."""
        return feature_of(column, self.features)

    def features_read_by(self, names: Collection[str] | None = None) -> set[str]:
        """Names of the features that these columns read, by default all columns and ONNX Runtime."""
        read = {f for column in self.columns if names is None or column.name in names for f in features_read(column)}
        return read | self.texts.keys() if names is None else read

    def table_of(self, column: FeatureColumn) -> FeatureTable | None:
        return next((t for t in self.tables if t.name == column.table), None)

    def width_of(self, column: FeatureColumn) -> int:
        """Numbers that a column puts into its input for each row of the batch."""
        table, feature = self.table_of(column), self.feature_of(column)
        steps = (feature.most_values or 1) if column.combiner == "sequence" or column.step is ColumnStep.MASK else 1
        if table is not None:
            return steps * table.dim
        return feature.width if column.step is ColumnStep.COPY else steps

    def gives_ids(self, joined: ColumnInput) -> bool:
        """Whether an input holds ids: all its columns give whole numbers."""
        return all(column.gives_ids or column.gives_counts for column in self.columns if column.name in joined.columns)
