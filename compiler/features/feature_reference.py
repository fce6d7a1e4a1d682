"""Computes columns in plain Python: slow and exact. The kernels are compared with it.

TensorFlow's semantics: tf.strings.to_hash_bucket_fast, Bucketize, tf.strings.split, safe_embedding_lookup_sparse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from math import sqrt
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import decode_rows
from veltair.compiler.features.feature_description import (
    CHARACTERS,
    ColumnStep,
    CrossPart,
    Feature,
    FeatureColumn,
    FeatureDescription,
    features_read,
)
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of, buffers_of
from veltair.compiler.features.feature_tables import load_rows
from veltair.compiler.features.fingerprint import crossed_fingerprint
from veltair.compiler.features.hashed_values import bucket_of, clean_text, white_space_without
from veltair.compiler.features.kernel.columns_parameters import ColumnsParameters
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.profiles.artifact.strings import Strings

RawValues = (
    NDArray[Any] | Strings | Sequence[bytes]
)  # a feature's values: numbers (B, width) or (B,), or strings, `width` a row
NUMBER_PATTERN = re.compile(rb" *[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)? *")
ASCII_TWINS = (
    ("lower", "\u212a", b"k"),
    ("lower", "\u0130", b"i"),
    ("upper", "\u0131", b"I"),
    ("upper", "\u017f", b"S"),
)
REMOVED = -(1 << 62)  # an index that was removed


def reference_inputs(
    description: FeatureDescription, raw: Mapping[str, RawValues], tables: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, NDArray[Any]]:
    """The model's inputs (B, width) by name, float32, or int64 for ids.

    Args:
        raw: the values of each feature by name.
        tables: rows by name, as `row_storage.encode_rows` stores them; default: those of the description in float32.
    """
    names = {column.table for column in description.columns}
    known = {t.name: t for t in description.tables if t.name in names}
    rows = tables if tables is not None else {n: load_rows(t, description.path) for n, t in known.items()}
    by_name, found = {feature.name: feature for feature in description.features}, {}
    for column in description.columns:
        table = rows[column.table] if column.table is not None else None
        values = {name: _rows_of(by_name[name], raw[name]) for name in features_read(column)}
        found[column.name] = _compute_column(column, description.feature_of(column), table, values)
    return {
        joined.name: np.concatenate([found[name] for name in joined.columns], 1).astype(
            np.int64 if description.gives_ids(joined) else np.float32
        )
        for joined in description.inputs
    }


def reference_layer(spec: LayerSpec, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The output of a layer of columns for its inputs: packed buffers, and behind them the tensors that it copies.

    A text whose ends fall, or pass the room of its feature, is empty.
    """
    parameters = spec.parameters_as(ColumnsParameters)
    description, joined = parameters.description, parameters.joined
    layout = FeatureLayout.from_description(description)
    places = parameters.places or (0,)
    read = len(arrays) - len(parameters.copied)
    packed = {buffer_of(tensor.name): array for tensor, array in zip(spec.inputs[:read], arrays[:read], strict=True)}
    batch = next(len(array) // layout.widths[buffer] for buffer, array in packed.items())
    used = [column for column in description.columns if column.name in joined.columns]
    raw: dict[str, RawValues] = {}
    for feature in layout.features:
        if feature.name not in description.features_read_by(joined.columns):
            continue
        kind, (first, *letters) = buffers_of(feature)[0], (start * batch for start in layout.starts[feature.name])
        if feature.is_text:
            ends = [0, *packed["ends"][first : first + batch * feature.width].tolist()]
            text = packed["bytes"][letters[0] : letters[0] + feature.max_bytes * batch].tobytes()
            raw[feature.name] = [text[a:b] if 0 <= a <= b <= len(text) else b"" for a, b in pairwise(ends)]
        else:
            raw[feature.name] = packed[kind][first : first + batch * feature.width].reshape(batch, feature.width)
    part = msgspec.structs.replace(description, columns=tuple(used), inputs=(joined,))
    pieces = [reference_inputs(part, raw, parameters.rows_by_table)[joined.name], *arrays[read:]]
    return np.concatenate([pieces[i] for i in np.argsort(places)], axis=1)


def _compute_column(
    column: FeatureColumn, feature: Feature, table: NDArray[Any] | None, values: Mapping[str, Any]
) -> NDArray[Any]:
    """The output (B, width) of one column. `values`: by feature, rows of numbers or a list of texts."""
    raw = values[column.feature]
    if column.step is ColumnStep.COPY:
        return np.asarray(raw, np.float32).reshape(len(raw), feature.width)
    if column.gives_counts:
        many = np.array([len(present_values(feature, row)) for row in raw])[:, None]
        if column.step is ColumnStep.LENGTH:
            return many
        return (np.arange(feature.most_values or 0) < many).astype(np.int64)
    if column.step is ColumnStep.NUMBER:
        spelled = [[float(v) for v in present_values(feature, row) if NUMBER_PATTERN.fullmatch(v)] for row in raw]
        return np.array([[_combiner_scale(column, len(row)) * sum(row)] for row in spelled], np.float32).reshape(-1, 1)
    if column.cross_parts:
        readers = [part_reader(part) for part in column.cross_parts]
        buckets = [_cross(column, feature, readers, values, row) for row in range(len(raw))]
        found, place = [b for row in buckets for b in row], [at for at, row in enumerate(buckets) for _ in row]
    elif column.boundaries is not None:  # Bucketize: what is below no boundary, NaN as well, goes to the last bucket
        edges = np.array(column.boundaries, np.float32)
        numbers = np.asarray(raw).reshape(-1).astype(np.float32)
        intervals = np.searchsorted(edges, numbers, "right")
        found = np.where(np.isnan(numbers) & (column.default >= 0), column.default, intervals).tolist()
        place = np.repeat(np.arange(len(raw)), feature.width).tolist()
    else:
        present = [present_values(feature, value, column) for value in raw]
        place = [row for row, members in enumerate(present) for _ in members]
        flat = [_join_parts(column, values, row, member) for row, members in enumerate(present) for member in members]
        words = {str(key).encode(): at for at, key in enumerate(column.vocabulary or ())}
        known = {value: _map_to_index(column, words, value) for value in dict.fromkeys(flat)}
        found = [known[value] for value in flat]
    guarded = {index: _apply_guards(column, index) for index in dict.fromkeys(found)}
    index, rows = np.array([guarded[i] for i in found], np.int64), np.array(place, np.int64)
    if column.gives_ids or column.combiner == "sequence":
        return _keep_order(column, feature, table, index, rows, len(raw))
    assert table is not None  # nothing else is added up
    kept = (index >= 0) & (index < len(table))
    index, rows = index[kept], rows[kept]
    if column.distinct:
        rows, index = np.unique(np.stack([rows, index]), axis=1)
    counts = np.bincount(rows, minlength=len(raw))
    picked = decode_rows(table[index])
    sums = np.zeros((len(raw), picked.shape[1]))
    np.add.at(sums, rows, picked)
    out = np.asarray(
        sums * np.array([_combiner_scale(column, count) for count in counts.tolist()])[:, None], np.float32
    )
    if column.empty_row is not None:
        out[counts == 0] = decode_rows(table[column.empty_row : column.empty_row + 1])
    return out


def _rows_of(feature: Feature, values: RawValues) -> Any:
    """The values of each row: numbers, a text, or a list of texts."""
    if not feature.is_text:
        return values
    texts = list(values.tolist() if isinstance(values, Strings) else values)
    width = feature.width
    return texts if width == 1 else [texts[at : at + width] for at in range(0, len(texts), width)]


def present_values(feature: Feature, value: Any, column: FeatureColumn | None = None) -> list[Any]:
    """At most `truncate` values of one row: none that counts as missing, texts without what the column leaves out."""
    if feature.kind == "int":
        ids = np.ravel(value).tolist()
        return ids if feature.missing is False else [v for v in ids if v != feature.missing]
    if feature.kind == "tokens":
        if feature.separator == CHARACTERS:
            text = (_without_bytes(value, column) if column else value).decode("utf-8", "replace")
            return [letter.encode() for letter in text[: feature.truncate]]
        white = white_space_without(column.removed_bytes if column else b"")
        value = value.split(feature.separator.encode()) if feature.separator else re.split(b"[" + white + b"]", value)
    tokens = value if isinstance(value, list) else [value]
    if column is not None and column.removed_bytes:
        tokens = [_without_bytes(token, column) for token in tokens]
    return [token for token in tokens if token or feature.empty == "keep"][: feature.truncate]


def _without_bytes(text: bytes, column: FeatureColumn) -> bytes:
    """A text in the column's letter case, and without what it leaves out."""
    return clean_text(text, column.case, strip=column.strip).translate(None, column.removed_bytes)


def _keep_order(
    column: FeatureColumn,
    feature: Feature,
    table: NDArray[Any] | None,
    index: NDArray[np.int64],
    rows: NDArray[np.int64],
    batch: int,
) -> NDArray[Any]:
    """Ids, or rows side by side, in the order of the values; an index that no row has becomes the pad or fill row."""
    steps = feature.most_values or 1
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)  # among those of its row
    if table is None:
        ids = np.full((batch, steps), column.pad)
        ids[rows, place] = np.where(index < 0, column.pad, index + column.first_id)
        return ids
    fill = (
        np.zeros(decode_rows(table[:1]).shape[1]) if column.empty_row is None else decode_rows(table)[column.empty_row]
    )
    out = np.tile(np.asarray(fill, np.float32), (batch, steps, 1))
    kept = (index >= 0) & (index < len(table))
    out[rows[kept], place[kept]] = decode_rows(table[index[kept]])
    return out.reshape(batch, -1)


