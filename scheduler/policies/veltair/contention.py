"""How often queries meet, which tells the default policy whether it may spend all cores on one of them."""

from __future__ import annotations

WEIGHT = 1 / 32  # of the latest query
HIGH = 0.65  # from this share on, cores are saved for the queries to come


class Contention:
    """The share of recent queries that found others on the machine when they arrived, smoothed.

    A client that asks one query after the other keeps the machine busy and meets nobody: it may have all cores.

    >>> contention = Contention()
    >>> contention.is_high
    False
    >>> for _ in range(64):
    ...     contention.arrives(meets_others=True)
    >>> contention.is_high
    True
    """

    __slots__ = ("_share",)

    def __init__(self) -> None:
        self._share = 0.0

    @property
    def is_high(self) -> bool:
        return self._share > HIGH

    def arrives(self, *, meets_others: bool) -> None:
        """Count a query."""
        self._share += WEIGHT * (meets_others - self._share)

    def arrive_alone(self, queries: int) -> None:
        """Count some that met nobody, or others as short as a decision."""
        self._share *= (1 - WEIGHT) ** queries
