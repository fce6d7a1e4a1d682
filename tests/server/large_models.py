"""Models whose weights are large, and what of them a daemon's processes have in memory."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import psutil
from model_versions import altered

from veltair.profiles.artifact.artifact_folder import WEIGHTS
from veltair.profiles.runtime.answer_check import store_answer

WEIGHTS_BYTES = 16 << 20
HUGE_PAGE = 2 << 20


def large_mlp(artifacts: Path, target: Path, scale: float = 1, size: int = WEIGHTS_BYTES) -> Path:
    """A version of mlp, as `scaled_mlp`, with large weights."""
    weights = np.fromfile(artifacts / "mlp" / WEIGHTS, np.float32) * np.float32(scale)
    return padded(artifacts / "mlp", target, weights.tobytes(), size)


def padded(source: Path, target: Path, weights: bytes = b"", size: int = WEIGHTS_BYTES) -> Path:
    """A copy of an artifact whose weights have a tail that no kernel reads."""
    weights = weights or (source / WEIGHTS).read_bytes()
    weights += bytes(size - len(weights))
    shutil.rmtree(target, ignore_errors=True)
    altered(source, target, weights_digest=hashlib.sha256(weights).hexdigest())
    (target / WEIGHTS).write_bytes(weights)
    store_answer(target)
    return target


def mapped_weights(pid: int) -> int:
    """The memory of sealed weights that the processes of a daemon map; what they share counts once."""
    sizes: dict[str, int] = {}  # by inode, of the process that maps most of it
    front = psutil.Process(pid)
    for process in [front, *front.children(recursive=True)]:
        inode = ""
        for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inode = line.split()[4] if "memfd:veltair-weights" in line else ""
            elif inode and line.startswith("Rss:"):
                sizes[inode] = max(sizes.get(inode, 0), int(line.split()[1]) << 10)
    return sum(sizes.values())


def sealed_files(pid: int) -> int:
    """How many sealed weights the processes of a daemon have open."""
    found = set()
    front = psutil.Process(pid)
    for process in [front, *front.children(recursive=True)]:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if "memfd:veltair-weights" in str(entry.readlink()):
                    found.add(entry.stat().st_ino)
            except FileNotFoundError:
                continue
    return len(found)
