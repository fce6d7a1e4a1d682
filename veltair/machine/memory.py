"""How much memory this process may use, and whether the kernel backs it by huge pages."""

from __future__ import annotations

from pathlib import Path

import psutil

from veltair.machine.cgroups import memory_limit_bytes
from veltair.machine.kernel_files import ROOT, parse_bracketed, read_text


def memory_bytes() -> int:
    """Memory of the machine, or of the tightest cgroup where that is less."""
    total: int = psutil.virtual_memory().total
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)


def huge_page_mode(root: Path = ROOT) -> str:
    """Mode of transparent huge pages: "always", "madvise", "never"; "absent" when the kernel has none."""
    return parse_bracketed(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")) or "absent"
