"""Who runs beside whom: the surroundings of every block on a machine model, and what they make of its speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from veltair.scheduler.virtual import Course
from veltair.simulate.machines import MachineModel
from veltair.simulate.pace import Pace, Stretch, pressure_level
from veltair.types import CoreSet, LayerBlock, Machine, ModelProfile


@dataclass(slots=True, eq=False)
class _Neighbour:
    stretch: Stretch
    shares: dict[int, float]  # of its cores, by L3 domain
    cache: int = 0  # pressure on its L3 domains, a level
    memory: int = -1  # on the memory; -1: not known yet


class Contention:
    """L3 domains and memory bandwidth are contended for by what the running blocks would like to have of them."""

    def __init__(
        self, model: MachineModel, machine: Machine, paces: Mapping[tuple[str, int], Pace], rng: np.random.Generator
    ) -> None:
        """`machine`: the cores of the model in use. `paces`: by model and batch. `rng`: of what growing costs."""
        self.model = model
        self._paces, self._rng = paces, rng
        self._domain_of = {core: i for i, domain in enumerate(machine.domains) for core in domain}
        self._running: dict[int, _Neighbour] = {}  # by query
        self._inside: list[dict[int, _Neighbour]] = [{} for _ in machine.domains]  # by domain, by query
        self._stirred: set[int] = set()  # domains that blocks entered or left
        self._spawn_sigma = sqrt(2 * log(model.spawn_mean_ns / model.spawn_median_ns))

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, *, grown: bool) -> float:
        if grown:
            self.leave(block.query)
        stretch = self._paces[profile.model, profile.batch].stretch(block.start, block.versions, len(core_set))
        shares: dict[int, float] = {}
        for core in core_set:
            domain = self._domain_of[core]
            shares[domain] = shares.get(domain, 0.0) + 1 / len(core_set)
        neighbour = self._running[block.query] = _Neighbour(stretch, shares)
        for domain in shares:
            self._inside[domain][block.query] = neighbour
        self._stirred.update(shares)
        if not grown:
            return 0.0
        return float(self._rng.lognormal(log(self.model.spawn_median_ns), self._spawn_sigma))

    def leave(self, query: int) -> None:
        for domain in self._running.pop(query).shares:
            del self._inside[domain][query]
            self._stirred.add(domain)

    def changed(self) -> Iterator[tuple[int, Course]]:
        if not self._stirred:
            return
        affected = {query: it for domain in sorted(self._stirred) for query, it in self._inside[domain].items()}
        self._stirred.clear()
        before = {query: it.cache for query, it in affected.items()}
        for query, it in affected.items():
            it.cache = pressure_level(self._cache_pressure(query, it))
        demands = [it.stretch.demand(it.cache) for it in self._running.values()]
        total, dram_gb_s = sum(demands), self.model.dram_gb_s
        for (query, it), demand in zip(self._running.items(), demands, strict=True):
            memory = pressure_level((total - demand) / dram_gb_s)
            if memory != it.memory or it.cache != before.get(query, it.cache):
                it.memory = memory
                yield query, it.stretch.course(it.cache, memory)

    def _cache_pressure(self, query: int, it: _Neighbour) -> float:
        """What the others would keep of its domains, over what those hold; the mean over its cores."""
        pressure, l3_bytes = 0.0, self.model.l3_bytes
        for domain, share in it.shares.items():
            inside = self._inside[domain]
            if len(inside) > 1:
                wanted = sum(
                    min(other.stretch.want_bytes * other.shares[domain], l3_bytes)
                    for asker, other in inside.items()
                    if asker != query
                )
                pressure += share * wanted / l3_bytes
        return pressure
