"""One run: a scenario under a policy on a machine model, from the first arrival to the last answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TextIO

import numpy as np

from veltair.loadgen.arrivals import Times
from veltair.loadgen.tenant_results import TenantOutcomes
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.event_log.replay import dump_decision, dump_event
from veltair.scheduler.events import Decision, StartBlock
from veltair.scheduler.interference import CounterModel, InterferenceProxy, ObservedSlowdown, PredictedDemand
from veltair.scheduler.scheduler import Scheduler
from veltair.simulate.arrivals import draw
from veltair.simulate.front_end import Front, front_cost
from veltair.simulate.machine_model.batches import works
from veltair.simulate.machine_model.calibration import calibrate
from veltair.simulate.machine_model.contention import Contention
from veltair.simulate.machine_model.layer_speed import Pace
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.modelled_profiles import Simulated
from veltair.simulate.machine_model.proxy_fit import CounterFit, Sample, fit
from veltair.simulate.machine_model.simulated_counters import PERIOD_NS, CountedContention
from veltair.simulate.scenario import Scenario
from veltair.simulate.virtual_machine import GrowthInsideLayers, VirtualMachine
from veltair.types import Machine, QoSTarget, Tenant

QUERIES = 3000  # of a run where the scenario does not say
LOOK_EVERY = 256  # events between two looks at how far it is and whether it is lost


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run showed after its warm-up."""

    tallies: list[TenantOutcomes]  # by tenant; what was not answered counts as missed
    blocks: int
    conflicts: int  # blocks that started on fewer cores than they wanted
    core_ns: float  # cores held x time
    window_ns: int
    abandoned: bool  # given up before its end

    @property
    def conflict_rate(self) -> float:
        return self.conflicts / self.blocks if self.blocks else 0.0


