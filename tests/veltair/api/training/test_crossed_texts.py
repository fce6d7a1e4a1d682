"""Crosses and cleaned texts in training: the ids that serving has; a cross may have more values than its feature."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import farmhash
import pytest

import veltair
from veltair.compiler.features.fingerprint import CROSS_KEY, crossed_fingerprint
from veltair.errors import ModelError

ROWS = [["a", "", "é"], ["", "", ""], ["zz", "A ", " a"], ["X" * 80, "b", ""]]
USERS, AGES = [[1, 2], [-1, 7], [2**63 - 1, 0], [7, 7]], [10.0, float("nan"), 18.0, 30.0]
DESCRIPTION = """
features = [
    {name = "tags", kind = "string", width = 3, empty = "keep"},
    {name = "users", kind = "int", width = 2, missing = false},
    {name = "age", kind = "float"},
]
columns = [
    {name = "pairs", feature = "users", cross = ["tags"], hash = 50, table = "t", combiner = "sum"},
    {name = "aged", feature = "age", crossed = [
        {feature = "age", boundaries = [18, 25]}, {feature = "users", vocabulary = [7], values = [5, false]},
    ], hash = 50, table = "t", combiner = "sum"},
    {name = "clean", feature = "tags", case = "lower", strip = true, hash = 50, table = "t", combiner = "sum"},
]
tables = [{name = "t", rows = 50, dim = 4, seed = 1}]
inputs = [{name = "x", columns = ["pairs", "aged", "clean"]}]
"""


def test_ids_are_those_of_serving(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(DESCRIPTION, "utf-8")
    found = veltair.features(tmp_path / "f.toml")({"tags": ROWS, "users": USERS, "age": AGES})
    for row, (texts, users, interval) in enumerate(zip(ROWS, USERS, (0, 2, 1, 2), strict=True)):
        pairs = [crossed_fingerprint(CROSS_KEY, [u, t.encode()]) % 50 for u, t in product(users, texts)]
        assert found["pairs"].row(row).tolist() == pairs
        aged = [crossed_fingerprint(CROSS_KEY, [interval, 5]) % 50 for user in users if user == 7]
        assert found["aged"].row(row).tolist() == aged
        clean = [farmhash.fingerprint64(text.encode().strip().lower()) % 50 for text in texts]
        assert found["clean"].row(row).tolist() == clean


def test_several_texts_are_not_crossed_with_other_texts(tmp_path: Path) -> None:
    text = DESCRIPTION.replace('{name = "age"', '{name = "city", kind = "string"},\n    {name = "age"', 1)
    (tmp_path / "f.toml").write_text(text.replace('cross = ["tags"]', 'cross = ["tags", "city"]'), "utf-8")
    with pytest.raises(ModelError, match="column 'pairs' crosses the several texts a row of 'tags' with other texts"):
        veltair.features(tmp_path / "f.toml")
