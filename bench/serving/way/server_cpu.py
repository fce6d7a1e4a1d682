"""CPU time of a server's processes, by their role: of the daemon front, engine and workers, of Triton server and stubs.

The kernel's CPU clocks of processes count nanoseconds; psutil counts ticks of 10 ms, which is more than a query takes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import psutil

ROLES = {  # by a part of the command line
    "veltair.server.engine.engine": "engine",
    "veltair.server.worker.worker": "workers",
    "veltair.cli": "front",
    "triton_python_backend_stub": "stubs",
    "bin/tritonserver": "front",
    "bench.serving.triton": "launcher",  # sleeps
}


def role(command: Sequence[str]) -> str:
    """What a process of a server does, by its command line.

    >>> role(["python", "-P", "-m", "veltair.server.engine.engine", "8750"])
    'engine'
    """
    return next((name for part, name in ROLES.items() if any(part in word for word in command)), "other")


def cpu_ns(root: int) -> dict[str, int]:
    """CPU time so far of the process `root` and all below it, summed by role."""
    top = psutil.Process(root)
    found: defaultdict[str, int] = defaultdict(int)
    for process in (top, *top.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, OSError):  # it has ended
            clock = (~process.pid << 3) | 2  # a process's CPU clock, see clock_getcpuclockid(3)
            found[role(process.cmdline())] += time.clock_gettime_ns(clock)
    return dict(found)
