"""Classes of a feature's values: those that a graph treats alike, as it compares, encodes, hashes or buckets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import CrossPart, Feature, FeatureColumn, feature_of
from veltair.compiler.features.feature_reference import part_reader, present_values
from veltair.compiler.features.fingerprint import CROSS_KEY, crossed_fingerprint
from veltair.compiler.features.from_onnx.hash_buckets import Hashing
from veltair.compiler.features.from_onnx.tokens.text_cleaning import TextForm
from veltair.compiler.features.hashed_values import bucket_of
from veltair.profiles.artifact.strings import Strings


@dataclass(frozen=True, slots=True)
class CrossedFeature:
    """A part of a cross, and the feature that it reads.

    >>> CrossedFeature(CrossPart(feature="age", boundaries=(18.0,)), "float").feature
    'age'
    """

    part: CrossPart
    kind: Literal["int", "float", "string"]
    width: int = 1  # values of a row

    @property
    def feature(self) -> str:
        return self.part.feature


@dataclass(frozen=True, slots=True)
class ValueClasses:
    """The values that a graph tells apart. Class i is the i-th key; behind them is a class for each bucket, or one.

    >>> ValueClasses("city", "string", keys=("", "Rome"), buckets=3).of([b"Rome", b"", b"Hello", b"2.x"])
    array([1, 0, 2, 4])
    """

    feature: str
    kind: Literal["int", "float", "string"]
    keys: tuple[str | int, ...] = ()
    buckets: int = 0  # of all other values, by their fingerprints; 0: they are alike
    edges: tuple[float, ...] = ()  # of a number, whose classes are the intervals between them, NaN in the last
    width: int = 1  # values of a row
    crossed: tuple[CrossedFeature, ...] = ()  # of a cross: what is hashed together; its width is the combinations
    cross_key: int = CROSS_KEY
    form: TextForm = field(default_factory=TextForm)  # in which texts are compared and hashed
    separator: str | None = None  # of texts that are split: classes of tokens, the last one of no token
    places: int | None = None  # of texts that are split: tokens of a row that are read
    strong_key: tuple[int, int] | None = None  # of SipHash, by which values fall into buckets
    remainder: bool = False  # whether the buckets are remainders of whole numbers

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(part.feature for part in self.crossed) or (self.feature,)

    @property
    def is_number(self) -> bool:
        """Whether the feature is passed on as it is: its values have no classes."""
        return self.kind == "float" and not self.edges and not self.crossed

    @property
    def may_be_absent(self) -> bool:
        """Whether a cross, or a place of a token, may have no value: its class is the last one, behind the buckets."""
        return self.separator is not None or any(part.part.may_be_absent for part in self.crossed)

    @property
    def count(self) -> int:
        if self.edges:
            return len(self.edges) + 1
        return len(self.keys) + max(self.buckets, 1) + self.may_be_absent

    def of(self, given: Any) -> NDArray[np.int64]:
        """The classes of values: numbers in any shape, or strings."""
        if self.edges:
            return np.searchsorted(np.array(self.edges, np.float32), np.asarray(given, np.float32), "right")
        flat = list(given.tolist() if isinstance(given, Strings) else np.asarray(given, object).reshape(-1))
        texts = [value if isinstance(value, bytes) else str(value).encode() for value in flat]
        if self.kind == "string":
            if self.separator is not None:
                return self._of_tokens(texts)
            texts = list(map(self.form.of, texts))
        known = self._known(texts)
        shape = (self.width,) * (self.width > 1) if isinstance(given, Strings) else np.shape(given)[1:]
        return np.array([known[text] for text in texts], np.int64).reshape(-1, *shape)

    def _of_tokens(self, texts: Sequence[bytes]) -> NDArray[np.int64]:
        """The classes (batch, places) of the tokens of each text, as many as the longest has."""
        column = self.column("tokens", None)
        feature = feature_of(column, [Feature(name=self.feature, kind="string", empty="keep")])
        rows = [[self.form.of(token) for token in present_values(feature, text, column)] for text in texts]
        known = self._known(token for row in rows for token in row)
        found = np.full((len(texts), max(1, *map(len, rows))), self.count - 1)
        for row, tokens in enumerate(rows):
            found[row, : len(tokens)] = [known[token] for token in tokens]
        return found

    def _known(self, texts: Iterable[bytes]) -> dict[bytes, int]:
        """The class of each of these texts."""
        places = {str(key).encode(): place for place, key in enumerate(self.keys)}
        return {text: places.get(text, len(self.keys) + self.bucket(text)) for text in set(texts)}

    def of_cross(self, given: Mapping[str, Any]) -> NDArray[np.int64]:
        """The buckets (batch, width) of a cross for the values of its features."""
        each: list[list[list[Any]]] = []  # by part, row and place
        for crossed in self.crossed:
            values = given[crossed.feature]
            flat = list(values.tolist() if isinstance(values, Strings) else np.reshape(values, -1).tolist())
            read = part_reader(crossed.part)
            found = [read(value, at % crossed.width) for at, value in enumerate(flat)]
            each.append([found[at : at + crossed.width] for at in range(0, len(found), crossed.width)])
        rows = [
            self.buckets
            if any(value is False for value in members)
            else crossed_fingerprint(self.cross_key, members) % self.buckets
            for row in zip(*each, strict=True)
            for members in product(*row)
        ]
        return np.array(rows, np.int64).reshape(-1, self.width)

    def bucket(self, text: bytes) -> int:
        """The bucket of a text, or of a number's digits."""
        if not self.buckets:
            return 0
        value = int(text) if self.remainder else text
        return bucket_of(value, self.buckets, self.strong_key, remainder=self.remainder)

    def hashed(self) -> NDArray[np.int64]:
        """The bucket of each class, where there are buckets."""
        own = [self.bucket(str(key).encode()) for key in self.keys]
        return np.array([*own, *range(self.buckets)], np.int64)

    def column(self, name: str, table: str | None) -> FeatureColumn:
        """A column that gives the classes, or their rows of a table."""
        several = self.width > 1 or self.separator is not None
        combiner: Literal["sequence"] | None = "sequence" if several else None
        if self.is_number:
            return FeatureColumn(feature=self.feature, name=name)
        if self.crossed:
            parts = tuple(crossed.part for crossed in self.crossed)
            plain = not any(part.gives_numbers or part.missing is not None for part in parts)
            return FeatureColumn(
                feature=self.feature,
                name=name,
                hash=self.buckets,
                cross=self.features[1:] if plain else (),
                crossed=() if plain else parts,
                cross_key=self.cross_key,
                table=table,
                pad=self.buckets if self.may_be_absent and table is None else 0,
                empty_row=self.buckets if self.may_be_absent and table is not None else None,
                combiner=combiner,
            )
        if self.edges:
            last = len(self.edges)
            return FeatureColumn(
                feature=self.feature, name=name, boundaries=self.edges, default=last, table=table, combiner=combiner
            )
        return FeatureColumn(
            feature=self.feature,
            name=name,
            hash=None if self.keys else self.buckets,
            vocabulary=self.keys or None,
            oov=self.buckets if self.keys else 0,
            default=-1 if self.buckets else len(self.keys),
            case=self.form.case,
            strip=self.form.strip,
            remove=self.form.remove,
            keep=self.form.keep,
            separator=self.separator,
            truncate=self.places,
            strong_key=self.strong_key,
            remainder=self.remainder,
            table=table,
            combiner=combiner,
            pad=self.count - 1 if self.separator is not None and table is None else 0,
        )


