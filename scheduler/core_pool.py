"""Which cores are free, and which of them to hand out."""

from __future__ import annotations

from itertools import groupby

from veltair.types import CoreSet, Machine


class CorePool:
    """Hands out cores that share an L3 together: whole free domains first, then the tightest fit for the rest.

    >>> pool = CorePool(Machine(((0, 1), (2, 3, 4, 5))))
    >>> pool.take(5)
    (0, 2, 3, 4, 5)
    """

    __slots__ = ("_cores", "_domain_of", "_having", "_of_size", "free")

    def __init__(self, machine: Machine) -> None:
        sizes = [len(domain) for domain in machine.domains]
        self.free = sum(sizes)  # how many
        # Domains are bits. By domain: the cores that are free, ascending.
        self._cores = {1 << i: sorted(domain) for i, domain in enumerate(machine.domains)}
        self._domain_of = {core: 1 << i for i, domain in enumerate(machine.domains) for core in domain}
        # Sets of domains: by their number of free cores, and by size, the large ones first.
        self._having = [_bits(sizes, free) for free in range(max(sizes) + 1)]
        self._of_size = [(size, _bits(sizes, size)) for size in sorted(set(sizes) - {0}, reverse=True)]

    def take(self, count: int, neighbours: CoreSet = (), avoid: CoreSet = ()) -> CoreSet:
        """Takes `count` cores, which must be free, and returns them sorted; the L3 of `neighbours` is filled first.

        Within an L3 the cores to `avoid` come last.
        """
        taken: list[int] = []
        having, cores_of = self._having, self._cores
        self.free -= count
        if neighbours:
            for domain in sorted({self._domain_of[core] for core in neighbours}):
                free = len(cores_of[domain])
                self._take_from(domain, free, min(count - len(taken), free), taken, avoid)
        left = count - len(taken)
        for size, domains in self._of_size:
            while left >= size and (whole := having[size] & domains):
                domain = whole & -whole
                having[size] ^= domain
                having[0] ^= domain
                taken += cores_of[domain]
                cores_of[domain].clear()
                left -= size
        while left:
            free = self._fitting(left)
            more = left if left < free else free
            self._take_from(having[free], free, more, taken, avoid)
            left -= more
        taken.sort()
        return tuple(taken)

    def give_back(self, core_set: CoreSet) -> None:
        """Frees cores that were taken."""
        having, cores_of = self._having, self._cores
        for domain, back in groupby(core_set, self._domain_of.__getitem__):
            cores = cores_of[domain]
            having[len(cores)] ^= domain
            cores += back
            cores.sort()
            having[len(cores)] ^= domain
        self.free += len(core_set)

    def free_cores(self) -> CoreSet:
        """Those that are free, sorted; O(cores)."""
        return tuple(sorted(core for free in self._cores.values() for core in free))

    def _fitting(self, count: int) -> int:
        """How many cores are free in the domains that fit `count` tightest, or in those with most if none fits."""
        having = self._having
        for free in range(count, len(having)):
            if having[free]:
                return free
        free = len(having) - 1
        while not having[free]:
            free -= 1
        return free

    def _take_from(self, domains: int, free: int, count: int, taken: list[int], avoid: CoreSet) -> None:
        """Takes from the first of these domains, each of which has `free` free cores, the lowest ids, so that the
        same events give the same sets.
        """
        domain, having = domains & -domains, self._having
        cores = self._cores[domain]
        having[free] ^= domain
        having[free - count] ^= domain
        if avoid:
            cores.sort(key=lambda core: (core in avoid, core))
        taken += cores[:count]
        del cores[:count]
        if avoid:
            cores.sort()


def _bits(sizes: list[int], wanted: int) -> int:
    return sum(1 << i for i, size in enumerate(sizes) if size == wanted)
