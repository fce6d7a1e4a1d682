"""Random raw features of a description's kinds and sizes: what columns are checked and measured with.

Ids hit rows, numbers fall among the boundaries, most words are of the vocabulary, texts fill half of their room.
One value in sixteen is odd: missing, unknown, NaN, empty or no number where that is not a value like others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.description import INDICES, Column, Description, Feature, reads
from veltair.compiler.features.feature_layout import Layout, bank_of
from veltair.profiles.artifact.input_layout import fill
from veltair.profiles.artifact.strings import Strings

Raw = NDArray[Any] | Strings
ODD = 1 / 16
WORDS = 1 << 14  # distinct ones of a feature without a vocabulary
WORD_BYTES = 12  # with its separator, or a little less


def raw_features(description: Description, batch: int, chance: np.random.Generator) -> dict[str, Raw]:
    """By name, as `rooms.fill` takes them."""
    found: dict[str, Raw] = {}
    for feature in Layout.of(description).features:
        readers = [column for column in description.columns if feature.name in reads(column)]
        if feature.textual:
            found[feature.name] = _texts(feature, readers, batch, chance)
        elif feature.kind == "int":
            found[feature.name] = _ints(feature, readers, (batch, feature.width), chance)
        else:
            found[feature.name] = _floats(readers, (batch, feature.width), chance)
    return found


def banks(description: Description, raw: Mapping[str, Raw], batch: int) -> dict[str, NDArray[Any]]:
    """Raw features where a query has them, by bank. Raises RequestError."""
    layout = Layout.of(description)
    arrays = [np.zeros(-port.shape[0] * batch, port.dtype) for port in layout.banks]
    fill(layout, arrays, raw, batch)
    return {bank_of(port.name): array for port, array in zip(layout.banks, arrays, strict=True)}


def draw(
    description: Description, wanted: Sequence[str], batch: int, chance: np.random.Generator
) -> list[NDArray[Any]]:
    """These banks, filled at random."""
    found = banks(description, raw_features(description, batch, chance), batch)
    return [found[bank] for bank in wanted]


def _ints(
    feature: Feature, readers: Sequence[Column], shape: tuple[int, ...], chance: np.random.Generator
) -> NDArray[np.int64]:
    column = next((c for c in readers if c.step in INDICES and c.step != "hash"), readers[0])
    if column.identity is not None:
        values = chance.integers(0, column.identity, shape)
    elif column.vocabulary is not None:
        values = chance.choice(np.array(column.vocabulary, np.int64), shape)
    elif column.boundaries is not None:
        edges = np.clip(np.array(column.boundaries), -(2.0**40), 2.0**40)
        values = chance.integers(int(edges[0]) - 2, int(edges[-1]) + 3, shape)
    else:
        values = chance.integers(0, 1 << 40, shape)
    odd = chance.random(shape)
    values[odd < ODD / 2] = chance.integers(-(1 << 63), (1 << 63) - 1)
    if feature.missing is not False:
        values[odd > 1 - ODD / 2] = feature.missing
    return values


def _floats(readers: Sequence[Column], shape: tuple[int, ...], chance: np.random.Generator) -> NDArray[np.float32]:
    values = chance.standard_normal(shape).astype(np.float32)
    edges = next((c.boundaries for c in readers if c.boundaries is not None), None)
    if edges is not None:
        low, high = edges[0], edges[-1]
        values = np.asarray(values * ((high - low) / 3 or 1.0) + (low + high) / 2, np.float32)
        values[chance.random(shape) < ODD / 4] = np.nan
    return values


def _texts(feature: Feature, readers: Sequence[Column], batch: int, chance: np.random.Generator) -> Strings:
    words = _words(feature, readers, chance)
    if feature.kind == "string":
        picked = chance.integers(len(words), size=batch)
        return Strings.of([words[i][: feature.max_bytes] for i in picked.tolist()])
    most = max(feature.max_bytes // WORD_BYTES, 1)
    counts = chance.integers(1, min(most, 2 * (feature.truncate or most)) + 1, batch)
    if feature.empty == "drop":
        counts[chance.random(batch) < ODD] = 0
    separator, picked = feature.separator.encode(), chance.integers(len(words), size=int(counts.sum())).tolist()
    rows, first = [], 0
    for count in counts.tolist():
        rows.append(separator.join([words[i] for i in picked[first : first + count]])[: feature.max_bytes])
        first += count
    return Strings.of(rows)


def _words(feature: Feature, readers: Sequence[Column], chance: np.random.Generator) -> list[bytes]:
    if any(column.step == "number" for column in readers):
        strange = [b"", b"none"] if feature.empty == "drop" else []
        return [*strange, *(b"%.4g" % number for number in chance.standard_normal(int(2 / ODD)).tolist())]
    numbers = chance.integers(0, 1 << 30, WORDS).tolist()
    known = [text.encode() for column in readers for text in _known(column, feature)]
    strange = [b"", *(b"w%d" % number for number in numbers)]
    return known + strange[: int(len(known) * ODD) + 1] if known else strange


def _known(column: Column, feature: Feature) -> list[str]:
    """What a feature says of a vocabulary's keys: all, or its part of them."""
    keys = [str(key) for key in column.vocabulary or ()]
    if not column.parts:
        return keys
    pattern = re.compile("".join("(.*)" if p.text is None else re.escape(p.text) for p in column.parts), re.DOTALL)
    place = [part.feature for part in column.parts if part.text is None].index(feature.name) + 1
    return [match[place] for key in keys if (match := pattern.fullmatch(key))]
