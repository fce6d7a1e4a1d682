"""Whether the machine is steadily fast: a small matrix product on each core, ten times a second.

A virtual machine shares its cores. On one of ours both cores take 1.6 to 1.9 times as long for one to four seconds, in
some hours once a minute. They are not taken away, not even for a millisecond; they compute more slowly. One such second
in a load of thirty sets the load's 95th percentile.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean

import numpy as np
import psutil

from veltair.machine.topology import usable_machine

PRODUCTS_A_SECOND, PAUSE_S = 10, 0.1
SIDE = 128  # a product of two such squares stays in L2 and takes 20 to 50 us
SLOW = 1.3  # times the fastest second


@contextmanager
def watch_for_slow_seconds() -> Iterator[list[bool]]:
    """Yields a list that says for each second of the `with` block whether the machine was slow, filled at its end.

    Raises SystemExit where a probe ended by itself, because nothing is known about the machine then.
    """
    command = [sys.executable, "-m", "bench.serving.steadiness"]
    probes = [
        subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE, text=True) for core in usable_machine().cores
    ]
    slow: list[bool] = []
    try:
        yield slow
    finally:
        for probe in probes:
            probe.terminate()
        by_core = [[int(line) for line in probe.communicate()[0].splitlines()] for probe in probes]
    if any(probe.returncode != -signal.SIGTERM for probe in probes):
        raise SystemExit("a probe of bench.serving.steadiness ended by itself")
    least = [min(seconds, default=0) for seconds in by_core]
    together = zip(*by_core, strict=False)  # one core may be a second ahead
    slow += [any(took > SLOW * own for took, own in zip(each, least, strict=True)) for each in together]


def _probe(core: int) -> None:
    """Prints the mean CPU time in ns of two products, each second, without the time of other programs."""
    psutil.Process().cpu_affinity([core])
    square = np.ones((SIDE, SIDE), np.float32)
    product = np.empty_like(square)
    while True:
        took = []
        for _ in range(PRODUCTS_A_SECOND):
            time.sleep(PAUSE_S)
            np.matmul(square, square, out=product)  # brings back what other programs have evicted from the caches
            begin_ns = time.thread_time_ns()
            for _ in range(2):
                np.matmul(square, square, out=product)
            took.append(time.thread_time_ns() - begin_ns)
        print(round(mean(took)), flush=True)


if __name__ == "__main__":
    _probe(int(sys.argv[1]))
