"""Helper of the tests: random stories, carried out on a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, snapshot

from veltair.scheduler.events import (
    BlockFailed,
    CountersSampled,
    EdgeTimed,
    QueryArrived,
    QueryCancelled,
    QueryRuns,
    WorkersChanged,
)
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.scheduler import Scheduler
from veltair.scheduler.steps import Stop
from veltair.simulation.interference_model import Alone
from veltair.simulation.virtual_machine import GrowthInsideLayers, VirtualMachine
from veltair.types import CounterSample, LayerBlock, Machine, ModelProfile, Tenant

LEVELS = (1.0, 1.5, 3.0)
TOO_LARGE = 9  # samples of a query, for every profile


class CheckedPolicy(Policy):
    """A policy that also stops some blocks without need; it notices if a question changes the scheduler's state."""

    def __init__(self, policy, stops):
        self.policy = policy
        self.stopped = 0
        self._stops = list(stops)

    def next_step(self, state, now_ns):
        while self._stops and self._stops[0][0] <= now_ns:
            active = state.in_flight.get(self._stops.pop(0)[1])
            if active is not None and active.state is QueryState.RUNNING:
                self.stopped += 1
                return Stop(active)
        before = snapshot(state)
        step = self.policy.next_step(state, now_ns)
        assert snapshot(state) == before
        return step

    def query_arrived(self, active, now_ns):
        self.policy.query_arrived(active, now_ns)

    def block_ended(self, active, run, stop, elapsed_ns):
        self.policy.block_ended(active, run, stop, elapsed_ns)

    def query_ended(self, active, now_ns):
        self.policy.query_ended(active, now_ns)


class Claiming(Scheduler):
    """Is told of every second query that finds nobody in flight when it runs already, by a standing order."""

    def handle(self, event):
        state = self.state
        claims = isinstance(event, QueryArrived) and event.query.id % 2 and state.workers
        if claims and event.query.batch != TOO_LARGE and not (state.waiting or state.in_flight):
            costs = self.admission.admit(event.query).costs
            cores, layers = costs.cores - event.query.id % costs.cores, costs.layers
            block = LayerBlock(event.query.id, 0, layers, (0,) * layers, cores, predicted_ns=20 * layers)
            event = QueryRuns(event.time_ns, event.query, block, LEVELS[event.query.id % 3])
        return super().handle(event)


@dataclass
class Story:
    """A machine, its tenants, and all that happens to it from outside."""

    machine: Machine
    tenants: list[Tenant]
    profiles: dict[str, list[ModelProfile]]
    workers: int
    outside: list  # events
    stops: list[tuple[int, int]]  # (time_ns, query): blocks that the policy stops without need, ascending
    slowdowns: list[int]  # percent of the profile's time; layers take turns
    grows_inside_layers: bool

    def scheduler(self, policy, make=Scheduler):
        growth = GrowthInsideLayers() if self.grows_inside_layers else None
        checked = CheckedPolicy(POLICIES[policy](), self.stops)
        return make(self.machine, self.tenants, self.profiles, checked, self.workers, growth=growth)

    def layer_ns(self, scheduler):
        def time_ns(query, layer, version, cores):
            profile = scheduler.state.in_flight[query].costs.profile
            solo = profile.versions[layer][version].latency.latency_ns[0][cores - 1]
            return 1 + solo * self.slowdowns[(query * 7 + layer) % len(self.slowdowns)] // 100

        return time_ns

    def tell(self, policy, make=Scheduler):
        """Runs it all and yields (scheduler, machine, event, decisions)."""
        scheduler = self.scheduler(policy, make)
        virtual = VirtualMachine(scheduler, Alone(self.layer_ns(scheduler)))
        for event in self.outside:
            virtual.add_event(event)
        for event, decisions in virtual.run():
            yield scheduler, virtual, event, decisions


