"""Tables of recommendation models are cut to the memory of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veltair.cli import main
from veltair.errors import ConfigError
from veltair.zoo.recommendation import table_sizes
from veltair.zoo.recommendation.table_sizes import EmbeddingTable, find_cuts, fit_tables
from veltair.zoo.registry import write

GIB = 1 << 30


def test_rows_fit_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = EmbeddingTable("large", 40_000_000, 128), EmbeddingTable("small", 1000, 128)
    whole = (large, large, small)
    for memory, rows in ((256 * GIB, 40_000_000), (24 * GIB, 1 << 22), (1 * GIB, 1 << 17)):
        monkeypatch.setattr(table_sizes, "memory_bytes", lambda memory=memory: memory)
        taken = fit_tables(whole, None)
        assert [table.rows for table in taken] == [rows, rows, 1000]
        assert sum(table.bytes for table in taken) <= memory / 4
    (cut,) = find_cuts(whole, taken)
    assert (cut.first, cut.last, cut.published, cut.rows) == ("large", "large", 40_000_000, 1 << 17)
    monkeypatch.setattr(table_sizes, "memory_bytes", lambda: 0)  # unknown
    assert fit_tables(whole, None) == whole
    assert [table.rows for table in fit_tables(whole, 500)] == [500, 500, 500]


def test_the_command_says_what_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "n.onnx"
    assert main(["zoo", "ncf", "--out", str(path), "--rows", "30000"]) == 0
    words = capsys.readouterr().out
    assert "tables were cut (--rows 30000)" in words
    assert "user_mf … user_mlp: 30,000 of 140,000 rows" in words and "item_mf" not in words
    assert main(["zoo", "recom-e", "--out", str(path), "--rows", "50", "--json", "--force"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["files"]) == [str(path), str(tmp_path / "n.features.toml")]
    assert facts["cut"][-1] == {"first": "large0", "last": "large4", "published": 1 << 23, "rows": 50}
    path.unlink()
    assert main(["zoo", "recom-e", "--out", str(path), "--rows", "50"]) == 2
    assert "n.features.toml: is there already" in capsys.readouterr().err


def test_bad_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "ncf", "--out", str(tmp_path / "m.onnx"), "--rows", "0"]) == 2
    assert "rows must be at least 1, got 0" in capsys.readouterr().err
    assert main(["zoo", "ncf", "--out", str(tmp_path / "m.onnx"), "--lookups", "2"]) == 2
    assert "fixed shape" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="fixed shape"):
        write("resnet50", tmp_path / "m.onnx", rows=5)
    assert list(tmp_path.iterdir()) == []
