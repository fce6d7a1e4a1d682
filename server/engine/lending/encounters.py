"""`Encounters`: how often queries meet others, which tells whether it pays to lend a worker."""

from __future__ import annotations

WEIGHT = 1 / 8  # of the latest query
UNKNOWN = 0.5
SELDOM = 1 / 3  # up to this share two in a row meet no other, in the mean, before one does
OLD_NS = 10_000_000_000
MANY = 5_000  # in that time; to decide about such a load would cost many queries their target


class Encounters:
    """The share of recent queries that met another, smoothed.

    To lend a worker and to take it back costs the engine about one wake-up more; each query in between saves it two.

    >>> encounters = Encounters(now_ns=0)
    >>> for _ in range(4):
    ...     encounters.count(met=False)
    >>> encounters.are_rare, encounters.must_learn(OLD_NS), encounters.are_rare
    (True, True, False)
    """

    __slots__ = ("_learnt_ns", "_share", "_unasked")

    def __init__(self, now_ns: int) -> None:
        self._share = UNKNOWN
        self._learnt_ns, self._unasked = now_ns, 0  # what ran unasked since then

    @property
    def are_rare(self) -> bool:
        return self._share <= SELDOM

    def count(self, *, met: bool) -> None:
        """A query has run to its end."""
        self._share += WEIGHT * (met - self._share)

    def count_unasked(self) -> None:
        """One has that the engine was not asked about."""
        self.count(met=False)
        self._unasked += 1

    def must_learn(self, now_ns: int) -> bool:
        """Whether the engine decides about the next few, unless they are many: the scheduler knows the load better
        now, and sees how such queries fare."""
        if now_ns - self._learnt_ns < OLD_NS:
            return False
        are_many = self._unasked >= MANY
        self._learnt_ns, self._unasked = now_ns, 0
        if not are_many:
            self.forget()
        return not are_many

    def forget(self) -> None:
        """What has been counted tells nothing of what comes."""
        self._share = max(self._share, UNKNOWN)
