"""Weights are locked while they are served, and not longer."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from veltair.profiles.runtime.locked_memory import locked_in_memory

SIZE = 32 << 10  # within what any user may lock by default
LIMIT = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def locked_bytes() -> int:
    line = next(x for x in Path("/proc/self/status").read_text("ascii").splitlines() if x.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(0 <= LIMIT < SIZE, reason=f"this user may lock {LIMIT} bytes only")
def test_pages_are_locked_within_the_block(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(SIZE))
    before = locked_bytes()
    with locked_in_memory(tmp_path / "weights.bin") as held:
        assert held
        assert locked_bytes() - before == SIZE
    assert locked_bytes() == before


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with locked_in_memory(tmp_path / "weights.bin") as held:
        assert held
