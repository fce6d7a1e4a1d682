"""`LentWork`: what lent workers have run, of which the scheduler has no blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class LentWork:
    """Totals since the start.

    >>> work = LentWork()
    >>> work.add(3, core_ns=40_000)
    >>> work.queries, work.core_ns[3]
    (1, 40000)
    """

    queries: int = 0
    core_ns: Counter[int] = field(default_factory=Counter)  # by tenant's number

    def add(self, tenant: int, core_ns: int) -> None:
        """A query has run to its end."""
        self.queries += 1
        self.core_ns[tenant] += core_ns
