"""Which cores kernels that the calling thread runs are spread over.

Every core has a thread of its own, pinned to it for good (`core_pool.c`). Those of the present core set stay awake
while a block runs, linger for the next block, and sleep. The calling thread does the work of one core itself, and moves
to a core of the set where it is on none. TVM's own pool is not used: a launch costs five times as much there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from veltair.types import CoreSet

# After a block. It bridges the gap to the next one, mostly 20 to 40 us, and ends soon after; meanwhile the thread
# yields its core in a loop: whoever is given it next has it at once, and sooner than a core that is halted.
LINGER_NS = 50_000


def environment() -> dict[str, str]:
    """Variables that a process needs before it loads TVM to run kernels and nothing else."""
    return {
        "TVM_USE_RUNTIME_LIB": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy computes nothing here
        "OMP_NUM_THREADS": "1",
    }


class CorePool:
    """The process' pool, for one thread that runs kernels. Create it before the libraries with the kernels are loaded.

    Raises ValueError for a core that this process may not use.
    """

    def __init__(self, cores: CoreSet) -> None:
        from veltair.profiles.runtime import native

        library = native.library()
        self._point, self._awake, self._asleep = library["point"], library["awake"], library["asleep"]
        library["start"](LINGER_NS, *cores)
        self.size = len(cores)  # the largest core set that `point` can use
        self.now: CoreSet = ()
        self._first = -1  # the calling thread's core
        self.point(cores)

    def point(self, cores: CoreSet) -> None:
        """Run kernels on these cores from now on. A microsecond; nothing when they are the present ones."""
        if cores == self.now:
            return
        # The calling thread stays where it is when it may: to move a running thread costs tens of microseconds.
        first = self._first if self._first in cores else cores[0]
        self._point(first, *(core for core in cores if core != first))
        if first != self._first:
            os.sched_setaffinity(0, (first,))
        self.now, self._first = cores, first

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The threads of the present core set as they are inside a block, for kernels that are called one by one."""
        self._awake()
        try:
            yield
        finally:
            self._asleep()