def _join_parts(column: FeatureColumn, values: Mapping[str, Any], row: int, own: Any) -> Any:
    """What leads to the index: the value itself, or the concatenation of the parts' texts."""
    if column.case or column.strip:
        return clean_text(own, column.case, strip=column.strip)
    texts = []
    for part in column.parts:
        text = (part.text or "").encode() if part.feature is None else values[part.feature][row]
        text = own if part.feature == column.feature else text
        for name, sign, twin in ASCII_TWINS:
            text = text.replace(sign.encode(), twin) if part.unicode and part.case == name else text
        texts.append(text.lower() if part.case == "lower" else text.upper() if part.case == "upper" else text)
    return b"".join(texts) if column.parts else own


def _cross(
    column: FeatureColumn,
    feature: Feature,
    readers: Sequence[Callable[[Any, int], Any]],
    values: Mapping[str, Any],
    row: int,
) -> list[int]:
    """The buckets of all combinations of a row's values, REMOVED where one has none; the last part changes fastest."""
    parts: list[list[Any]] = []
    for part, read in zip(column.cross_parts, readers, strict=True):
        given = values[part.feature][row]
        own = given if isinstance(given, list) else [given] if isinstance(given, bytes) else np.ravel(given).tolist()
        parts.append([read(value, place) for place, value in enumerate(own)])
    dropped = (
        b"" if feature.is_text and feature.empty == "drop" else feature.missing if feature.kind == "int" else False
    )
    if dropped is not False and not column.cross_parts[0].gives_numbers:
        parts[0] = [False if value == dropped else value for value in parts[0]]
    return [
        REMOVED
        if any(value is False for value in members)
        else crossed_fingerprint(column.cross_key, members) % (column.hash or 1)
        for members in product(*parts)
    ]


