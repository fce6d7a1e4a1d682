"""Contention for L3 domains and memory bandwidth between the running blocks, and how fast each block is under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from math import inf, log

import numpy as np

from veltair.simulation.interference_model import Timeline
from veltair.simulation.machine_model.domain_links import DomainLinks
from veltair.simulation.machine_model.execution_rate import LEVEL_BOUNDS, ExecutionRate, Segment, pressure_level
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.types import CoreSet, LayerBlock, Machine, ModelProfile, Record, State

_CORE_SETS = 1024  # whose shares are kept: of tens of thousands, a few come often


class DomainShares(Record, frozen=True):
    """How a core set lies on the machine's L3 domains.

    >>> DomainShares({0: 0.75, 1: 0.25}, [(1, 0.25)]).shares[1]
    0.25
    """

    shares: dict[int, float]  # share of its cores by domain
    shared: list[tuple[int, float]]  # shares of domains with further cores: only these have co-runners


class CoRunner(State):
    """A running block and the pressures on it.

    ::

        block = CoRunner(segment, core_set=(0, 1), domains=DomainShares({0: 1.0}, []), kept=[])  # alone on its domain
    """

    segment: Segment
    core_set: CoreSet
    domains: DomainShares
    kept: list[tuple[int, float, int]]  # (shared domain, share of its cores, bytes that it would keep there)
    cache: int = -1  # level of the pressure on its L3 domains; -1: not known yet
    demand: int = 0  # bytes per s from memory without co-runners on the memory
    memory: int = -1  # level of the pressure on the memory
    link: int = 0  # level of the pressure on the links of its L3 domains, where blocks share them
    low: float = inf  # `memory` stays while the demand of all is from here …
    high: float = inf  # … up to here


class ContentionModel:
    """An interference model in which running blocks contend for L3 domains and memory bandwidth.

    Each block presses on the others by what it would like to have. The front end works on a core that no block holds.
    Where blocks hold all cores it shares one with a block, half and half; that block then runs half as fast, whichever
    of its threads is affected, because each layer waits for the slowest thread.

    ::

        contention = ContentionModel(model, model.machine(), execution_rates, np.random.default_rng(1))
        contention.enter(block, core_set, profile, grown=False)
        for query, timeline in contention.changed():
            ...
    """

    def __init__(
        self,
        model: MachineModel,
        machine: Machine,
        execution_rates: Mapping[tuple[str, int], ExecutionRate],
        rng: np.random.Generator,
    ) -> None:
        """`machine`: the cores in use. `execution_rates`: by model and batch. `rng`: draws the costs of growth."""
        self.model = model
        self._paces, self._rng = execution_rates, rng
        self._domain_of = {core: i for i, domain in enumerate(machine.domains) for core in domain}
        self._sizes = [len(domain) for domain in machine.domains]
        self._domain_shares = lru_cache(_CORE_SETS)(self._compute_shares)
        self.running: dict[int, CoRunner] = {}  # by query
        self._inside: list[dict[int, CoRunner]] = [{} for _ in machine.domains]  # by domain, by query
        self._wanted = [0] * len(
            machine.domains
        )  # by domain: bytes that all co-runners would keep; integers, so that sums stay exact
        self._demand = 0  # of all blocks together
        self._held_last: dict[int, int] = {}  # by core: the query whose threads are awake there
        self._changed_domains: set[int] = set()  # domains that blocks entered or left
        self._links = DomainLinks(len(machine.domains), model.domain_gb_s) if model.shared_links else None
        self._l3_bytes = model.l3_bytes
        self._bytes_per_s = model.dram_gb_s * 1e9
        self._spans = list(
            pairwise(bound * self._bytes_per_s for bound in LEVEL_BOUNDS)
        )  # co-runners' demand, by level
        self._front_ns = 0.0  # of the front end's work in execution
        self._front_new = False  # that work began since `changed` was last called
        self._front_core = 0  # the core that it takes when blocks hold all cores
        self._halved: int | None = None  # the query that shares its core with the front end

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        query, running = block.query, self.running
        if query in running:
            self.leave(query)
        domains = self._domain_shares(core_set)
        rate = self._paces[profile.model, profile.batch]
        segment = rate.segment(block.start, block.versions, len(core_set), len(domains.shares))
        want_bytes, l3_bytes, inside, wanted = segment.want_bytes, self._l3_bytes, self._inside, self._wanted
        kept: list[tuple[int, float, int]] = []
        for domain, share in domains.shared:
            wants = want_bytes * share
            keeps = int(wants if wants < l3_bytes else l3_bytes)
            kept.append((domain, share, keeps))
            wanted[domain] += keeps
        running[query] = it = CoRunner(segment, core_set, domains, kept)
        for domain in domains.shares:
            inside[domain][query] = it
        self._changed_domains.update(domains.shares)
        wake_ns = self._wake(query, core_set) if self.model.wake_ns else 0.0
        if not grown:
            return wake_ns
        return float(self._rng.lognormal(log(self.model.spawn_median_ns), self.model.spawn_sigma))

    def _wake(self, query: int, core_set: CoreSet) -> float:
        """Returns how long the query's threads take to wake; those on cores that it held last are awake."""
        held_last = self._held_last
        asleep = any(held_last.get(core) != query for core in core_set)
        for core in core_set:
            held_last[core] = query
        return self.model.wake_ns if asleep else 0.0

    def _compute_shares(self, core_set: CoreSet) -> DomainShares:
        shares: dict[int, float] = {}
        cores, one = len(core_set), 1 / len(core_set)
        for core in core_set:
            domain = self._domain_of[core]
            shares[domain] = shares.get(domain, 0.0) + one
        shared = [(domain, share) for domain, share in shares.items() if round(share * cores) < self._sizes[domain]]
        return DomainShares(shares, shared)

    def leave(self, query: int) -> None:
        it = self.running.pop(query)
        self._demand -= it.demand
        inside, wanted, shares = self._inside, self._wanted, it.domains.shares
        for domain in shares:
            del inside[domain][query]
        for domain, _, keeps in it.kept:
            wanted[domain] -= keeps
        self._changed_domains.update(shares)
        if self._links is not None:
            self._links.leave(query)

    def set_front_end_work(self, work_ns: float) -> None:
        self._front_ns, self._front_new = work_ns, True
        if work_ns:
            self._front_core = int(self._rng.integers(len(self._domain_of)))

    def changed(self) -> Iterable[tuple[int | None, Timeline]]:
        if not self._changed_domains and not self._front_new:
            return []
        inside, wanted, l3_bytes = self._inside, self._wanted, self._l3_bytes
        pressed: dict[int, CoRunner] = {}  # by query
        for domain in self._changed_domains:
            pressed |= inside[domain]
        self._changed_domains.clear()
        changed: dict[int, CoRunner] = {}
        total = self._demand
        for query, it in pressed.items():
            others = 0.0  # what co-runners would keep of its domains, the mean over its cores
            for domain, share, keeps in it.kept:
                others += share * (wanted[domain] - keeps)
            cache = pressure_level(others / l3_bytes)
            if cache != it.cache:
                demand = it.segment.demand(cache)
                total += demand - it.demand
                it.cache, it.demand, it.low = cache, demand, inf  # the pressure on the memory follows below
                changed[query] = it
        self._demand, bytes_per_s = total, self._bytes_per_s
        for query, it in self.running.items():
            if not it.low <= total < it.high:
                demand = it.demand
                it.memory = memory = pressure_level((total - demand) / bytes_per_s)
                low, high = self._spans[memory]
                it.low, it.high = low + demand, high + demand
                changed[query] = it
        if self._links is not None:
            self._press_on_links(self._links, changed)
        if self._front_ns or self._halved is not None:
            return self._with_front(changed)
        self._front_new = False
        return [(query, it.segment.timeline(it.cache, it.memory, it.link)) for query, it in changed.items()]

    def _press_on_links(self, links: DomainLinks, changed: dict[int, CoRunner]) -> None:
        """Adds the blocks to `changed` on whose links the pressure is another."""
        for query, it in changed.items():
            links.draw(query, it.demand, it.domains.shares)
        beside = {query: it for domain in links.take_changed() for query, it in self._inside[domain].items()}
        for query, it in beside.items():
            link = pressure_level(links.pressure(query, it.domains.shares))
            if link != it.link:
                it.link = link
                changed[query] = it

    def _with_front(self, changed: dict[int, CoRunner]) -> list[tuple[int | None, Timeline]]:
        before, self._halved = self._halved, self._sharer() if self._front_ns else None
        timelines: list[tuple[int | None, Timeline]] = []
        if self._halved != before:
            changed |= {query: self.running[query] for query in (before, self._halved) if query in self.running}
        for query, it in changed.items():
            timeline: Timeline = it.segment.timeline(it.cache, it.memory, it.link)
            timelines.append((query, [2 * at_ns for at_ns in timeline] if query == self._halved else timeline))
        if self._front_ns and (self._front_new or (self._halved is None) is not (before is None)):
            timelines.append((None, (0.0, self._front_ns if self._halved is None else 2 * self._front_ns)))
        self._front_new = False
        return timelines

    def _sharer(self) -> int | None:
        """Returns the query whose core the front end shares, if it has to share one."""
        if sum(len(it.core_set) for it in self.running.values()) < len(self._domain_of):
            return None
        return next(query for query, it in self.running.items() if self._front_core in it.core_set)
