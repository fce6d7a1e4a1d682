"""The threads that kernels run on: one for each core, pinned to it for good (`pinned_threads.c`).

The threads of the present core set stay awake while a block runs, linger for the next block, and sleep. The calling
thread does the work of one core itself, and moves to a core of the set where it is on none. TVM's own pool is not used:
a launch costs five times as much there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from veltair.types import CoreSet

# After a block. It bridges the gap to the next one, mostly 20 to 40 us, and ends soon after; meanwhile the thread
# yields its core in a loop: the thread that is given the core next has it at once, and sooner than a halted core.
LINGER_NS = 50_000


def kernel_environment() -> dict[str, str]:
    """Variables that a process needs before it loads numpy, to run kernels and nothing else."""
    return {
        "OPENBLAS_NUM_THREADS": "1",  # numpy computes nothing here
        "OMP_NUM_THREADS": "1",
    }


_made: list[PinnedThreads] = []  # the last one


def current_threads() -> PinnedThreads | None:
    """Those of this process, if there are any."""
    return _made[-1] if _made else None


class PinnedThreads:
    """The threads of this process that kernels run on, for one calling thread.

    Create it before the libraries with the kernels are loaded. Raises ValueError for a core that this process may not
    use. Not to be confused with the scheduler's `CorePool`, which knows which cores are free. ::

        threads = PinnedThreads((0, 1, 2, 3))
        threads.move_to((2, 3))  # the next block runs on these two cores
    """

    def __init__(self, cores: CoreSet) -> None:
        from veltair.profiles.runtime import native

        library = native.library()
        self._point, self._awake, self._asleep = library["point"], library["awake"], library["asleep"]
        self._set_aside = library["set_aside"]
        library["start"](LINGER_NS, *cores)
        self.usable = cores  # each core set is a part of them
        self.cores: CoreSet = ()
        self._first = -1  # the calling thread's core
        self.move_to(cores)
        _made[:] = [self]

    def move_to(self, cores: CoreSet) -> None:
        """Run kernels on these cores from now on. A microsecond; nothing when they are the present ones."""
        if cores == self.cores:
            return
        # The calling thread stays where it is when it may: to move a running thread costs tens of microseconds.
        first = self._first if self._first in cores else cores[0]
        self._point(first, *(core for core in cores if core != first))
        if first != self._first:
            os.sched_setaffinity(0, (first,))
        self.cores, self._first = cores, first

    @contextmanager
    def on_any_thread(self) -> Iterator[None]:
        """Run kernels on the thread that calls them alone, wherever the system has it; `move_to` ends this."""
        self._point(self.usable[0])
        self.cores, self._first = (), -1
        yield

    @contextmanager
    def kept_awake(self) -> Iterator[None]:
        """Keep the threads of the present core set awake as inside a block, for kernels that are called one by one."""
        self._awake()
        try:
            yield
        finally:
            self._asleep()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let the threads sleep for a part of a block that brings threads of its own."""
        awake = self._set_aside()
        try:
            yield
        finally:
            if awake:
                self._awake()