@dataclass(slots=True)
class FeatureUse:
    """What a graph does with a feature, or with its text in another form.

    >>> FeatureUse("city", "city", "string", width=1, keys={"Rome": None}).is_classed
    True
    """

    feature: str
    first: str  # tensor with the values: the feature's, or of the text in another form
    kind: Literal["int", "float", "string"]
    width: int
    values: set[str] = field(default_factory=set)  # tensors of the feature's values
    readers: set[str] = field(default_factory=set)  # names of the nodes that read one
    keys: dict[str | int, None] = field(default_factory=dict)
    buckets: set[Hashing] = field(default_factory=set)
    edges: set[float] = field(default_factory=set)
    form: TextForm = field(default_factory=TextForm)  # in which texts are read
    split: onnx.NodeProto | None = None  # of tokens: what splits the text
    separator: str | None = None  # of tokens: what is between them
    cleaned: list[FeatureUse] = field(default_factory=list)  # the same text in other forms, and its tokens
    is_number: bool = False  # whether something reckons with the values, too
    refused: str = ""  # why the feature stays as it is

    def every(self) -> dict[str, FeatureUse]:
        """This use, and those of the text in other forms, by the first tensor of each."""
        found = {self.first: self}
        for other in self.cleaned:
            found |= other.every()
        return found

    @property
    def is_classed(self) -> bool:
        """Whether classes can stand for the values: those of a number by its edges, of others by keys and buckets."""
        return not self.refused and bool(self.edges) != bool(self.keys or self.buckets)
