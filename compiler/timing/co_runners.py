"""Co-runners, which load the shared cache and memory, and the interference levels that they cause.

A grade is the share of time in which every core that the layer leaves free streams over memory. The average slowdown
of the model's layers beside it is the grade's interference level (VELTAIR sec. 4.3), so a level means the same on
every machine: the expected slowdown.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from veltair.errors import VeltairError
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import cache_bytes
from veltair.types import CoreId

GRADES = (0.5, 1.0)
STEP = 1.01  # a level less than this above the one before is the same level, and noise
_PERIOD_NS = 2_000_000
_SLICE = 1 << 20  # bytes between two reads of the clock
_PR_SET_PDEATHSIG = 1


def buffer_bytes(cores: int) -> int:
    """Bytes that each of `cores` co-runners streams over: more than its L2 and its share of the L3."""
    sizes = cache_bytes()
    wanted = max(8 * sizes.get("L2", 1 << 20), 2 * sizes.get("L3", 0) // max(cores, 1), 32 << 20)
    return max(_SLICE, min(wanted, 256 << 20, memory_bytes() // 8 // max(cores, 1)))


@contextmanager
def run_co_runners(cores: Sequence[CoreId], grade: float) -> Iterator[None]:
    """Run one co-runner on each of `cores` for the length of the `with` block."""
    runners: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores:
            command = [sys.executable, "-m", __name__, str(core), str(grade), str(buffer_bytes(len(cores)))]
            runners.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        for runner in runners:
            if runner.stdout is None or runner.stdout.readline() != b"ready\n":
                raise VeltairError(f"a co-runner did not start (code {runner.wait()})")
        yield
    finally:
        for runner in runners:
            runner.kill()
        for runner in runners:
            runner.wait()
            if runner.stdout is not None:
                runner.stdout.close()


def distinct_levels(slowdowns: Sequence[float]) -> list[tuple[int, float]]:
    """(grade index, level) of the grades that slow down more than all before, ascending, above 1.0.

    >>> distinct_levels([1.004, 1.2])
    [(1, 1.2)]
    """
    found: list[tuple[int, float]] = []
    last = 1.0
    for grade, slowdown in enumerate(slowdowns):
        if slowdown >= last * STEP:
            last = round(slowdown, 3)
            found.append((grade, last))
    return found


def stream_memory(core: CoreId, grade: float, size: int) -> None:
    """Stream on one core for a share `grade` of the time, until killed; print "ready" once the memory is allocated."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, (core,))
    memory = np.ones(size // 8)
    count = _SLICE // 8
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    at = 0
    while True:
        begin = time.perf_counter_ns()
        while time.perf_counter_ns() - begin < grade * _PERIOD_NS:
            part = memory[at : at + count]
            np.add(part, 1.0, out=part)
            at = at + count if at + count < len(memory) else 0
        rest = (1 - grade) * _PERIOD_NS
        if rest > 0:
            time.sleep(rest / 1e9)


if __name__ == "__main__":
    stream_memory(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
