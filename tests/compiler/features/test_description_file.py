"""What a description may say, and the messages for what it may not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from veltair.compiler.features.description_file import load_description
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.kernel.column_table import build_column_table
from veltair.compiler.features.table_store import TableStore
from veltair.errors import ModelError

GOOD = """
[[features]]
name = "city"
kind = "string"

[[features]]
name = "age"
kind = "float"

[[tables]]
name = "cities"
rows = 4
dim = 2
file = "cities.npy"

[[tables]]
name = "ages"
rows = 3
dim = 2
dtype = "float16"
file = "ages.bin"
offset = 4

[[columns]]
feature = "city"
vocabulary_file = "cities.txt"
oov = 1
table = "cities"

[[columns]]
feature = "age"
boundaries = [18.0, 65]
guards = [{ remove = [0, 3] }]
table = "ages"

[[inputs]]
name = "x"
columns = ["age", "city"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "cities.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    (tmp_path / "ages.bin").write_bytes(b"head" + np.arange(6, dtype="<f2").tobytes())
    (tmp_path / "cities.txt").write_text("Rome\nOslo\nLima\n")
    (tmp_path / "features.toml").write_text(GOOD)
    return tmp_path


def test_tables_come_from_files_and_proved_columns_are_not_checked(folder: Path) -> None:
    description = load_description(folder / "features.toml")
    raw = {"city": [b"Oslo", b"", b"Bonn"], "age": np.array([17.9, 18.0, np.nan], np.float32)}
    expected = [[0, 1, 2, 3], [2, 3, 0, 0], [4, 5, 6, 7]]  # Bonn is in the only bucket behind the vocabulary
    np.testing.assert_array_equal(reference_inputs(description, raw)["x"], expected)
    found = build_column_table(description, description.inputs[0], TableStore.load(description))
    checked = dict(zip([str(g.path) for g in found.groups], found.rows["bounds_checked"], strict=True))
    assert checked == {"float.boundaries": 0, "string.vocabulary": 1}  # an empty city is absent
    assert not found.rows["guard_count"].any()


CROSSED = "hash = 5\ncrossed = ["
WRONG = [
    ("oov = 1", 'case = "title"', "case"),
    (
        "boundaries = [18.0, 65]\n",
        "boundaries = [18.0, 65]\nstrip = true\n",
        "case, strip: expected hash or vocabulary of one",
    ),
    (
        "boundaries = [18.0, 65]\n",
        CROSSED + '{ feature = "age" }, { feature = "city" }]\n',
        "crossed[0]: expected int or str",
    ),
    (
        "boundaries = [18.0, 65]\n",
        CROSSED + '{ feature = "city" }]\n',
        "crossed: expected two parts at least, the first of",
    ),
    (
        "boundaries = [18.0, 65]\n",
        CROSSED + '{ feature = "age", boundaries = [1, 2], values = [1, false] }, { feature = "city" }]\n',
        "crossed[0]: values: expected 3 of them, got 2",
    ),
    (
        "boundaries = [18.0, 65]\n",
        CROSSED + '{ feature = "age", boundaries = [1] }, { feature = "city", vocabulary = [1] }]\n',
        "crossed[1]: vocabulary: expected a list of strings",
    ),
    ('kind = "float"', 'kind = "real"', "feature 'age': kind: invalid enum value 'real'"),
    ('kind = "float"', "", "feature 'age': object missing required field `kind`"),
    ('name = "age"', 'nam = "age"', "unknown field `nam`"),
    ('name = "age"', 'name = "city"', "features: 'city' appears twice"),
    ("[[inputs]]", "[[outputs]]", "unknown key 'outputs'"),
    ('columns = ["age", "city"]', 'columns = ["age"]', "column 'city': no input joins it"),
    ('columns = ["age", "city"]', 'columns = ["age", "town"]', "there is no column 'town'"),
    ('table = "ages"', 'table = "years"', "column 'age': table: there is no table 'years'"),
    ('table = "ages"', "", "input 'x': column 'age' gives ids (it has no table), 'city' numbers"),
    ("boundaries = [18.0, 65]", "boundaries = [18.0, 18.0000001]", "boundaries: expected float32 numbers that rise"),
    ("boundaries = [18.0, 65]", "boundaries = [nan]", "boundaries: expected float32 numbers that rise"),
    ("boundaries = [18.0, 65]", "hash = 3", "a float feature goes through boundaries; got hash"),
    ("boundaries = [18.0, 65]", "hash = 3\nboundaries = [1]", "got hash and boundaries"),
    ("remove = [0, 3]", "remove = [3, 3]", "guards[0]: expected [low, high) with low < high"),
    ("remove = [0, 3]", "value = 3", "guards[0]: expected one of replace and remove"),
    ("oov = 1", "oov = 1\ndefault = 0", "oov: only a vocabulary without a default"),
    ("oov = 1", "empty_row = 4", "empty_row: table 'cities' has 4 rows, got 4"),
    ("cities.txt", "../cities.txt", "vocabulary_file: '../cities.txt' lies outside"),
    ("cities.txt", "none.txt", "vocabulary_file"),
    ("rows = 4", "rows = 0", "table 'cities': rows: expected `int` >= 1"),
    ('kind = "string"', 'kind = "string"\ntruncate = 3', "feature 'city': truncate: only tokens"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_errors_name_file_feature_and_key(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "features.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load_description(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows = 3", "rows = 4", "table 'ages': file"),
        ("cities.npy", "ages.npy", "table 'cities': file"),
        ("cities.npy", "../cities.npy", "lies outside"),
        ("dim = 2\nfile", "dim = 3\nfile", "expected float32 (4, 3), got float32 (4, 2)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(folder: Path, old: str, new: str, message: str) -> None:
    (folder / "features.toml").write_text(GOOD.replace(old, new))
    description = load_description(folder / "features.toml")
    with pytest.raises(ModelError) as caught:
        TableStore.load(description)
    assert message in str(caught.value)
