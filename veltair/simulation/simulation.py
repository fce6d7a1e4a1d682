"""A scenario under a policy on a machine model, from the first arrival to the last answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TextIO

import numpy as np

from veltair.loadgen.arrivals import Times
from veltair.loadgen.tenant_results import TenantOutcomes
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.event_log.header import InterferenceSettings, SchedulerSettings
from veltair.scheduler.event_log.records import dump_decision, dump_event
from veltair.scheduler.interference import CounterModel, InterferenceProxy, ObservedSlowdown, PredictedDemand
from veltair.scheduler.running_block import BlockGrowth
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.arrivals import draw_arrivals
from veltair.simulation.front_end import FrontEnd, front_end_cost
from veltair.simulation.machine_model.batched_shapes import interpolate_work
from veltair.simulation.machine_model.calibration import calibrate
from veltair.simulation.machine_model.contention_model import ContentionModel
from veltair.simulation.machine_model.counter_fit import CounterFit, SlowdownSample, fit_counters
from veltair.simulation.machine_model.counting_contention import PERIOD_NS, CountingContention
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.modelled_profiles import SimulatedModel
from veltair.simulation.miss_budget import MissBudget, MissWatch
from veltair.simulation.simulation_run import RunMeter, SimulationRun
from veltair.simulation.simulation_scenario import SimulationScenario
from veltair.simulation.virtual_machine import GrowthInsideLayers, VirtualMachine
from veltair.types import Machine, QoSTarget, Tenant

QUERIES = 3000  # of a run where the scenario does not say
REPORT_EVENTS = 256  # events between two looks at the progress and at whether the run is lost


class Simulation:
    """A scenario on a machine; its runs share everything that is computed about the models.

    ::

        model = load_machine_model("threadripper-3990x")
        simulation = Simulation(scenario, model, scenario_models(scenario, model))
        simulation.run("veltair", seed=1).outcomes[0].qos_rate
    """

    def __init__(
        self,
        scenario: SimulationScenario,
        model: MachineModel,
        models: Mapping[str, Sequence[SimulatedModel]],
        cores: int | None = None,
    ) -> None:
        """`models`: by name, ascending by batch. `cores`: how many cores of the machine are in use, by default all."""
        self.scenario, self.model, self.cores = scenario, model, cores
        self.machine: Machine = model.machine(cores)
        self.profiles = {name: [known.profile for known in by_batch] for name, by_batch in models.items()}
        by_ops = scenario.load.layer_qos == "ops"
        self.catalogue = ProfileCatalogue(self.profiles, len(self.machine.cores), split_by_ops=by_ops)
        self.execution_rates = {
            (name, batch): ExecutionRate(work, model, by_batch[0].folded)
            for name, by_batch in models.items()
            for batch, work in interpolate_work([(known.profile, known.work) for known in by_batch])
        }
        self._front_end_costs = {
            load.name: front_end_cost(model, models[load.model][0].work) for load in scenario.tenants
        }
        self.workers = scenario.load.workers or len(self.machine.cores)
        self.tenants = [
            Tenant(
                load.name,
                load.model,
                QoSTarget(load.target_ns, load.percentile),
                load.priority,
                batching=load.max_batch > 1,
                weight=load.weight,
            )
            for load in scenario.tenants
        ]

    def scheduler(self, policy: str) -> Scheduler:
        """Returns a new scheduler; the log of a run replays through it."""
        return self.scheduler_settings(policy).make_scheduler(self.catalogue, self.growth)

    def scheduler_settings(self, policy: str) -> SchedulerSettings:
        """Returns what the scheduler of a run is made of, without the profiles; its log begins with that."""
        load, proxy = self.scenario.load, self._proxy()
        return SchedulerSettings(
            policy,
            self.machine if load.domain_aware else Machine((self.machine.cores,)),
            self.workers,
            load.planned_share,
            tuple(self.tenants),
            InterferenceSettings(proxy.name, proxy.settings),
        )

    @property
    def growth(self) -> BlockGrowth:
        """How blocks of this machine take up cores while they run."""
        load = self.scenario.load
        return GrowthInsideLayers(load.conflict_cost == "layer") if load.grows_inside_layers else BlockGrowth()

    def duration_ns(self, scale: float = 1.0) -> int:
        """Returns how long queries arrive at `scale` times the scenario's rates."""
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
        budget: MissBudget | None = None,
        log: TextIO | None = None,
        report: Callable[[float], None] | None = None,
        samples: list[SlowdownSample] | None = None,
    ) -> SimulationRun:
        """Runs the scenario once; the same arguments give the same run.

        Args:
            policy: name of a scheduling policy.
            seed: of the arrivals and of what varies on the machine.
            scale: factor on the scenario's rates.
            budget: what may be missed; the run is given up once it has missed more. None: it runs to its end.
            log: gets the lines that `event_log.replay` reads.
            report: gets the share of the arrivals' time that is over, now and then.
            samples: gets the readings of the machine's counters.
        """
        duration_ns = self.duration_ns(scale)
        warm_ns = round(duration_ns * self.scenario.load.warmup)
        arrivals = draw_arrivals(self.scenario, scale, seed, duration_ns)
        scheduler = self.scheduler(policy)
        rng = np.random.default_rng([seed, len(arrivals)])
        if self.scenario.load.proxy == "counters" or samples is not None:
            contention = CountingContention(self.model, self.machine, self.execution_rates, rng, lambda: virtual.now_ns)
            virtual = VirtualMachine(scheduler, contention)
            virtual.call_every(PERIOD_NS, partial(contention.event, samples=samples))
            virtual.dispatch_ns = round(self.model.dispatch_ns)
        else:
            virtual = self.virtual_machine(scheduler, rng)
        front_end = self.front_end(virtual)
        _send(front_end, self.tenants, arrivals)
        meter = RunMeter(scheduler, warm_ns, duration_ns)
        abandoned = False
        watch = None if budget is None else MissWatch(budget, self.scenario.tenants, arrivals, warm_ns)
        for count, (event, decisions) in enumerate(virtual.run()):
            meter.add(virtual.now_ns, decisions)
            front_end.answer(decisions)
            if log is not None:
                log.writelines(line + "\n" for line in (dump_event(event), *map(dump_decision, decisions)))
            if count % REPORT_EVENTS == 0:
                if report is not None:
                    report(min(virtual.now_ns / duration_ns, 1.0))
                if watch is not None and watch.is_lost(virtual.now_ns, front_end.ended_ns):
                    abandoned = True
                    break
        outcomes = self.outcomes(front_end.ended_ns, virtual.outcome, arrivals, duration_ns)
        return SimulationRun(outcomes, meter.blocks, meter.conflicts, meter.core_ns, duration_ns - warm_ns, abandoned)

    @cached_property
    def counter_fit(self) -> CounterFit:
        """Counters against slowdowns, as they would be measured on the machine before it serves."""
        profiles = {name: by_batch[0] for name, by_batch in self.profiles.items()}
        return fit_counters(calibrate(self.model, self.machine, profiles, self.execution_rates), "calibration")

    def _proxy(self) -> InterferenceProxy:
        match self.scenario.load.proxy:
            case "counters":
                found = self.counter_fit
                return CounterModel(found.constant, found.per_miss_rate, found.per_access_per_ns)
            case "observed":
                return ObservedSlowdown()
            case "demand":
                return PredictedDemand(self.model.dram_gb_s)

    def virtual_machine(self, scheduler: Scheduler, rng: np.random.Generator) -> VirtualMachine:
        """Returns a machine of this kind that has nothing to do yet."""
        contention = ContentionModel(self.model, self.machine, self.execution_rates, rng)
        return VirtualMachine(scheduler, contention, dispatch_ns=round(self.model.dispatch_ns))

    def front_end(self, virtual: VirtualMachine) -> FrontEnd:
        return FrontEnd(virtual, self._front_end_costs)

    def outcomes(
        self, answered_ns: Mapping[int, int], outcome: Mapping[int, str], arrivals: Sequence[Times], duration_ns: int
    ) -> list[TenantOutcomes]:
        """Returns what became of the queries of each tenant; those that neither were answered nor refused are errors.

        Args:
            answered_ns: by query: when the client had its answer.
            outcome: by query: how it ended.
        """
        warm_ns = round(duration_ns * self.scenario.load.warmup)
        outcomes, first = [], 0
        for load, times in zip(self.scenario.tenants, arrivals, strict=True):
            ids = range(first, first + len(times))
            first += len(times)
            finished = np.array([id in answered_ns for id in ids], bool)
            done_ns = np.array([answered_ns.get(id, 0) for id in ids], np.int64)
            rejected = np.array([outcome.get(id) == "rejected" for id in ids], bool)
            measured = times >= warm_ns
            found = TenantOutcomes(
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
            outcomes.append(found)
        return outcomes


def _send(front_end: FrontEnd, tenants: Sequence[Tenant], arrivals: Sequence[Times]) -> None:
    """Sends all queries, numbered tenant by tenant."""
    id = 0
    for tenant, times in zip(tenants, arrivals, strict=True):
        for time_ns in times.tolist():
            front_end.send(id, tenant, time_ns)
            id += 1
