"""Columns that split a text at white space or at a character, without some of its characters."""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np
import pytest
from features.compiled_columns import CompiledColumns, make_description

from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.feature_tables import load_rows
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


def test_an_index_that_a_row_has_twice_counts_once() -> None:
    """However many tokens wait to be added up; of hashes, too. No row sees another's."""
    columns = [
        {**WORDS, "name": "words", "combiner": "sum", "distinct": True, "table": "t8"},
        {
            "name": "hashed",
            "feature": "t",
            "hash": 200,
            "separator": " ",
            "combiner": "sum",
            "distinct": True,
            "table": "t",
        },
        {"name": "all", "feature": "t", "hash": 200, "separator": " ", "combiner": "sum", "table": "t"},
    ]
    described = make_description([TEXT], columns, t8=(6, 8), t=(200, 8))
    texts = [*ODD, b" ".join(b"w%d" % (i % 150) for i in range(400)), b"w1 w1 w2", b"w1"]
    want = reference_inputs(described, {"t": texts})["x"]
    found = CompiledColumns(described, POINT)({"t": texts}, len(texts))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    assert np.allclose(want[-1, 8:16], want[-1, 16:]) and not np.allclose(want[-2, 8:16], want[-2, 16:])


def test_several_intervals_a_row() -> None:
    """As sums, as ids in their order, and crossed by their places in the row; NaN is in the last interval."""
    features = [{"name": "n", "kind": "float", "width": 3}, {"name": "s", "kind": "string"}]
    rows = {"feature": "n", "boundaries": [0.0, 1.5], "combiner": "sum", "table": "t8"}
    values = [0, False, 2, 10, 11, 12, 20, 21, False]
    part = {"feature": "n", "boundaries": [0.0, 1.5], "values": values}
    crossed = {"name": "x", "feature": "n", "crossed": [part, {"feature": "s"}], "hash": 9, "combiner": "sum"}
    numbers = np.array([[-1, 0, 9], [np.nan, 1.5, -np.inf], [np.inf, 0, np.nan], [1, 1, 1]], np.float32)
    raw = {"n": numbers, "s": [b"a", b"", b"b", "ü".encode()]}
    summed = make_description(features, [rows, {**crossed, "table": "t"}], t8=(3, 8), t=(9, 8))
    want = reference_inputs(summed, raw)["x"]
    table = summed.tables[0]
    intervals = [[0, 1, 2], [2, 2, 0], [2, 1, 2], [1, 1, 1]]
    kept = load_rows(table, summed.path)[np.array(intervals)].sum(1)
    np.testing.assert_allclose(want[:, :8], kept, rtol=1e-6)
    np.testing.assert_allclose(CompiledColumns(summed, POINT)(raw, 4), want, rtol=1e-5, atol=1e-5)
    ids = make_description(features, [{**rows, "table": None, "combiner": "sequence"}])
    assert CompiledColumns(ids, POINT, dtype="int64")(raw, 4).tolist() == intervals


def test_white_space_that_is_left_out_separates_nothing() -> None:
    column = {**WORDS, "remove": "", "keep": "acehtno ", "truncate": 3, "combiner": "sequence", "pad": 9}
    described = make_description([TEXT], [column])
    texts = [b"the\tcat the", b"\n\n a", b"c\na\rt\t the", "café a".encode()]
    want = [[5, 0, 9], [4, 9, 9], [1, 0, 9], [5, 4, 9]]
    assert reference_inputs(described, {"t": texts})["x"].tolist() == want
    assert CompiledColumns(described, POINT, dtype="int64")({"t": texts}, len(texts)).tolist() == want


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
        ({"distinct": True, "vocabulary": ["a"]}, "distinct: expected rows of a table"),
        ({"distinct": True, "hash": 1 << 21, "combiner": "sum", "separator": ""}, "distinct: expected at most"),
        ({"truncate": 3, "vocabulary": ["a"]}, "truncate: only a column with a separator"),
        ({"separator": "é", "vocabulary": ["a"]}, "separator: expected one ASCII character"),
    ],
)
def test_wrong_descriptions(column: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_description([TEXT], [{"feature": "t", "table": "t8", **column}], t8=(9, 8))
