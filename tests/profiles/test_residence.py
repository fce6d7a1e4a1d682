"""Weights are locked while they are served, and not longer."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from veltair.profiles.residence import resident

SIZE = 8 << 20


def locked_bytes() -> int:
    line = next(x for x in Path("/proc/self/status").read_text("ascii").splitlines() if x.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


def test_pages_are_locked_within_the_block(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(SIZE))
    before = locked_bytes()
    with resident(tmp_path / "weights.bin") as held:
        if not held:
            pytest.skip(f"this user may lock {resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]} bytes only")
        assert locked_bytes() - before == SIZE
    assert locked_bytes() == before


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with resident(tmp_path / "weights.bin") as held:
        assert held
