"""`LoadPace`: what a load may take of a core while others compute.

A thread that runs at the lowest priority leaves its core to whoever wants it, but not at once where it copies in
the kernel, and never the memory bandwidth and the caches that all cores share. So work is done in pieces of about a
millisecond, with a pause after each that keeps it within its share. Where no worker computes there is no pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

AT_WORK_NS = 200_000  # of core time that workers use within a window, and somebody is served: idle ones use less
WINDOW_NS = 100_000_000
LINGER_NS = 250_000_000  # from the last sign of work on: queries come one after the other
LONGEST_PAUSE_NS = 250_000_000  # who watches the process must not take it for hung
LIST_NS = 500_000_000  # between two looks at which workers there are
RUN_SHARE = 0.5  # at least, for kernels: they give way at any instruction


class LoadPace:
    """Decides how long to pause after a piece of work. Pure: times are arguments.

    >>> pace = LoadPace(share=0.1)
    >>> pace.pause_ns(0, 0, others_ns=0), pace.pause_ns(1_000_000, 1_000_000, others_ns=0)
    (0, 0)
    >>> pace.pause_ns(2_000_000, 2_000_000, others_ns=900_000)  # a worker has run: a tenth of 10 ms was used
    9000000
    """

    def __init__(self, share: float) -> None:
        """`share`: of a core's time, while others compute."""
        self.share = share
        self._busy_until_ns = 0
        self._window: tuple[int, int] | None = None  # when it began, and what others had used by then
        self._resumed: tuple[int, int] | None = None  # when the piece began, and what this thread had used by then

    def pause_ns(self, now_ns: int, used_ns: int, others_ns: int, share: float | None = None) -> int:
        """How long to pause now, after the piece of work that began at the end of the last pause.

        used_ns: core time of this thread so far.
        others_ns: core time of all workers so far.
        share: of this piece; the usual one by default.
        """
        resumed_ns, before_ns = self._resumed or (now_ns, used_ns)
        pause_ns = 0
        if self._others_work(now_ns, others_ns):
            # Time in which it waited for a core was a pause as well.
            due_ns = (used_ns - before_ns) / (share or self.share) - (now_ns - resumed_ns)
            pause_ns = min(max(round(due_ns), 0), LONGEST_PAUSE_NS)
        self._resumed = now_ns + pause_ns, used_ns
        return pause_ns

    def _others_work(self, now_ns: int, others_ns: int) -> bool:
        began_ns, base_ns = self._window or (now_ns, others_ns)
        if others_ns - base_ns >= AT_WORK_NS:
            self._busy_until_ns = now_ns + LINGER_NS
            began_ns, base_ns = now_ns, others_ns
        elif now_ns - began_ns >= WINDOW_NS:
            began_ns, base_ns = now_ns, others_ns
        self._window = began_ns, base_ns
        return now_ns < self._busy_until_ns


class PacedLoad:
    """Pauses the calling thread, which loads a model.

    ::

        paced = PacedLoad(LoadPace(0.1), WorkerTimes(engine))
        for piece in pieces:
            digest(piece)
            paced.pause()
    """

    def __init__(
        self,
        pace: LoadPace,
        others_ns: Callable[[], int],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        used_ns: Callable[[], int] = time.thread_time_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`others_ns`: core time of all workers so far. The other arguments are replaced in tests."""
        self._pace, self._others_ns = pace, others_ns
        self._clock_ns, self._used_ns, self._sleep = clock_ns, used_ns, sleep
        self.pause()

    def pause(self) -> None:
        """After a piece of work, mostly in the kernel."""
        self._pause(None)

    def pause_running(self) -> None:
        """After a piece of work that runs kernels."""
        self._pause(max(self._pace.share, RUN_SHARE))

    def _pause(self, share: float | None) -> None:
        pause_ns = self._pace.pause_ns(self._clock_ns(), self._used_ns(), self._others_ns(), share)
        if pause_ns:
            self._sleep(pause_ns / 1e9)


class WorkerTimes:
    """Core time that the workers have used, except for this process; a call returns the sum so far, in ns.

    A system that does not list a process's children has no workers here, and nothing is paced. ::

        workers = WorkerTimes(engines=lambda: [os.getppid()])
        before_ns = workers()
    """

    def __init__(
        self,
        engines: Callable[[], Iterable[int]],
        *,
        children: Callable[[int], Iterable[int]] | None = None,
        core_ns: Callable[[int], int] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`engines`: processes whose children are the workers. The other arguments are replaced in tests."""
        self._engines, self._children = engines, children or children_of
        self._core_ns, self._clock_ns = core_ns or process_core_ns, clock_ns
        self._seen: Mapping[int, int] = {}  # core time by process
        self._listed_ns: int | None = None
        self._sum_ns = 0

    def __call__(self) -> int:
        now_ns = self._clock_ns()
        workers = set(self._seen)
        if self._listed_ns is None or now_ns - self._listed_ns >= LIST_NS:
            self._listed_ns = now_ns
            workers = {child for engine in self._engines() for child in self._children(engine)} - {os.getpid()}
        seen = {}
        for worker in workers:
            try:
                seen[worker] = self._core_ns(worker)
            except OSError:  # it has ended
                continue
            self._sum_ns += seen[worker] - self._seen.get(worker, seen[worker])
        self._seen = seen
        return self._sum_ns


def children_of(process: int) -> list[int]:
    """The processes that a process has started and that live; empty where it has ended or the system does not say."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return found


def process_core_ns(process: int) -> int:
    """The core time that a process has used. Raises OSError where it has ended.

    >>> process_core_ns(os.getpid()) > 0
    True
    """
    return time.clock_gettime_ns(~process << 3 | 2)  # CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it
