"""`VersionCounts`: what the front counts for one version of a tenant's model, as Triton's statistics have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veltair.server.ipc.stages import EXECUTE


@dataclass(slots=True)
class VersionCounts:
    """Requests since the front started; times are sums in ns.

    >>> counts = VersionCounts()
    >>> counts.add_answers(1, (100, 20, 80, 3000, 0, 300, 500), last_ms=17)
    >>> counts.duration_ns, counts.queue_ns, counts.execute_ns
    (4000, 200, 3000)
    """

    answered: int = 0
    duration_ns: int = 0  # arrival to answer
    queue_ns: int = 0  # arrival to the first block
    execute_ns: int = 0  # in blocks
    failed: int = 0  # refused, invalid and given up ones too
    failed_ns: int = 0  # arrival to their end
    last_ms: int = 0  # of the latest answer, wall clock since 1970

    def add_answers(self, count: int, stage_ns: Sequence[int], last_ms: int) -> None:
        """`stage_ns`: how long each of STAGES took them, summed."""
        self.answered += count
        self.duration_ns += sum(stage_ns)
        self.queue_ns += sum(stage_ns[:EXECUTE])
        self.execute_ns += stage_ns[EXECUTE]
        self.last_ms = max(self.last_ms, last_ms)

    def add_failures(self, count: int, ns: int) -> None:
        self.failed += count
        self.failed_ns += ns
