"""Columns for training that are missing, of another type, or lie: each is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_rows import some_rows

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.errors import ArtifactError, ConfigError, DataError, ModelError
from veltair.profiles.artifact.artifact_folder import COLUMNS, Artifact
from veltair.profiles.artifact.strings import Strings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"city": None}, "column 'city' is missing"),
        ({"user": [1.5, 2.0]}, "column 'user': expected int64, got float64"),
        ({"user": ["a", "b"]}, "column 'user': expected int64, got texts"),
        ({"user": np.array([1, 1 << 63], np.uint64)}, "column 'user': row 1: an id beyond"),
        ({"shops": [[1, 2], [3, 4]]}, r"column 'shops': expected \[rows, 3\], got \[2, 2\]"),
        ({"shops": [[1, 2, 3], [4]]}, "column 'shops': expected rows of 3 numbers"),
        ({"city": ["a", 3]}, "column 'city': row 1: expected a text, got int"),
        ({"city": np.zeros(2)}, "column 'city': expected one text a row, got float64"),
        ({"city": ["a", "b", "c"]}, "column 'kept': has 2 rows, the columns before it 3|column 'city': has 3 rows"),
    ],
)
def test_wrong_columns_are_named(every_column: TrainingFeatures, changed: dict[str, Any], message: str) -> None:
    raw = {name: value for name, value in (some_rows(2) | changed).items() if value is not None}
    with pytest.raises(DataError, match=message):
        every_column(raw)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2], "offsets fall at row 1"),
        ([-1, 0, 2], "offsets begin at -1"),
        ([0, 2, 9], "row 1 ends at byte 9 of 4"),
    ],
)
def test_offsets_that_lie_are_refused(every_column: TrainingFeatures, offsets: list[int], message: str) -> None:
    lie = Strings(np.frombuffer(b"a;b;", np.uint8), np.array(offsets, np.int32))
    with pytest.raises(DataError, match=f"column 'items': {message}"):
        every_column(some_rows(2) | {"items": lie})


def test_sources_without_columns_are_refused(folder: Path, artifact: Artifact) -> None:
    with pytest.raises(ModelError, match="No such file"):
        veltair.features(folder / "none.toml")
    with pytest.raises(ArtifactError, match="no model artifact"):
        veltair.features(folder)
    assert (
        'name = "few"' in (artifact.path / COLUMNS).read_text() and "npy" not in (artifact.path / COLUMNS).read_text()
    )
    altered = (artifact.path / COLUMNS).read_bytes()
    try:
        (artifact.path / COLUMNS).write_bytes(altered.replace(b"hash = 7", b"hash = 8"))
        with pytest.raises(ArtifactError, match="truncated or altered"):
            veltair.features(artifact.path)
    finally:
        (artifact.path / COLUMNS).write_bytes(altered)


def test_kept_every_column(every_column: TrainingFeatures) -> None:
    raw = some_rows(5)
    clicks = np.array([0, 1, 1, 0, 1])
    assert every_column(raw | {"click": clicks}, keep=("click",))["click"].tolist() == clicks.tolist()
    with pytest.raises(ConfigError, match="keep: 'city' is the name of a feature column"):
        every_column(raw, keep=("city",))
    with pytest.raises(DataError, match="column 'click' is missing"):
        every_column(raw, keep=("click",))
