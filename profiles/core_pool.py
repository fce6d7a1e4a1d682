"""Which cores the calling thread's TVM thread pool runs on.

TVM can pin its threads itself, but on fewer cores than it has threads it lets all of them, and the calling
thread, roam over the set, so that two busy threads may share a core for a scheduling period. Here each thread has
a core of the set to itself, whatever its size. Needs TVM_BIND_THREADS=0 and TVM_NUM_THREADS (the largest set)
in the environment before TVM is loaded: see `environment`.
"""

from __future__ import annotations

import os
from pathlib import Path

from veltair.types import CoreSet

SPIN = 1000  # yields of an idle pool thread before it sleeps: about 100 us, a layer's or a block's gap


def environment(cores: int) -> dict[str, str]:
    """Variables that a process needs before it loads TVM to run on up to `cores` cores."""
    return {
        "TVM_USE_RUNTIME_LIB": "1",
        "TVM_NUM_THREADS": str(cores),
        "TVM_BIND_THREADS": "0",
        "TVM_THREAD_POOL_SPIN_COUNT": os.environ.get("TVM_THREAD_POOL_SPIN_COUNT", str(SPIN)),
        "OPENBLAS_NUM_THREADS": "1",  # numpy computes nothing here
        "OMP_NUM_THREADS": "1",
    }


class CorePool:
    """The calling thread's pool. Create it before the first kernel runs: the pool never outgrows its first use."""

    def __init__(self, cores: CoreSet) -> None:
        from tvm_ffi import get_global_func

        from veltair.profiles import tvm_runtime  # noqa: F401  it defines the function

        self._configure = get_global_func("runtime.config_threadpool")
        self._names = {core: str(core) for core in cores}
        before = _threads()
        self._call(cores)
        # The kernel lists threads in the order of their creation, which is the order of TVM's task indices.
        threads = [thread for thread in _threads() if thread not in before]
        self._threads = (0, *threads)  # 0: the calling thread runs task 0
        self.now: CoreSet = ()
        self._first = -1  # the calling thread's core
        self.point(cores)

    @property
    def size(self) -> int:
        """The largest core set that `point` can use fully."""
        return len(self._threads)

    def point(self, cores: CoreSet) -> None:
        """Run kernels on these cores from now on. A few microseconds; nothing when they are the present ones."""
        if cores == self.now:
            return
        self._call(cores)
        # The calling thread stays where it is when it may: to move a running thread costs tens of microseconds.
        first = self._first if self._first in cores else cores[0]
        rest = (core for core in cores if core != first)
        for thread, core in zip(self._threads, (first, *rest), strict=False):
            os.sched_setaffinity(thread, (core,))
        self.now, self._first = cores, first

    def _call(self, cores: CoreSet) -> None:
        self._configure(-2, len(cores), [self._names.get(core) or str(core) for core in cores])


def _threads() -> list[int]:
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]
