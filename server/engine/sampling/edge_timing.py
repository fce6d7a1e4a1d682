"""`EdgeTiming`: whose queries CPU time goes to that no block of the scheduler's has."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from veltair.scheduler.events import EdgeTimed
from veltair.server.engine.lending.lent_work import LentWork
from veltair.server.ipc.messages import TenantSpec

SAMPLE_NS = 50_000_000  # between two readings, while queries arrive
FEW, FEW_NS = 16, 1_000_000_000  # so few queries wait that long for theirs: a reading costs half as much as a query

_CPU_CLOCK = 2  # of a process, as clock_getcpuclockid(3) makes it: all that its threads have run for


class EdgeTiming:
    """Divides the CPU time of both processes among the tenants: the engine's by the queries that it was told of, the
    front's by what its I/O threads did, which is more for large tensors and goes on where they refuse by themselves.
    To it comes the core time of queries that a lent worker has run.

    ::

        timing = EdgeTiming(os.getppid(), specs, lanes.work, arrivals.taken, lone.work)
        if (event := timing.sample_if_due(time.monotonic_ns())) is not None:
            decisions = scheduler.handle(event)
    """

    def __init__(
        self,
        front: int,
        tenants: Mapping[int, TenantSpec],
        work: Callable[[int], int],
        taken: Mapping[int, int],
        lent: LentWork,
    ) -> None:
        """`front`: its process id. `tenants`: by number, as they are now. `work`: what the front's threads have done so
        far for a tenant's number. `taken`: how many of its queries the engine was told of, likewise. `lent`: what
        lent workers have run."""
        self._front_clock = ~front << 3 | _CPU_CLOCK
        self._tenants, self._count_work, self._count_taken, self._lent = tenants, work, taken, lent
        self._work: dict[int, int] = {}  # at the last reading, by number
        self._taken: dict[int, int] = {}  # likewise
        self._lent_ns: dict[int, int] = {}  # likewise
        self._lent_queries = 0  # likewise
        self._next_ns, self._last_ns = 0, -FEW_NS
        self._front_ns, self._engine_ns = self._read_front_ns(), time.thread_time_ns()

    def sample_if_due(self, now_ns: int) -> EdgeTimed | None:
        """What both spent since the last reading; None when the next one is not due, or too little came for one."""
        if now_ns < self._next_ns:
            return None
        taken = {number: self._count_taken.get(number, 0) for number in self._tenants}
        came = sum([count - self._taken.get(number, 0) for number, count in taken.items()])
        if not came or (came < FEW and now_ns < self._last_ns + FEW_NS):
            return None
        self._last_ns, self._next_ns = now_ns, now_ns + SAMPLE_NS
        work = {number: self._count_work(number) for number in self._tenants}
        front_ns, engine_ns = self._read_front_ns(), time.thread_time_ns()
        by_taken, by_work = _grown(self._taken, taken), _grown(self._work, work)
        spent_ns = _divide(front_ns - self._front_ns, by_work or by_taken)
        spent_ns.update(_divide(engine_ns - self._engine_ns, by_taken))
        lent_ns = {number: self._lent.core_ns[number] for number in self._tenants}
        spent_ns.update(_grown(self._lent_ns, lent_ns))
        unasked = self._lent.queries - self._lent_queries
        self._lent_ns, self._lent_queries = lent_ns, self._lent.queries
        self._work, self._taken, self._front_ns, self._engine_ns = work, taken, front_ns, engine_ns
        by_owner = Counter[str]()
        for number, ns in spent_ns.items():
            by_owner[self._tenants[number].name] += ns  # versions of one tenant are one
        return EdgeTimed(now_ns, dict(by_owner), unasked)

    def _read_front_ns(self) -> int:
        try:
            return time.clock_gettime_ns(self._front_clock)
        except OSError:  # it is gone, and soon this process is
            return 0


def _grown(before: Mapping[int, int], now: Mapping[int, int]) -> Counter[int]:
    return Counter(
        {number: count - before.get(number, 0) for number, count in now.items() if count > before.get(number, 0)}
    )


def _divide(spent_ns: int, parts: Counter[int]) -> Counter[int]:
    whole = parts.total()
    return Counter({number: spent_ns * part // whole for number, part in parts.items()})
