"""Samples are taken as they are, or refused with the place and what was expected; none is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.quantisation.samples import ModelInput, read_samples
from veltair.errors import DataError

INPUTS = (ModelInput("x", "float32", (0, 3)), ModelInput("ids", "int64", (0, 0)))
FLOATS = np.ones((4, 3), np.float32)
IDS = np.zeros((4, 5), np.int64)


@given(st.integers(1, 4), st.integers(1, 5))
def test_every_row_is_fed_once(rows: int, runs: int) -> None:
    array = np.arange(rows * runs * 2, dtype=np.float32).reshape(rows * runs, 2)
    samples = read_samples({"x": array}, [ModelInput("x", "float32", (rows, 2))])
    assert samples.runs == runs
    assert np.array_equal(np.concatenate([feed["x"] for feed in samples.feeds()]), array)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": FLOATS}, r"expected an array for each input \(x, ids\), found x"),
        ({"x": FLOATS, "ids": IDS, "z": IDS}, "found x, ids, z"),
        ({"x": FLOATS.astype(np.float64), "ids": IDS}, "'x': expected float32 of shape .samples, 3., found float64"),
        ({"x": FLOATS[:, :2], "ids": IDS}, r"'x': expected .* found float32 of shape \(4, 2\)"),
        ({"x": FLOATS, "ids": IDS[0]}, r"'ids': expected int64 of shape .samples, any."),
        ({"x": FLOATS[:0], "ids": IDS[:0]}, "expected at least one sample"),
        ({"x": FLOATS, "ids": IDS[:3]}, "as many samples of every input, found 'x' 4, 'ids' 3"),
        ({"x": FLOATS * np.nan, "ids": IDS}, "'x': expected finite numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    for source in (arrays, tmp_path / "data.npz"):
        with pytest.raises(DataError, match=says):
            read_samples(source, INPUTS)


def test_a_fixed_batch_wants_whole_batches() -> None:
    with pytest.raises(DataError, match="a multiple of 3 samples, the model's batch, found 4"):
        read_samples({"x": FLOATS}, [ModelInput("x", "float32", (3, 3))])


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(DataError, match="No such file"):
        read_samples(path, INPUTS)
    np.savez(path, x=np.array([{}]), ids=IDS)  # a pickled object
    with pytest.raises(DataError, match="a file of numbers"):
        read_samples(path, INPUTS)
    np.savez(path, x=FLOATS, ids=IDS)
    content = path.read_bytes()
    for kept in (b"no archive", content[: len(content) // 2], content.replace(b"NUMPY", b"DUMPY")):
        path.write_bytes(kept)
        with pytest.raises(DataError, match="a file of numbers"):
            read_samples(path, INPUTS)
