"""Memory: of the machine, limited by cgroups, backed by huge pages."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from kernel_tree import write_tree

from veltair.machine import memory


def test_the_tighter_of_machine_and_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limit, expected in ((None, total), (1 << 20, 1 << 20), (total << 1, total)):
        monkeypatch.setattr(memory, "memory_limit_bytes", lambda limit=limit: limit)
        assert memory.memory_bytes() == expected


def test_huge_page_mode(tmp_path: Path) -> None:
    assert memory.huge_page_mode(tmp_path) == "absent"
    write_tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"})
    assert memory.huge_page_mode(tmp_path) == "always"