class Simulation:
    """A scenario on a machine; its runs share what is computed of the models."""

    def __init__(
        self,
        scenario: Scenario,
        model: MachineModel,
        models: Mapping[str, Sequence[Simulated]],
        cores: int | None = None,
    ) -> None:
        """`models`: by name, ascending by batch; `cores`: of the machine in use, by default all."""
        self.scenario, self.model = scenario, model
        self.machine: Machine = model.machine(cores)
        self.profiles = {name: [known.profile for known in by_batch] for name, by_batch in models.items()}
        by_ops = scenario.load.layer_qos == "ops"
        self._catalogue = ProfileCatalogue(self.profiles, len(self.machine.cores), split_by_ops=by_ops)
        self.paces = {
            (name, batch): Pace(work, model)
            for name, by_batch in models.items()
            for batch, work in works([(known.profile, known.work) for known in by_batch])
        }
        self._front_costs = {load.name: front_cost(model, models[load.model][0].work) for load in scenario.tenants}
        self.workers = scenario.load.workers or len(self.machine.cores)
        self.tenants = [
            Tenant(load.name, load.model, QoSTarget(load.target_ns, load.percentile), load.priority, load.max_batch > 1)
            for load in scenario.tenants
        ]

    def scheduler(self, policy: str) -> Scheduler:
        """A fresh one; a run's log replays through it."""
        load = self.scenario.load
        machine = self.machine if load.domain_aware else Machine((self.machine.cores,))
        return Scheduler(
            machine,
            self.tenants,
            self._catalogue,
            policy,
            self.workers,
            proxy=self._proxy(),
            planned_share=load.planned_share,
            growth=GrowthInsideLayers() if load.grows_inside_layers else None,
        )

    def duration_ns(self, scale: float = 1.0) -> int:
        """Of the arrivals, at `scale` times the scenario's rates."""
        load = self.scenario.load
        if load.duration_s is not None:
            return round(load.duration_s * 1e9)
        return round((load.queries or QUERIES) / (self.scenario.qps * scale) * 1e9)

    def run(
        self,
        policy: str,
        seed: int,
        scale: float = 1.0,
        *,
        planned: int | None = None,
        before: Sequence[Run] = (),
        log: TextIO | None = None,
        tick: Callable[[float], None] | None = None,
        samples: list[Sample] | None = None,
    ) -> Run:
        """The same arguments give the same run.

        `planned`: the run is given up once a tenant has missed more than so many runs together may, those `before`
        counted. `log`: gets what `scheduler.replay` reads. `tick`: is told the share of the arrivals' time that is
        over, now and then. `samples`: gets what the machine's counters showed.
        """
        duration_ns = self.duration_ns(scale)
        warm_ns = round(duration_ns * self.scenario.load.warmup)
        arrivals = draw(self.scenario, scale, seed, duration_ns)
        scheduler = self.scheduler(policy)
        rng = np.random.default_rng([seed, len(arrivals)])
        if self.scenario.load.proxy == "counters" or samples is not None:
            contention = CountedContention(self.model, self.machine, self.paces, rng, lambda: virtual.now_ns)
            virtual = VirtualMachine(scheduler, contention)
            virtual.every(PERIOD_NS, partial(contention.event, samples=samples))
        else:
            virtual = VirtualMachine(scheduler, Contention(self.model, self.machine, self.paces, rng))
        virtual.dispatch_ns = round(self.model.dispatch_ns)
        front = Front(virtual, self._front_costs)
        _send(front, self.tenants, arrivals)
        seen = _Seen(scheduler, warm_ns, duration_ns)
        abandoned = False
        allowed = None if planned is None else self._allowed(arrivals, warm_ns, planned, before)
        for count, (event, decisions) in enumerate(virtual.run()):
            seen.add(virtual.now_ns, decisions)
            front.answer(decisions)
            if log is not None:
                log.writelines(line + "\n" for line in (dump_event(event), *map(dump_decision, decisions)))
            if count % LOOK_EVERY == 0:
                if tick is not None:
                    tick(min(virtual.now_ns / duration_ns, 1.0))
                if allowed is not None and self._lost(virtual.now_ns, front, arrivals, warm_ns, allowed):
                    abandoned = True
                    break
        tallies = self._tallies(virtual, front, arrivals, warm_ns, duration_ns)
        return Run(tallies, seen.blocks, seen.conflicts, seen.core_ns, duration_ns - warm_ns, abandoned)

    @cached_property
    def counter_fit(self) -> CounterFit:
        """Counters against slowdowns, as they would be measured on the machine before it serves."""
        profiles = {name: by_batch[0] for name, by_batch in self.profiles.items()}
        return fit(calibrate(self.model, self.machine, profiles, self.paces), "calibration")

    def _proxy(self) -> InterferenceProxy:
        match self.scenario.load.proxy:
            case "counters":
                found = self.counter_fit
                return CounterModel(found.constant, found.per_miss_rate, found.per_access_per_ns)
            case "observed":
                return ObservedSlowdown()
            case "demand":
                return PredictedDemand(self.model.dram_gb_s)

    def _tallies(
        self, virtual: VirtualMachine, front: Front, arrivals: Sequence[Times], warm_ns: int, duration_ns: int
    ) -> list[TenantOutcomes]:
        tallies, first = [], 0
        for load, times in zip(self.scenario.tenants, arrivals, strict=True):
            ids = range(first, first + len(times))
            first += len(times)
            finished = np.array([id in front.ended_ns for id in ids], bool)
            done_ns = np.array([front.ended_ns.get(id, 0) for id in ids], np.int64)
            rejected = np.array([virtual.outcome.get(id) == "rejected" for id in ids], bool)
            measured = times >= warm_ns
            tally = TenantOutcomes(
                load.name,
                load.target_ns,
                load.percentile,
                window_ns=duration_ns - warm_ns,
                offered=int(measured.sum()),
                refused=int((measured & rejected).sum()),
                errors=int((measured & ~finished & ~rejected).sum()),
                served=int((finished & (done_ns >= warm_ns) & (done_ns < duration_ns)).sum()),
                latency_ns=np.sort((done_ns - times)[measured & finished]),
            )
            tallies.append(tally)
        return tallies

    def _allowed(self, arrivals: Sequence[Times], warm_ns: int, planned: int, before: Sequence[Run]) -> list[float]:
        """Misses by tenant."""
        return [
            (1 - load.percentile) * int((times >= warm_ns).sum()) * planned
            - sum(run.tallies[i].offered - run.tallies[i].in_time for run in before)
            for i, (load, times) in enumerate(zip(self.scenario.tenants, arrivals, strict=True))
        ]

    def _lost(
        self, now_ns: int, front: Front, arrivals: Sequence[Times], warm_ns: int, allowed: Sequence[float]
    ) -> bool:
        """Whether a tenant has missed more than allowed, those counted that are overdue."""
        first = 0
        ended = np.full(sum(map(len, arrivals)), np.iinfo(np.int64).max)
        for id, ended_ns in front.ended_ns.items():
            ended[id] = ended_ns
        for load, times, most in zip(self.scenario.tenants, arrivals, allowed, strict=True):
            due_ns = times + load.target_ns
            missed = (times >= warm_ns) & (due_ns < now_ns) & (ended[first : first + len(times)] > due_ns)
            if int(missed.sum()) > most:
                return True
            first += len(times)
        return False


class _Seen:
    """What is counted while a run goes on, after its warm-up and before its arrivals end."""

    __slots__ = ("_cores", "_from_ns", "_pool", "_since_ns", "_to_ns", "_used", "blocks", "conflicts", "core_ns")

    def __init__(self, scheduler: Scheduler, warm_ns: int, duration_ns: int) -> None:
        self._cores, self._pool = scheduler.state.cores, scheduler.state.pool
        self._from_ns, self._to_ns = warm_ns, duration_ns
        self._since_ns = warm_ns
        self._used = 0  # cores, since the last event
        self.blocks = self.conflicts = 0
        self.core_ns = 0.0

    def add(self, now_ns: int, decisions: list[Decision]) -> None:
        if now_ns >= self._from_ns and self._since_ns < self._to_ns:
            until_ns = now_ns if now_ns < self._to_ns else self._to_ns
            self.core_ns += self._used * (until_ns - self._since_ns)
            self._since_ns = until_ns
            if now_ns < self._to_ns:
                for decision in decisions:
                    if isinstance(decision, StartBlock):
                        self.blocks += 1
                        self.conflicts += decision.conflict
        self._used = self._cores - self._pool.free


def _send(front: Front, tenants: Sequence[Tenant], arrivals: Sequence[Times]) -> None:
    """Queries are numbered through tenant by tenant."""
    id = 0
    for tenant, times in zip(tenants, arrivals, strict=True):
        for time_ns in times.tolist():
            front.send(id, tenant, time_ns)
            id += 1
