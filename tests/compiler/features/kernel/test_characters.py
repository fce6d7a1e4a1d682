"""Columns that split a text into characters: UTF-8 as TensorFlow's `unicode_split` has it, malformed parts too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from features.compiled_columns import CompiledColumns, make_description

from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.feature_tables import load_rows
from veltair.errors import ModelError

POINT = {"rows": 32, "columns": 4, "along": "rows", "ahead": 4}
KEYS = ["a", "é", "\ufffd", "🙂", " ", "\u0800", "\0"]
TEXT: dict[str, Any] = {"name": "t", "kind": "string", "empty": "keep", "max_bytes": 1 << 10}
LETTERS: dict[str, Any] = {"feature": "t", "vocabulary": KEYS, "separator": "characters", "default": len(KEYS)}
# Texts and what TensorFlow 2.21 splits them into; `?` is U+FFFD.
SPLIT_BY_TENSORFLOW = [
    (b"A\xc3", "A?"),
    (b"A\xc3\xffB", "A??B"),
    (b"\xed\xa0\x80A", "???A"),
    (b"\xf0\x9f", "?"),
    (b"\xc0\x80A", "??A"),
    (b"\xf8\x88\x80\x80\x80", "?????"),
    (b"\xe2\x82A", "?A"),
    (b"\xf4\x90\x80\x80", "????"),
    (b"\0A", "\0A"),
]
LEADS = [0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xA0, 0x9F, 0xED, 0xEF, 0xF0, 0x90, 0x8F, 0xF4, 0xF5, 0xFF, 0x61, 0x21]


def places_of(letters: str) -> list[int]:
    return [KEYS.index(letter) if letter in KEYS else len(KEYS) for letter in letters]


def odd_texts(rng: np.random.Generator, count: int) -> list[bytes]:
    """Texts of well-formed characters, and of bytes that begin, go on, or are nowhere in UTF-8."""
    found = []
    for _ in range(count):
        pieces = [rng.choice([*KEYS[:2], *KEYS[3:], "É", "ß", "!"]).encode() for _ in range(rng.integers(0, 9))]
        pieces += [bytes(rng.choice(LEADS, rng.integers(1, 5)).tolist()) for _ in range(rng.integers(0, 6))]
        rng.shuffle(pieces)
        found.append(b"".join(pieces))
    return found


def test_malformed_parts_are_tokens() -> None:
    texts = [text for text, _ in SPLIT_BY_TENSORFLOW]
    described = make_description([TEXT], [{**LETTERS, "truncate": 6, "combiner": "sequence", "pad": 9}])
    rows = [places_of(letters.replace("?", "\ufffd")) for _, letters in SPLIT_BY_TENSORFLOW]
    want = [row + [9] * (6 - len(row)) for row in rows]
    assert reference_inputs(described, {"t": texts})["x"].tolist() == want
    assert CompiledColumns(described, POINT, dtype="int64")({"t": texts}, len(texts)).tolist() == want


@pytest.mark.parametrize("changes", [{}, {"case": "lower", "remove": "!a"}, {"remove": "!", "truncate": 3}])
def test_random_texts(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(changes))
    table = {"combiner": "sum", "table": "t"}
    described = make_description([TEXT], [{**LETTERS, **table, **changes}], t=(len(KEYS) + 1, 5))
    texts = odd_texts(rng, 256)
    rows = load_rows(described.tables[0], described.path).astype(np.float64)
    want = []
    for text in texts:
        cleaned = text.lower() if "case" in changes else text
        letters = cleaned.translate(None, changes.get("remove", "").encode()).decode("utf-8", "replace")
        want.append(rows[places_of(letters[: changes.get("truncate")])].sum(0))
    found = CompiledColumns(described, POINT)({"t": texts}, len(texts))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reference_inputs(described, {"t": texts})["x"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", [{"hash": 40}, {"hash": 40, "strong_key": [1, 2]}])
def test_hashes_of_characters(step: dict[str, Any]) -> None:
    column = {"feature": "t", "separator": "characters", "combiner": "mean", "table": "t", **step}
    described = make_description([TEXT], [column], t=(40, 5))
    texts = odd_texts(np.random.default_rng(3), 64)
    found = CompiledColumns(described, POINT)({"t": texts}, len(texts))
    np.testing.assert_allclose(found, reference_inputs(described, {"t": texts})["x"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [{"strip": True}, {"keep": "ab"}])
def test_what_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="separator: characters"):
        make_description([TEXT], [{**LETTERS, "truncate": 6, "combiner": "sequence", **changes}])
