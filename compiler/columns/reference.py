"""What every column gives, in plain Python: slow, exact, and what the kernels are compared with.

TensorFlow's semantics: tf.strings.to_hash_bucket_fast, Bucketize, tf.strings.split, safe_embedding_lookup_sparse.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.columns.description import Column, Description, Feature
from veltair.compiler.columns.fingerprint import fingerprint64
from veltair.compiler.columns.plan import layout
from veltair.compiler.columns.tables import rows_of
from veltair.compiler.ir import LayerSpec

Raw = NDArray[Any] | Sequence[bytes]  # a feature's values: an array for numbers, one string a row for text
NUMBER = re.compile(rb" *[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)? *")


def reference(
    description: Description, raw: Mapping[str, Raw], tables: Mapping[str, NDArray[np.float32]] | None = None
) -> dict[str, NDArray[np.float32]]:
    """The model's inputs (B, width) by name. `tables` by name; default: those of the description."""
    rows = tables if tables is not None else {t.name: rows_of(t, description.path) for t in description.tables}
    found = {}
    for column in description.columns:
        table = rows[column.table] if column.table is not None else None
        found[column.name] = _column(column, description.feature(column), table, raw[column.feature])
    return {joined.name: np.concatenate([found[name] for name in joined.columns], 1) for joined in description.inputs}


def of_layer(spec: LayerSpec, arrays: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """What `kernel.layer` gives for its merged inputs; texts whose offsets fall or pass the end are empty."""
    description, joined = spec.attributes["_description"], spec.attributes["_joined"]
    place, names = layout(description, joined), [tensor.name.rpartition(".")[2] for tensor in spec.inputs]
    merged = dict(zip(names, arrays, strict=True))
    kind, per_row = next(
        (k, n) for k, n in (("ints", place.ints), ("floats", place.floats), ("ends", place.texts)) if n
    )
    batch = len(merged[kind]) // per_row
    raw: dict[str, Raw] = {}
    for feature in description.features:
        if feature.name not in place.source:
            continue
        first = place.source[feature.name] * batch
        if feature.textual:
            letters, ends = merged["bytes"].tobytes(), [0, *merged["ends"].tolist()]
            spans = [(ends[i], ends[i + 1]) for i in range(first, first + batch)]
            raw[feature.name] = [letters[a:b] if 0 <= a <= b <= len(letters) else b"" for a, b in spans]
        else:
            values = merged["ints" if feature.kind == "int" else "floats"][first : first + batch * feature.width]
            raw[feature.name] = values.reshape(batch, feature.width) if feature.width > 1 else values
    used = [column for column in description.columns if column.name in joined.columns]
    part = msgspec.structs.replace(description, columns=tuple(used), inputs=(joined,))
    return reference(part, raw, spec.attributes["_tables"])[joined.name]


def _column(column: Column, feature: Feature, table: NDArray[np.float32] | None, raw: Raw) -> NDArray[np.float32]:
    if column.step == "copy":
        return np.asarray(raw, np.float32).reshape(len(raw), feature.width)
    many = [values_of(feature, value, column.step) for value in raw]
    if table is None:
        numbers = [[float(value) for value in row if NUMBER.fullmatch(value)] for row in many]
        return np.array([[_scale(column, len(row)) * sum(row)] for row in numbers], np.float32).reshape(-1, 1)
    out = np.zeros((len(many), table.shape[1]), np.float32)
    for row, values in zip(out, many, strict=True):
        indices = [index_of(column, value) for value in values]
        kept = [i for i in indices if i is not None and 0 <= i < len(table)]
        if kept:
            row[:] = table[kept].astype(np.float64).sum(0) * _scale(column, len(kept))
        elif column.empty_row is not None:
            row[:] = table[column.empty_row]
    return out


def values_of(feature: Feature, value: Any, step: str) -> list[Any]:
    """The values of one row that are there: none of those that count as missing, no more than truncate."""
    if feature.kind == "int":
        ids = [int(v) for v in np.ravel(value)]
        return ids if step == "boundaries" else [v for v in ids if feature.missing is False or v != feature.missing]
    if not feature.textual:
        return [np.float32(value)]
    tokens = value.split(feature.separator.encode()) if feature.kind == "tokens" else [value]
    return [token for token in tokens if token or feature.empty == "keep"][: feature.truncate]


def index_of(column: Column, value: Any) -> int | None:
    """A value's index after step and guards; None once it is removed."""
    index: int | None = _mapped(column, value)
    for guard in column.guards:
        low, high = guard.interval
        if index is not None and not low <= index < high:
            index = None if guard.remove is not None else guard.value
    return index


def _mapped(column: Column, value: Any) -> int:
    """The default -1, TensorFlow's too, is an index that no table has: guards see it, the lookup drops it."""
    if column.boundaries is not None:  # Bucketize: what is below no boundary, NaN as well, goes to the last bucket
        number = np.float32(value)
        edges = [np.float32(edge) for edge in column.boundaries]
        return len(edges) if np.isnan(number) else bisect_right(edges, number)
    if column.identity is not None:
        return int(value) if 0 <= value < column.identity else column.default
    text = value if isinstance(value, bytes) else str(value).encode()
    if column.hash is not None:
        return fingerprint64(text) % column.hash
    assert column.vocabulary is not None
    places = {str(key).encode(): place for place, key in enumerate(column.vocabulary)}
    if text in places:
        return places[text]
    return len(places) + fingerprint64(text) % column.oov if column.oov else column.default


def _scale(column: Column, count: int) -> float:
    if column.combiner == "sum" or count == 0:
        return 1.0
    return 1 / sqrt(count) if column.combiner == "sqrtn" else 1 / count
