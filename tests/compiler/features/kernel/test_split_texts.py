"""Columns that split a text at white space or at a character, without some of its characters."""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np
import pytest
from features.compiled_columns import CompiledColumns, make_description

from veltair.compiler.features.feature_reference import reference_inputs
from veltair.errors import ModelError

POINT = {"rows": 32, "columns": 4, "along": "rows", "ahead": 4}
KEYS = ["the", "cat", "dont", "café", "a"]
TEXT: dict[str, Any] = {"name": "t", "kind": "string", "empty": "keep", "max_bytes": 1 << 12}
WORDS: dict[str, Any] = {
    "feature": "t",
    "vocabulary": KEYS,
    "case": "lower",
    "remove": string.punctuation,
    "separator": "",
    "default": len(KEYS),
}
ODD = [
    b"The cat, don't!",
    b"",
    b"   ",
    b"!!! ... the",
    b"the\tcat\nthe\x0b\x0ccat\rdont ",
    "Café  CAFÉ café!".encode(),
    b"t-h-e c.a.t " + b"!" * 90,
    b"x" * 70 + b" the",
    b"\xff\xfe the\0 cat",
    b" ".join([b"the", b"cat"] * 300),
    b"the" + b"!" * 40 + b" ," * 40 + b"a",
]


def words_of(text: bytes) -> list[int]:
    """What TensorFlow's steps give: all is lowered and stripped of punctuation before it is split."""
    cleaned = text.lower().translate(None, string.punctuation.encode())
    known = {key.encode(): place for place, key in enumerate(KEYS)}
    return [known.get(token, len(KEYS)) for token in re.split(rb"[ \t-\r]", cleaned) if token]


def test_sequences_of_words() -> None:
    column = {**WORDS, "truncate": 6, "combiner": "sequence", "pad": 9}
    described = make_description([TEXT], [column])
    rows = [words_of(text)[:6] for text in ODD]
    want = [row + [9] * (6 - len(row)) for row in rows]
    assert reference_inputs(described, {"t": ODD})["x"].tolist() == want
    found = CompiledColumns(described, POINT, dtype="int64")({"t": ODD}, len(ODD))
    assert found.tolist() == want


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_bags_of_words_beside_the_whole_text(combiner: str) -> None:
    """One text is split, cleaned and hashed whole, by columns of one kernel."""
    columns = [
        {**WORDS, "name": "words", "combiner": combiner, "table": "t8"},
        {
            "name": "few",
            "feature": "t",
            "hash": 6,
            "separator": " ",
            "truncate": 2,
            "combiner": combiner,
            "table": "t8",
        },
        {"name": "kept", "feature": "t", "vocabulary": KEYS, "keep": "acehtno", "default": 5, "table": "t8"},
        {"name": "whole", "feature": "t", "hash": 6, "table": "t8"},
    ]
    described = make_description([TEXT], columns, t8=(6, 8))
    want = reference_inputs(described, {"t": ODD})["x"]
    np.testing.assert_allclose(CompiledColumns(described, POINT)({"t": ODD}, len(ODD)), want, rtol=1e-5, atol=1e-5)


def test_what_is_left_of_a_text() -> None:
    described = make_description(
        [TEXT], [{"feature": "t", "vocabulary": ["", "cat"], "case": "lower", "keep": "act", "default": 7, "pad": 3}]
    )
    texts = [b"", b"C!A?T", b"xyz", b"\xc3\xa9cat\xff", b"cat cat", b"a" * 500]
    want = [[0], [1], [0], [1], [7], [7]]
    assert reference_inputs(described, {"t": texts})["x"].tolist() == want
    assert CompiledColumns(described, POINT, dtype="int64")({"t": texts}, len(texts)).tolist() == want


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"remove": "!", "hash": 9}, "remove, keep: expected a vocabulary"),
        ({"remove": "é", "vocabulary": ["a"]}, "remove, keep: expected ASCII"),
        ({"remove": "!", "keep": "a", "vocabulary": ["a"]}, "expected one of remove and keep"),
        ({"remove": ",", "separator": ",", "vocabulary": ["a"]}, "left out before the text is split"),
        ({"truncate": 3, "vocabulary": ["a"]}, "truncate: only a column with a separator"),
        ({"separator": "é", "vocabulary": ["a"]}, "separator: expected one ASCII character"),
    ],
)
def test_wrong_descriptions(column: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_description([TEXT], [{"feature": "t", "table": "t8", **column}], t8=(9, 8))
