"""Draws random raw features that fit a description; columns are checked and measured with them.

Ids hit rows, numbers fall among the boundaries, most words are of the vocabulary, texts fill half of their room.
One value in sixteen is odd: missing, unknown, NaN, empty or no number where that is not a value like others.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import (
    CHARACTERS,
    ColumnStep,
    Feature,
    FeatureColumn,
    FeatureDescription,
    feature_of,
    features_read,
)
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.strings import Strings

RawValues = NDArray[Any] | Strings
ODD_SHARE = 1 / 16
WORDS = 1 << 14  # distinct ones of a feature without a vocabulary
WORD_BYTES = 12  # with its separator, or a little less


def draw_features(
    description: FeatureDescription, batch: int, rng: np.random.Generator, read: Container[str] | None = None
) -> dict[str, RawValues]:
    """Random values of all features by name, as `InputLayout.fill` takes them; of those not `read`, zeros and ""."""
    readers = _readers(description.columns)
    found: dict[str, RawValues] = {}
    for feature in FeatureLayout.from_description(description).features:
        columns, shape = readers.get(feature.name, []), (batch, feature.width)
        is_read = read is None or feature.name in read
        if feature.is_text:
            empty = batch * (feature.width if feature.kind == "string" else 1)
            if not is_read:
                found[feature.name] = Strings.from_values([b""] * empty)
            elif feature.name in description.texts:
                found[feature.name] = _draw_sentences(feature, description.texts[feature.name], batch, rng)
            else:
                found[feature.name] = _draw_texts(feature, columns, batch, rng)
        elif feature.kind == "int":
            found[feature.name] = _draw_ints(feature, columns, shape, rng) if is_read else np.zeros(shape, np.int64)
        else:
            found[feature.name] = _draw_floats(columns, shape, rng) if is_read else np.zeros(shape, np.float32)
    return found


def _readers(columns: Iterable[FeatureColumn]) -> dict[str, list[FeatureColumn]]:
    """The columns that read each feature; for a cross, columns that look up what its parts do."""
    found: dict[str, list[FeatureColumn]] = {}
    for column in columns:
        parts = column.cross_parts
        for part in parts:
            looked_up = FeatureColumn(
                feature=part.feature, boundaries=part.boundaries, vocabulary=part.vocabulary, hash=column.hash
            )
            found.setdefault(part.feature, []).append(looked_up)
        for name in () if parts else dict.fromkeys(features_read(column)):
            found.setdefault(name, []).append(column)
    return found


def pack_features(description: FeatureDescription, raw: Mapping[str, RawValues], batch: int) -> dict[str, NDArray[Any]]:
    """Raw features as a query has them, by packed buffer. Raises RequestError for values that do not fit."""
    layout = FeatureLayout.from_description(description)
    arrays = [np.zeros(-port.shape[0] * batch, port.dtype) for port in layout.packed_buffers]
    InputLayout.of(layout).fill(arrays, raw, batch)
    return {buffer_of(port.name): array for port, array in zip(layout.packed_buffers, arrays, strict=True)}


def draw_buffers(
    description: FeatureDescription,
    wanted: Sequence[str],
    batch: int,
    rng: np.random.Generator,
    read: Container[str] | None = None,
) -> list[NDArray[Any]]:
    """These packed buffers, filled as by `draw_features`."""
    found = pack_features(description, draw_features(description, batch, rng, read), batch)
    return [found[buffer] for buffer in wanted]


def _draw_ints(
    feature: Feature, readers: Sequence[FeatureColumn], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    steps = (ColumnStep.BOUNDARIES, ColumnStep.VOCABULARY, ColumnStep.IDENTITY)
    column = next((c for c in readers if any(getattr(c, step) is not None for step in steps)), readers[0])
    if column.identity is not None:
        values = rng.integers(0, column.identity, shape)
    elif column.vocabulary is not None:
        values = rng.choice(np.array(column.vocabulary, np.int64), shape)
    elif column.boundaries is not None:
        edges = np.clip(np.array(column.boundaries), -(2.0**40), 2.0**40)
        values = rng.integers(int(edges[0]) - 2, int(edges[-1]) + 3, shape)
    else:
        values = rng.integers(0, 1 << 40, shape)
    odd = rng.random(shape)
    values[odd < ODD_SHARE / 2] = rng.integers(-(1 << 63), (1 << 63) - 1)
    if feature.missing is not False:
        values[odd > 1 - ODD_SHARE / 2] = feature.missing
    return values


def _draw_floats(
    readers: Sequence[FeatureColumn], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float32]:
    values = rng.standard_normal(shape).astype(np.float32)
    edges = next((c.boundaries for c in readers if c.boundaries is not None), None)
    if edges is not None:
        low, high = edges[0], edges[-1]
        values = np.asarray(values * ((high - low) / 3 or 1.0) + (low + high) / 2, np.float32)
        values[rng.random(shape) < ODD_SHARE / 4] = np.nan
    return values


def _draw_texts(feature: Feature, readers: Sequence[FeatureColumn], batch: int, rng: np.random.Generator) -> Strings:
    words = _draw_words(feature, readers, rng)
    split = next((column for column in readers if column.separator is not None), None)
    if split is not None:
        feature = feature_of(split, [feature])
    if feature.kind == "string":
        picked, most = rng.integers(len(words), size=batch * feature.width), feature.max_bytes // feature.width
        return Strings.from_values([words[i][:most] for i in picked.tolist()])
    most = max(feature.max_bytes // WORD_BYTES, 1)
    counts = rng.integers(1, min(most, 2 * (feature.truncate or most)) + 1, batch)
    if feature.empty == "drop":
        counts[rng.random(batch) < ODD_SHARE] = 0
    separator = b"" if feature.separator == CHARACTERS else (feature.separator or " ").encode()
    picked = rng.integers(len(words), size=int(counts.sum())).tolist()
    rows, first = [], 0
    for count in counts.tolist():
        rows.append(separator.join([words[i] for i in picked[first : first + count]])[: feature.max_bytes])
        first += count
    return Strings.from_values(rows)


def _draw_sentences(feature: Feature, words: Sequence[str], batch: int, rng: np.random.Generator) -> Strings:
    """Texts of words that operators know, and of some that they do not, for half of the room on average."""
    known, most = [*words, "unknown", "Words, Of All-Kinds: 42."], feature.max_bytes // feature.width
    counts = rng.integers(0, max(most // WORD_BYTES, 1), batch * feature.width).tolist()
    texts = [" ".join([known[i] for i in rng.integers(len(known), size=count).tolist()]) for count in counts]
    return Strings.from_values([_fitting(text.encode(), most) for text in texts])


def _fitting(text: bytes, most: int) -> bytes:
    """As much of UTF-8 as fits, in whole characters."""
    return text[:most].decode("utf-8", "ignore").encode()


def _draw_words(feature: Feature, readers: Sequence[FeatureColumn], rng: np.random.Generator) -> list[bytes]:
    if any(column.step is ColumnStep.NUMBER for column in readers):
        strange = [b"", b"none"] if feature.empty == "drop" else []
        return [*strange, *(b"%.4g" % number for number in rng.standard_normal(int(2 / ODD_SHARE)).tolist())]
    numbers = rng.integers(0, 1 << 30, WORDS).tolist()
    known = [text.encode() for column in readers for text in _known_words(column, feature)]
    strange = [b"", *(b"w%d" % number for number in numbers)]
    return known + strange[: int(len(known) * ODD_SHARE) + 1] if known else strange


def _known_words(column: FeatureColumn, feature: Feature) -> list[str]:
    """The texts of a feature that lead to keys of a vocabulary: the keys, or the feature's part of them."""
    keys = [str(key) for key in column.vocabulary or ()]
    if not column.parts:
        return keys
    pattern = re.compile("".join("(.*)" if p.text is None else re.escape(p.text) for p in column.parts), re.DOTALL)
    place = [part.feature for part in column.parts if part.text is None].index(feature.name) + 1
    return [match[place] for key in keys if (match := pattern.fullmatch(key))]
