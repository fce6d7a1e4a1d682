"""Classes of a feature's values: those that a graph treats alike, as it compares, encodes, hashes or buckets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import FeatureColumn
from veltair.compiler.features.fingerprint import CROSS_KEY, crossed_fingerprint
from veltair.compiler.features.hashed_values import bucket_of
from veltair.profiles.artifact.strings import Strings


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
    others: tuple[tuple[str, str], ...] = ()  # of a cross: other features and their kinds, hashed with the feature's
    cross_key: int = CROSS_KEY
    strong_key: tuple[int, int] | None = None  # of SipHash, by which values fall into buckets
    remainder: bool = False  # whether the buckets are remainders of whole numbers

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature, *(name for name, _ in self.others))

    @property
    def count(self) -> int:
        return len(self.edges) + 1 if self.edges else len(self.keys) + max(self.buckets, 1)

    def of(self, given: Any) -> NDArray[np.int64]:
        """The classes of values: numbers in any shape, or strings."""
        if self.edges:
            return np.searchsorted(np.array(self.edges, np.float32), np.asarray(given, np.float32), "right")
        flat = list(given.tolist() if isinstance(given, Strings) else np.asarray(given, object).reshape(-1))
        places = {str(key).encode(): place for place, key in enumerate(self.keys)}
        texts = [value if isinstance(value, bytes) else str(value).encode() for value in flat]
        known = {text: places.get(text, len(self.keys) + self.bucket(text)) for text in set(texts)}
        shape = (self.width,) * (self.width > 1) if isinstance(given, Strings) else np.shape(given)[1:]
        return np.array([known[text] for text in texts], np.int64).reshape(-1, *shape)

    def of_cross(self, given: Mapping[str, Any]) -> NDArray[np.int64]:
        """The buckets (batch, 1) of a cross for the values of its features."""
        each = [list(v.tolist() if isinstance(v := given[name], Strings) else v.reshape(-1)) for name in self.features]
        rows = [[v if isinstance(v, bytes) else int(v) for v in row] for row in zip(*each, strict=True)]
        buckets = [crossed_fingerprint(self.cross_key, row) % self.buckets for row in rows]
        return np.array(buckets, np.int64).reshape(-1, 1)

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
        combiner: Literal["sequence"] | None = "sequence" if self.width > 1 else None
        if self.edges:
            last = len(self.edges)
            return FeatureColumn(
                feature=self.feature, name=name, boundaries=self.edges, default=last, table=table, combiner=combiner
            )
        if not self.keys:
            return FeatureColumn(
                feature=self.feature,
                name=name,
                hash=self.buckets,
                cross=self.features[1:],
                cross_key=self.cross_key,
                strong_key=self.strong_key,
                remainder=self.remainder,
                table=table,
                combiner=combiner,
            )
        return FeatureColumn(
            feature=self.feature,
            name=name,
            vocabulary=self.keys,
            oov=self.buckets,
            default=-1 if self.buckets else len(self.keys),
            strong_key=self.strong_key,
            remainder=self.remainder,
            table=table,
            combiner=combiner,
        )
