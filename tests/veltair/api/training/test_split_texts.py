"""Columns that split a text in training: bags and sequences of its tokens, and of several intervals a row."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

import veltair

TEXTS = ["The cat, the dog!", "", " ?! ", "cat\tcat  the", "x" * 80 + " the"]
DESCRIPTION = """
features = [{name = "t", kind = "string", empty = "keep"}, {name = "n", kind = "float", width = 2}]
tables = [{name = "t", rows = 3, dim = 4, seed = 1}]
inputs = [{name = "x", columns = ["t", "once", "n"]}, {name = "ids", columns = ["apart"]}]
[[columns]]
feature = "t"
vocabulary = ["the", "cat"]
default = 2
case = "lower"
remove = ",!?"
separator = ""
table = "t"
[[columns]]
name = "once"
feature = "t"
vocabulary = ["the", "cat"]
default = 2
separator = ""
distinct = true
combiner = "sum"
table = "t"
[[columns]]
name = "apart"
feature = "t"
vocabulary = ["the", "cat"]
default = 2
keep = "cathe "
separator = ""
truncate = 2
combiner = "sequence"
pad = 9
[[columns]]
feature = "n"
boundaries = [0.0, 1.0]
combiner = "mean"
table = "t"
"""


def test_tokens_and_intervals_are_bags_and_sequences(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(DESCRIPTION, "utf-8")
    numbers = np.array([[-1, 0], [1, np.nan], [0.5, 9], [0, 0], [2, -2]], np.float32)
    found = veltair.features(path)({"t": TEXTS, "n": numbers})
    rows = {
        "t": [[0, 1, 0, 2], [], [], [1, 1, 0], [2, 0]],
        "once": [[0, 2], [], [2], [1, 0], [2, 0]],
        "n": [[0, 1], [2, 2], [1, 2], [1, 1], [2, 0]],
    }
    for name, want in rows.items():
        offsets = found[name].offsets.tolist()
        ids = found[name].ids.tolist()
        assert [sorted(ids[a:b]) for a, b in pairwise(offsets)] == [sorted(row) for row in want]
    assert found["apart"].tolist() == [[2, 1], [9, 9], [9, 9], [2, 0], [0, 9]]
