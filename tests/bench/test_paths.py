"""Where the programs of `bench` are told to write."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.paths import result_path


def test_a_result_needs_a_folder_before_anything_is_measured(tmp_path: Path) -> None:
    assert result_path(str(tmp_path / "way.json")) == tmp_path / "way.json"
    for text in (str(tmp_path), str(tmp_path / "away" / "way.json")):
        with pytest.raises(ArgumentTypeError, match="expected a file in a folder that exists"):
            result_path(text)
