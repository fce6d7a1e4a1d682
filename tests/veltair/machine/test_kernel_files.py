"""Formats of the kernel's files, and machines on which they are missing."""

from __future__ import annotations

from pathlib import Path

from veltair.machine.kernel_files import parse_bracketed, parse_size, read_text


def test_parsers() -> None:
    assert parse_bracketed("always [madvise] never\n") == "madvise" and parse_bracketed("") == ""
    assert [parse_size(t) for t in ("48K", "2048K\n", "480M", "7", "max")] == [49152, 2 << 20, 480 << 20, 7, 0]


def test_unreadable_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    assert [read_text(tmp_path / name) for name in ("absent", "binary", "")] == ["", "", ""]
