"""Weights are locked while they are served, and not longer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from veltair.profiles.runtime.locked_memory import locked_in_memory

SIZE = 32 << 10  # within what any user may lock by default
LIMIT = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def locked_bytes() -> int:
    line = next(x for x in Path("/proc/self/status").read_text("ascii").splitlines() if x.startswith("VmLck:"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("weights", os.MFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


@pytest.mark.skipif(0 <= LIMIT < SIZE, reason=f"this user may lock {LIMIT} bytes only")
def test_pages_are_locked_within_the_block_and_not_copied(memory: int) -> None:
    os.write(memory, bytes(SIZE))
    before = locked_bytes()
    with locked_in_memory(memory, "weights") as held:
        assert held
        assert locked_bytes() - before == SIZE
        [here] = Path("/proc/self/smaps").read_text("ascii").split("memfd:weights")[1:]
        private = next(line for line in here.splitlines() if line.startswith("Anonymous:"))
        assert private.split()[1] == "0"
    assert locked_bytes() == before


def test_a_system_that_refuses_is_heard_of() -> None:
    program = (
        "import os, resource;"
        "from veltair.profiles.runtime.locked_memory import locked_in_memory;"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0));"
        f"os.geteuid() or os.setuid(65534); memory = os.memfd_create('w'); os.write(memory, bytes({SIZE}));"
        "assert not locked_in_memory(memory, 'resnet50').__enter__()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "resnet50: 0 MB are not locked in memory" in done.stderr


def test_no_weights_at_all(memory: int) -> None:
    with locked_in_memory(memory, "weights") as held:
        assert held