@st.composite
def stories(draw):
    """Draws machines of up to 12 cores, one or two models, up to 12 queries, and what else happens."""
    sizes = draw(st.sampled_from(((1,), (2,), (1, 1), (3,), (2, 2), (4, 1, 3), (4, 4, 4), (8, 8))))
    cores = draw(st.sampled_from((1, sum(sizes), sum(sizes), sum(sizes) + 1)))  # what the profiles measured
    numbers = Random(draw(st.integers(0, 2**32)))  # a table drawn number by number takes far longer

    def version(batch):
        """Times that shrink with the cores as Amdahl says and grow with level and batch, give or take."""
        work_ns, serial, frail = numbers.randint(10, 300) * batch**0.7, numbers.random(), numbers.random()
        return [
            [
                round(1 + work_ns * (serial + (1 - serial) / c) * level**frail * numbers.uniform(0.8, 1.2))
                for c in range(1, cores + 1)
            ]
            for level in LEVELS
        ]

    def model(name, batch, depth):
        layers = [[version(batch) for _ in range(numbers.randint(1, 3))] for _ in range(depth)]
        return make_profile(layers, levels=LEVELS, model=name, batch=batch, nbytes=64)

    depths = {name: numbers.randint(1, 8) for name in ["x", "y"][: draw(st.integers(1, 2))]}
    profiles = {name: [model(name, batch, depth) for batch in (1, 2, 8)] for name, depth in depths.items()}
    tenants = []
    for name, (small, *_) in profiles.items():
        one_core_ns = sum(versions[0].latency.at(1.0, 1) for versions in small.versions)
        percent = numbers.choice((30, 80, 150, 300, 800))
        tenants.append(
            make_tenant(1 + one_core_ns * percent // 100, name=f"t-{name}", model=name, batching=numbers.random() < 0.7)
        )
    priority_levels = numbers.choice(((3,), (1, 3, 4)))
    queries, events, stops, now = [], [], [], 0
    work_ns = sum(versions[0].latency.at(1.0, 1) for versions in small.versions)
    gap_ns = work_ns / sum(sizes) * numbers.choice((0.1, 0.5, 1, 2, 5))
    for id in range(draw(st.integers(1, 12))):
        now += round(numbers.expovariate(1 / gap_ns))
        on = draw(st.sampled_from(tenants)).name
        batch, level = draw(st.sampled_from((1, 1, 1, 2, TOO_LARGE))), numbers.choice(priority_levels)
        queries.append(make_query(id, now, on, batch=batch, priority_level=level))
        events.append(QueryArrived(now, queries[-1]))
    for _ in range(draw(st.integers(0, 24))):
        victim = draw(st.sampled_from(queries))
        at = victim.arrival_ns + numbers.randint(0, work_ns)
        kind = draw(st.sampled_from(("cancel", "fail", "workers", "counters", "edge", *["stop"] * 4)))
        match kind:
            case "cancel":
                events.append(QueryCancelled(at, victim.id))
            case "fail":
                events.append(BlockFailed(at, victim.id, "died"))
            case "workers":
                events.append(WorkersChanged(at, draw(st.integers(0, 4))))
            case "counters":
                events.append(CountersSampled(at, CounterSample(at, 10, 5, 1, "test")))
            case "edge":
                events.append(EdgeTimed(at, {tenant.name: numbers.randint(0, 2 * work_ns) for tenant in tenants}))
            case _:
                stops.append((at, victim.id))
                # an event, so that the policy is asked
                events.append(CountersSampled(at, CounterSample(at, 10, 5, 1, "test")))
    events.append(WorkersChanged(now + work_ns + 1, draw(st.integers(1, 4))))  # so that it does not end with 0
    events.sort(key=lambda event: event.time_ns)
    slowdowns = [numbers.randint(50, 250) for _ in range(5)]
    workers, inside = draw(st.sampled_from((0, 1, 2, 4, 8))), draw(st.booleans())
    return Story(make_machine(*sizes), tenants, profiles, workers, events, sorted(stops), slowdowns, inside)
