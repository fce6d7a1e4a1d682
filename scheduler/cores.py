"""Which cores are free, and which of them to hand out."""

from __future__ import annotations

from collections.abc import Iterable

from veltair.types import CoreSet, Machine


class CorePool:
    """Hands out cores that share an L3 together: whole free domains first, then the tightest fit for what is left."""

    __slots__ = ("_counts", "_domain_of", "_free", "_smallest", "_whole", "free")

    def __init__(self, machine: Machine) -> None:
        self.free = len(machine.cores)  # how many
        self._free = [set(domain) for domain in machine.domains]  # by domain
        self._counts = [len(free) for free in self._free]
        self._smallest = min(self._counts)
        sizes = [(len(domain), i) for i, domain in enumerate(machine.domains)]
        self._whole = sorted(sizes, key=lambda size: -size[0])  # (size, domain), the large ones first
        self._domain_of = {core: i for i, domain in enumerate(machine.domains) for core in domain}

    def take(self, count: int, beside: CoreSet = ()) -> CoreSet:
        """Takes `count` cores, which must be free, and gives them sorted; the L3 of `beside` is filled up first."""
        taken: list[int] = []
        counts = self._counts
        if beside:
            for i in sorted({self._domain_of[core] for core in beside}):
                taken += self._take_from(i, count - len(taken))
        if count - len(taken) >= self._smallest:
            for size, i in self._whole:
                if size <= count - len(taken) and counts[i] == size:
                    taken += self._take_from(i, size)
        while (left := count - len(taken)) > 0:
            enough = [n for n in counts if n >= left]
            taken += self._take_from(counts.index(min(enough) if enough else max(counts)), left)
        return tuple(sorted(taken))

    def give_back(self, core_set: Iterable[int]) -> None:
        for core in core_set:
            domain = self._domain_of[core]
            self._free[domain].add(core)
            self._counts[domain] += 1
            self.free += 1

    def free_cores(self) -> CoreSet:
        return tuple(sorted(core for domain in self._free for core in domain))

    def _take_from(self, domain: int, at_most: int) -> list[int]:
        cores = sorted(self._free[domain])[:at_most]  # the lowest ids: the same events give the same sets
        self._free[domain].difference_update(cores)
        self._counts[domain] -= len(cores)
        self.free -= len(cores)
        return cores
