"""Which cores are free, and which of them to hand out."""

from __future__ import annotations

from itertools import groupby

from veltair.types import CoreSet, Machine


class CorePool:
    """Hands out cores that share an L3 together: whole free domains first, then the tightest fit for what is left."""

    __slots__ = ("_cores", "_domain_of", "_having", "_of_size", "free")

    def __init__(self, machine: Machine) -> None:
        sizes = [len(domain) for domain in machine.domains]
        self.free = sum(sizes)  # how many
        self._cores = [sorted(domain) for domain in machine.domains]  # that are free, ascending
        self._domain_of = {core: i for i, domain in enumerate(machine.domains) for core in domain}
        # Sets of domains, as bits: those with so many free cores, and those of a size, the large ones first.
        self._having = [_bits(sizes, free) for free in range(max(sizes) + 1)]
        self._of_size = [(size, _bits(sizes, size)) for size in sorted(set(sizes) - {0}, reverse=True)]

    def take(self, count: int, beside: CoreSet = ()) -> CoreSet:
        """Takes `count` cores, which must be free, and gives them sorted; the L3 of `beside` is filled up first."""
        taken: list[int] = []
        having = self._having
        self.free -= count
        if beside:
            for i in sorted({self._domain_of[core] for core in beside}):
                free = len(self._cores[i])
                self._take_from(1 << i, free, min(count - len(taken), free), taken)
        left = count - len(taken)
        for size, domains in self._of_size:
            while left >= size and (whole := having[size] & domains):
                self._take_from(whole, size, size, taken)
                left -= size
        while left:
            free = self._fitting(left)
            more = left if left < free else free
            self._take_from(having[free], free, more, taken)
            left -= more
        taken.sort()
        return tuple(taken)

    def give_back(self, core_set: CoreSet) -> None:
        having = self._having
        for i, back in groupby(core_set, self._domain_of.__getitem__):
            cores, bit = self._cores[i], 1 << i
            having[len(cores)] ^= bit
            cores += back
            cores.sort()
            having[len(cores)] ^= bit
        self.free += len(core_set)

    def free_cores(self) -> CoreSet:
        return tuple(sorted(core for free in self._cores for core in free))

    def _fitting(self, count: int) -> int:
        """How many cores are free in the domains that fit `count` tightest, or else have most."""
        having = self._having
        for free in range(count, len(having)):
            if having[free]:
                return free
        free = len(having) - 1
        while not having[free]:
            free -= 1
        return free

    def _take_from(self, domains: int, free: int, count: int, taken: list[int]) -> None:
        """From the first of these domains, which have so many free cores; the lowest ids, so that the same events give
        the same sets.
        """
        bit, having = domains & -domains, self._having
        cores = self._cores[bit.bit_length() - 1]
        having[free] ^= bit
        having[free - count] ^= bit
        taken += cores[:count]
        del cores[:count]


def _bits(sizes: list[int], wanted: int) -> int:
    return sum(1 << i for i, size in enumerate(sizes) if size == wanted)
