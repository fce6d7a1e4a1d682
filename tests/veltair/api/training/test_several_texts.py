"""Features of several texts a row in training: the same ids from lists, arrays and Arrow; others are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import pyarrow as pa
import pytest

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.errors import DataError, ModelError

ROWS = [["a", "", "é"], ["", "", ""], ["zz", "a", "a"], ["x" * 80, "b", ""]]
DESCRIPTION = """
features = [{name = "tags", kind = "string", width = 3}, {name = "user", kind = "int", missing = false}]
columns = [
    {feature = "tags", hash = 50, table = "t", combiner = "sum"},
    {name = "apart", feature = "tags", hash = 50, combiner = "sequence", pad = 60},
    {name = "rest", feature = "user", hash = 50, remainder = true, table = "t"},
]
tables = [{name = "t", rows = 50, dim = 4, seed = 1}]
inputs = [{name = "x", columns = ["tags", "rest"]}, {name = "ids", columns = ["apart"]}]
"""


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> TrainingFeatures:
    path = tmp_path_factory.mktemp("several") / "f.toml"
    path.write_text(DESCRIPTION, "utf-8")
    return veltair.features(path)


def ids(texts: list[str]) -> list[int]:
    return [farmhash.fingerprint64(text) % 50 for text in texts if text]


KINDS: dict[str, Any] = {
    "lists": ROWS,
    "array": np.array(ROWS, object),
    "fixed": pa.array(ROWS, pa.list_(pa.string(), 3)),
    "sliced": pa.array([["q"] * 3, *ROWS], pa.list_(pa.string(), 3)).slice(1),
    "large": pa.array(ROWS, pa.large_list(pa.large_string())),
    "sliced lists": pa.array([["q"] * 3, *ROWS, ["r"] * 3]).slice(1, 4),
    "views": pa.array(ROWS, pa.list_(pa.string_view(), 3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_texts_are_bags_and_sequences(columns: TrainingFeatures, kind: str) -> None:
    users = [-1, 2**63 - 1, -(2**63), 7]
    tags = KINDS[kind]
    given = {"tags": tags, "user": users}
    found = columns(pa.RecordBatch.from_pydict(given) if isinstance(tags, pa.Array) else given)
    wanted = [ids(row) for row in ROWS]
    assert found["tags"].ids.tolist() == [one for row in wanted for one in row]
    assert found["tags"].offsets.tolist() == [0, *np.cumsum([len(row) for row in wanted]).tolist()]
    np.testing.assert_array_equal(found["apart"], [(row + [60] * 3)[:3] for row in wanted])
    assert found["rest"].ids.tolist() == [user % 50 for user in users]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([["a", "b"]], "row 0: expected 3 texts, got"),
        (["abc"], "row 0: expected 3 texts, got"),
        ([["a", "b", 3]], "row 0: expected a text, got int"),
        (3, "expected 3 texts a row, got int"),
        (np.array(["a"]), "expected 3 texts a row, got"),
        (pa.array(["a"]), "expected fixed_size_list of 3 texts"),
        (pa.array([["a", "b"]]), "row 0: expected 3 values, got 2"),
        (pa.array([["a", None, "b"]], pa.list_(pa.string(), 3)), "row 0 is null"),
    ],
)
def test_other_rows_are_named(columns: TrainingFeatures, tags: Any, message: str) -> None:
    given = {"tags": tags, "user": [1]}
    with pytest.raises(DataError, match=f"column 'tags': {message}"):
        columns(pa.RecordBatch.from_pydict(given) if isinstance(tags, pa.Array) else given)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            '{feature = "user", hash = 9, cross = ["nobody"], table = "t"}',
            "cross: expected int or string .* got 'nobody'",
        ),
        ('{feature = "user", identity = 9, cross = ["user"], table = "t"}', "cross: expected hash"),
        (
            '{name = "rest", feature = "tags", hash = 9, remainder = true, table = "t"}',
            "remainder: expected an int feature",
        ),
        ('{feature = "user", identity = 9, strong_key = [1, 2], table = "t"}', "only hash and oov have buckets"),
        ('{feature = "user", hash = 9, strong_key = [1, 2], remainder = true, table = "t"}', "expected one of cross"),
    ],
)
def test_descriptions_of_hashes_that_fit_nothing_are_refused(column: str, message: str, tmp_path: Path) -> None:
    changed = DESCRIPTION.replace('{name = "rest", feature = "user", hash = 50, remainder = true, table = "t"}', column)
    (tmp_path / "f.toml").write_text(
        changed.replace('"rest"]', '"user"]' if "name" not in column else '"rest"]'), "utf-8"
    )
    with pytest.raises(ModelError, match=message):
        veltair.features(tmp_path / "f.toml")
