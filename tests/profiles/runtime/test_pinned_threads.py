"""The threads that kernels run on, in a process that ends."""

from __future__ import annotations

import subprocess
import sys

AWAKE_AT_THE_END = """
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime import native
from veltair.profiles.runtime.pinned_threads import PinnedThreads

PinnedThreads(usable_machine().cores)
native.library()["awake"]()
"""


def test_a_process_ends_well_while_its_threads_run() -> None:
    """They linger after a block: their code must not leave memory before the process has ended."""
    done = subprocess.run([sys.executable, "-P", "-c", AWAKE_AT_THE_END], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
