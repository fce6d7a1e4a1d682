"""Whether the machine computes at its own pace all the while: a small product on each core, ten times a second.

The cores of a virtual machine are not its own. On one of ours both take 1.6 to 1.9 times as long for one to four
seconds, in some hours once a minute: they are not taken away for as much as a millisecond, they compute more slowly. A
second of it in a load of thirty sets the load's 95th percentile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean

import numpy as np

from veltair.machine.topology import usable_machine

A_SECOND, PAUSE_S = 10, 0.1
SIDE = 128  # a product of two such squares stays in L2 and takes 20 to 50 us
SLOW = 1.3  # times the quickest second


@contextmanager
def watching() -> Iterator[list[bool]]:
    """Holds for each second of the block, once that has ended, whether the machine was slow.

    Raises SystemExit where a probe ended by itself: nothing is known of the machine then.
    """
    command = [sys.executable, __file__]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    probes = [
        subprocess.Popen([*command, str(core)], env=env, stdout=subprocess.PIPE, text=True)
        for core in usable_machine().cores
    ]
    slow: list[bool] = []
    try:
        yield slow
    finally:
        for probe in probes:
            probe.terminate()
        by_core = [[int(line) for line in probe.communicate()[0].splitlines()] for probe in probes]
    if any(probe.returncode != -signal.SIGTERM for probe in probes):
        raise SystemExit("a probe of bench/steady.py ended by itself")
    least = [min(seconds, default=0) for seconds in by_core]
    together = zip(*by_core, strict=False)  # one core may be a second ahead
    slow += [any(took > SLOW * own for took, own in zip(each, least, strict=True)) for each in together]


def _probe(core: int) -> None:
    """Prints the mean CPU time in ns of two products, each second: the time of other programs on the core is not in."""
    os.sched_setaffinity(0, {core})
    square = np.ones((SIDE, SIDE), np.float32)
    room = np.empty_like(square)
    while True:
        took = []
        for _ in range(A_SECOND):
            time.sleep(PAUSE_S)
            np.matmul(square, square, out=room)  # what other programs have put out of the caches is back
            begin_ns = time.thread_time_ns()
            for _ in range(2):
                np.matmul(square, square, out=room)
            took.append(time.thread_time_ns() - begin_ns)
        print(round(mean(took)), flush=True)


if __name__ == "__main__":
    _probe(int(sys.argv[1]))
