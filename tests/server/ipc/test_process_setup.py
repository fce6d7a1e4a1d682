"""A child process dies with its parent."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from running_engine import WAIT_S, living

pytestmark = pytest.mark.slow


TIED = """
import os, signal
from veltair.server.ipc.process_setup import die_with_parent
die_with_parent(os.getppid())
print(os.getpid(), flush=True)
signal.pause()
"""


PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


def test_a_tied_process_dies_with_its_parent_even_while_it_waits_for_something_else() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, TIED], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert living(pid)
        parent.kill()
    give_up = time.monotonic() + WAIT_S
    while living(pid):
        assert time.monotonic() < give_up, "it outlives its parent"


def test_a_process_whose_parent_died_before_it_was_tied_leaves() -> None:
    program = "from veltair.server.ipc.process_setup import die_with_parent; die_with_parent(1 << 30)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1
