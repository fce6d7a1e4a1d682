"""Who runs beside whom: the surroundings of every block on a machine model, and what they make of its speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from math import inf, log

import numpy as np

from veltair.simulate.interference_model import FRONT, Timeline
from veltair.simulate.machine_model.layer_speed import LEVEL_BOUNDS, Pace, Stretch, pressure_level
from veltair.simulate.machine_model.machines import MachineModel
from veltair.types import CoreSet, LayerBlock, Machine, ModelProfile, Record, State

_PLACES = 1024  # core sets that are kept: of tens of thousands, a few come often


class Place(Record, frozen=True):
    """A core set on the machine's L3 domains."""

    shares: dict[int, float]  # of its cores, by domain
    shared: list[tuple[int, float]]  # those of domains that have more cores: only there are neighbours


class Neighbour(State):
    """A running block, and what it has to bear."""

    stretch: Stretch
    core_set: CoreSet
    place: Place
    kept: list[tuple[int, float, int]]  # (shared domain, share of its cores, bytes of it that it would keep)
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
        self._sizes = [len(domain) for domain in machine.domains]
        self._place = lru_cache(_PLACES)(self._placed)
        self.running: dict[int, Neighbour] = {}  # by query
        self._inside: list[dict[int, Neighbour]] = [{} for _ in machine.domains]  # by domain, by query
        self._wanted = [0] * len(machine.domains)  # bytes of it that all who share it would keep; whole, so exact
        self._demand = 0  # of all together
        self._stirred: set[int] = set()  # domains that blocks entered or left
        self._l3_bytes = model.l3_bytes
        self._bytes_per_s = model.dram_gb_s * 1e9
        self._spans = list(pairwise(bound * self._bytes_per_s for bound in LEVEL_BOUNDS))  # others' demand, by level
        self._front_ns = 0.0  # of the work that it is at
        self._front_new = False  # it has turned to it since `changed` was last called
        self._front_core = 0  # where it goes when all cores are held
        self._halved: int | None = None  # the query that shares its core with the front end

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        query, running = block.query, self.running
        if query in running:
            self.leave(query)
        place = self._place(core_set)
        pace = self._paces[profile.model, profile.batch]
        stretch = pace.stretch(block.start, block.versions, len(core_set), len(place.shares))
        want_bytes, l3_bytes, inside, wanted = stretch.want_bytes, self._l3_bytes, self._inside, self._wanted
        kept: list[tuple[int, float, int]] = []
        for domain, share in place.shared:
            wants = want_bytes * share
            keeps = int(wants if wants < l3_bytes else l3_bytes)
            kept.append((domain, share, keeps))
            wanted[domain] += keeps
        running[query] = it = Neighbour(stretch, core_set, place, kept)
        for domain in place.shares:
            inside[domain][query] = it
        self._stirred.update(place.shares)
        if not grown:
            return 0.0
        return float(self._rng.lognormal(log(self.model.spawn_median_ns), self.model.spawn_sigma))

    def _placed(self, core_set: CoreSet) -> Place:
        shares: dict[int, float] = {}
        cores, one = len(core_set), 1 / len(core_set)
        for core in core_set:
            domain = self._domain_of[core]
            shares[domain] = shares.get(domain, 0.0) + one
        shared = [(domain, share) for domain, share in shares.items() if round(share * cores) < self._sizes[domain]]
        return Place(shares, shared)

    def leave(self, query: int) -> None:
        it = self.running.pop(query)
        self._demand -= it.demand
        inside, wanted, shares = self._inside, self._wanted, it.place.shares
        for domain in shares:
            del inside[domain][query]
        for domain, _, keeps in it.kept:
            wanted[domain] -= keeps
        self._stirred.update(shares)

    def attend(self, work_ns: float) -> None:
        self._front_ns, self._front_new = work_ns, True
        if work_ns:
            self._front_core = int(self._rng.integers(len(self._domain_of)))

    def changed(self) -> Iterable[tuple[int, Timeline]]:
        if not self._stirred and not self._front_new:
            return []
        inside, wanted, l3_bytes = self._inside, self._wanted, self._l3_bytes
        pressed: dict[int, Neighbour] = {}  # by query
        for domain in self._stirred:
            pressed |= inside[domain]
        self._stirred.clear()
        changed: dict[int, Neighbour] = {}
        total = self._demand
        for query, it in pressed.items():
            others = 0.0  # would keep so much of its domains, the mean over its cores
            for domain, share, keeps in it.kept:
                others += share * (wanted[domain] - keeps)
            cache = pressure_level(others / l3_bytes)
            if cache != it.cache:
                demand = it.stretch.demand(cache)
                total += demand - it.demand
                it.cache, it.demand, it.low = cache, demand, inf  # the pressure on the memory is looked at below
                changed[query] = it
        self._demand, bytes_per_s = total, self._bytes_per_s
        for query, it in self.running.items():
            if not it.low <= total < it.high:
                demand = it.demand
                it.memory = memory = pressure_level((total - demand) / bytes_per_s)
                low, high = self._spans[memory]
                it.low, it.high = low + demand, high + demand
                changed[query] = it
        if self._front_ns or self._halved is not None:
            return self._with_front(changed)
        self._front_new = False
        return [(query, it.stretch.course(it.cache, it.memory)) for query, it in changed.items()]

    def _with_front(self, changed: dict[int, Neighbour]) -> list[tuple[int, Timeline]]:
        before, self._halved = self._halved, self._sharer() if self._front_ns else None
        courses: list[tuple[int, Timeline]] = []
        if self._halved != before:
            changed |= {query: self.running[query] for query in (before, self._halved) if query in self.running}
        for query, it in changed.items():
            course: Timeline = it.stretch.course(it.cache, it.memory)
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