def part_reader(part: CrossPart) -> Callable[[Any, int], Any]:
    """What is crossed for a value of a part's feature, as a function of it and its place in the row; False for none."""
    numbers, count = part.numbers, part.places if part.gives_numbers else 0

    def number_at(found: int, place: int) -> int | Literal[False]:
        return numbers[found + (place * count if len(numbers) > count else 0)]

    if part.boundaries is not None:
        edges = np.array(part.boundaries, np.float32)
        return lambda value, place: number_at(int(np.searchsorted(edges, np.float32(value), "right")), place)
    if part.vocabulary is None:
        return lambda value, place: False if part.missing is not None and value == part.missing else value
    words = {str(key).encode(): at for at, key in enumerate(part.vocabulary)}

    def keyed(value: Any, place: int) -> Any:
        text = value if isinstance(value, bytes) else str(value).encode()
        unknown = len(words) + (bucket_of(value, part.oov) if part.oov else 0)
        return number_at(words.get(text, unknown), place)

    return keyed


def _apply_guards(column: FeatureColumn, index: int) -> int:
    for guard in column.guards:
        low, high = guard.interval
        if index != REMOVED and not low <= index < high:
            index = REMOVED if guard.remove is not None else guard.value
    return index


def _map_to_index(column: FeatureColumn, words: Mapping[bytes, int], value: Any) -> int:
    """The index of a value. The default -1, as in TensorFlow, is in no table: guards see it, the lookup drops it."""
    if column.identity is not None:
        return int(value) if 0 <= value < column.identity else column.default
    text = value if isinstance(value, bytes) else str(value).encode()
    if column.hash is not None:
        return bucket_of(value, column.hash, column.strong_key, remainder=column.remainder)
    if text in words:
        return words[text]
    if not column.oov:
        return column.default
    return len(words) + bucket_of(value, column.oov, column.strong_key, remainder=column.remainder)


def _combiner_scale(column: FeatureColumn, count: int) -> float:
    if column.combiner == "sum" or count == 0:
        return 1.0
    return 1 / sqrt(count) if column.combiner == "sqrtn" else 1 / count
