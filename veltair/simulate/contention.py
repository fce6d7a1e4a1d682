"""Who runs beside whom: the surroundings of every block on a machine model, and what they make of its speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, log

import numpy as np

from veltair.scheduler.surroundings import FRONT, Course
from veltair.simulate.machines import MachineModel
from veltair.simulate.pace import LEVEL_BOUNDS, Pace, Stretch, pressure_level
from veltair.types import CoreSet, LayerBlock, Machine, ModelProfile


@dataclass(slots=True, eq=False)
class Neighbour:
    """A running block, and what it has to bear."""

    stretch: Stretch
    core_set: CoreSet
    shares: dict[int, float]  # of its cores, by L3 domain
    cache: int = -1  # pressure on its L3 domains, a level; -1: not known yet
    demand: int = 0  # bytes per s of memory bandwidth, if it had no neighbours there
    memory: int = -1  # pressure on the memory, a level
    low: float = inf  # while the demand of all is from here …
    high: float = inf  # … up to here, `memory` stays as it is


class Contention:
    """L3 domains and memory bandwidth are contended for by what the running blocks would like to have of them.

    The front end works on a core that no block holds. Where all are held it shares one with a block, by halves; the
    block then goes half as fast, whichever of its threads that is, since each layer waits for the slowest.
    """

    def __init__(
        self, model: MachineModel, machine: Machine, paces: Mapping[tuple[str, int], Pace], rng: np.random.Generator
    ) -> None:
        """`machine`: the cores of the model in use. `paces`: by model and batch. `rng`: of what growing costs."""
        self.model = model
        self._paces, self._rng = paces, rng
        self._domain_of = {core: i for i, domain in enumerate(machine.domains) for core in domain}
        self._shares_of: dict[CoreSet, dict[int, float]] = {}
        self.running: dict[int, Neighbour] = {}  # by query
        # By domain, by query: the bytes of it that each would keep, at most all; whole, so that sums are exact.
        self._inside: list[dict[int, int]] = [{} for _ in machine.domains]
        self._wanted = [0] * len(machine.domains)  # by all together
        self._demand = 0  # of all together
        self._stirred: set[int] = set()  # domains that blocks entered or left
        self._bytes_per_s = model.dram_gb_s * 1e9
        self._bounds = [bound * self._bytes_per_s for bound in LEVEL_BOUNDS]
        self._calm = (-inf, inf)  # while the demand of all is in here, no block's memory pressure changes
        self._front_ns = 0.0  # of the work that it is at
        self._front_new = False  # it has turned to it since `changed` was last called
        self._front_core = 0  # where it goes when all cores are held
        self._halved: int | None = None  # the query that shares its core with the front end

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, *, grown: bool) -> float:
        if block.query in self.running:
            self.leave(block.query)
        shares = self._shares(core_set)
        pace = self._paces[profile.model, profile.batch]
        stretch = pace.stretch(block.start, block.versions, len(core_set), len(shares))
        self.running[block.query] = Neighbour(stretch, core_set, shares)
        want_bytes, l3_bytes = stretch.want_bytes, self.model.l3_bytes
        for domain, share in shares.items():
            wants = want_bytes * share
            self._inside[domain][block.query] = kept = int(wants if wants < l3_bytes else l3_bytes)
            self._wanted[domain] += kept
        self._stirred.update(shares)
        if not grown:
            return 0.0
        return float(self._rng.lognormal(log(self.model.spawn_median_ns), self.model.spawn_sigma))

    def _shares(self, core_set: CoreSet) -> dict[int, float]:
        known = self._shares_of.get(core_set)
        if known is None:
            known = self._shares_of[core_set] = {}
            for core in core_set:
                domain = self._domain_of[core]
                known[domain] = known.get(domain, 0.0) + 1 / len(core_set)
        return known

    def leave(self, query: int) -> None:
        it = self.running.pop(query)
        self._demand -= it.demand
        for domain in it.shares:
            self._wanted[domain] -= self._inside[domain].pop(query)
        self._stirred.update(it.shares)

    def attend(self, work_ns: float) -> None:
        self._front_ns, self._front_new = work_ns, True
        if work_ns:
            self._front_core = int(self._rng.integers(len(self._domain_of)))

    def changed(self) -> Iterable[tuple[int, Course]]:
        if not self._stirred and not self._front_new:
            return []
        inside, wanted, l3_bytes = self._inside, self._wanted, self.model.l3_bytes
        pressed: dict[int, int] = {}  # an ordered set
        for domain in self._stirred:
            pressed |= inside[domain]
        self._stirred.clear()
        changed: dict[int, Neighbour] = {}
        for query in pressed:
            it = self.running[query]
            others = 0.0  # would keep so much of its domains, the mean over its cores
            for domain, share in it.shares.items():
                others += share * (wanted[domain] - inside[domain][query])
            cache = pressure_level(others / l3_bytes)
            if cache != it.cache:
                demand = it.stretch.demand(cache)
                self._demand += demand - it.demand
                it.cache, it.demand = cache, demand
                changed[query] = it
        total = self._demand
        for it in changed.values():
            self._press(it, total)
        low, high = self._calm
        if low <= total < high:
            for it in changed.values():
                low, high = max(low, it.low), min(high, it.high)
        else:
            for query, it in self.running.items():
                if not it.low <= total < it.high:
                    self._press(it, total)
                    changed[query] = it
            low = max([it.low for it in self.running.values()], default=-inf)
            high = min([it.high for it in self.running.values()], default=inf)
        self._calm = low, high
        if self._front_ns or self._halved is not None:
            return self._with_front(changed)
        self._front_new = False
        return [(query, it.stretch.course(it.cache, it.memory)) for query, it in changed.items()]

    def _press(self, it: Neighbour, total: int) -> None:
        """The memory pressure on a block where all blocks together demand so much."""
        it.memory = level = pressure_level((total - it.demand) / self._bytes_per_s)
        it.low, it.high = self._bounds[level] + it.demand, self._bounds[level + 1] + it.demand

    def _with_front(self, changed: dict[int, Neighbour]) -> list[tuple[int, Course]]:
        before, self._halved = self._halved, self._sharer() if self._front_ns else None
        courses: list[tuple[int, Course]] = []
        if self._halved != before:
            changed |= {query: self.running[query] for query in (before, self._halved) if query in self.running}
        for query, it in changed.items():
            course: Course = it.stretch.course(it.cache, it.memory)
            courses.append((query, [2 * at_ns for at_ns in course] if query == self._halved else course))
        if self._front_ns and (self._front_new or (self._halved is None) is not (before is None)):
            courses.append((FRONT, (0.0, self._front_ns if self._halved is None else 2 * self._front_ns)))
        self._front_new = False
        return courses

    def _sharer(self) -> int | None:
        """Whose core the front end is on."""
        if sum(len(it.core_set) for it in self.running.values()) < len(self._domain_of):
            return None
        return next(query for query, it in self.running.items() if self._front_core in it.core_set)
