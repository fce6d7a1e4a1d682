"""`RunningClaim`: whether the claim that a lent worker runs takes longer than others are to wait for it."""

from __future__ import annotations

import time

from veltair.server.ipc.standing_orders import Claim

LONG_WORK_NS = 20_000_000  # on its cores, of what was thought to be short
LONG_NS = 100_000_000  # whatever it does: it is to be watched

_CPU_TIME = 2  # the kernel's CPUCLOCK_SCHED: of all threads


class RunningClaim:
    """Looks at the claim from time to time. A worker that waits for a core is not slow: nobody else would be faster.

    ::

        running = RunningClaim()
        running.takes_long(claim, worker.pid, waited_for=True)  # False: it has been seen for the first time
    """

    def __init__(self) -> None:
        self._query = 0
        self._seen_ns = self._worked_ns = 0  # when it was seen first, and the worker's CPU time then

    def takes_long(self, claim: Claim, pid: int, *, waited_for: bool) -> bool:
        """`pid`: of the worker. `waited_for`: by others, since it was thought to be short."""
        now_ns, query = time.monotonic_ns(), claim.caller.query
        if not waited_for:
            return not 0 <= now_ns - claim.caller.taken_ns <= LONG_NS  # a worker may write anything
        worked_ns = cpu_time_ns(pid)
        if query != self._query:
            self._query, self._seen_ns, self._worked_ns = query, now_ns, worked_ns
        return worked_ns - self._worked_ns > LONG_WORK_NS or now_ns - self._seen_ns > LONG_NS


def cpu_time_ns(pid: int) -> int:
    """What the process has spent on its cores so far; 0 where it is gone.

    >>> import os
    >>> 0 < cpu_time_ns(os.getpid()) <= time.process_time_ns()
    True
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | _CPU_TIME)  # as clock_getcpuclockid makes it
    except OSError:
        return 0
