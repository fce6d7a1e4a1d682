"""Many machines behind a router: every query ends once, runs repeat, and one machine is the simulator's machine."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_machine, small_model

from veltair.errors import ConfigError
from veltair.simulation.arrivals import draw_arrivals
from veltair.simulation.headroom import MachineReport
from veltair.simulation.machine_cluster import MachineCluster, check_cluster
from veltair.simulation.routers import ROUTERS, DeadlineRouter, PowerOfTwoChoices, RouterView
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import (
    MachineFailure,
    RoutingSettings,
    SimulationScenario,
    TenantWorkload,
    WorkloadShape,
)

MODEL = small_machine(6, domain_cores=2)
MODELS = {"m0": [small_model(MODEL, "ck", "m0")], "m1": [small_model(MODEL, "ksc", "m1")]}


def simulation(failures=(), *, share=0.8, queries=60, warmup=0.0, machines=None, routing=None):
    """Two tenants that keep each machine busy for `share` of its time; `machines`: where the second is resident."""
    tenants = []
    for name, (known,) in MODELS.items():
        one_core_ns = sum(versions[0].latency.at(1.0, 1) for versions in known.profile.versions)
        qps = share * 6 / one_core_ns * 1e9 / 2
        where = machines if name == "m1" else None
        tenants.append(TenantWorkload(name=name, qps=qps, target_ms=one_core_ns / 1e6, machines=where))
    load = WorkloadShape(queries=queries, warmup=warmup)
    scenario = SimulationScenario(tuple(tenants), load, tuple(failures), routing or RoutingSettings(5.0, 0.5, 2.0))
    return Simulation(scenario, MODEL, MODELS)


@st.composite
def clusters(draw):
    machines = draw(st.integers(1, 4))
    plain = simulation(share=draw(st.sampled_from((0.3, 1.0, 2.5))), queries=draw(st.integers(1, 80)))
    length_s = plain.duration_ns(machines) / 1e9
    failures = []
    for machine in draw(st.sets(st.integers(0, machines - 1))):
        at_s = length_s * draw(st.floats(0, 1))
        back_s = at_s + length_s * draw(st.floats(0.01, 1)) if draw(st.booleans()) else None
        failures.append(MachineFailure(machine=machine, at_s=at_s, back_s=back_s))
    period_ms, delay_ms, notice_ms = (length_s * 1e3 * draw(st.sampled_from((0.01, 0.1, 0.5))) for _ in range(3))
    routing = RoutingSettings(max(0.1, period_ms), delay_ms, notice_ms)
    scenario = msgspec.structs.replace(plain.scenario, failures=tuple(failures), routing=routing)
    return Simulation(scenario, MODEL, MODELS), machines


@pytest.mark.parametrize("router", ROUTERS)
@settings(max_examples=25)
@given(drawn=clusters(), seed=st.integers(0, 5), policy=st.sampled_from(("veltair", "fcfs", "veltair-full")))
def test_every_query_ends_once_and_runs_repeat(router, drawn, seed, policy):
    known, machines = drawn
    cluster = MachineCluster(known, policy, router, machines, seed)
    run = cluster.run()  # raises where a query ends twice or a machine keeps one
    arrivals = draw_arrivals(known.scenario, machines, seed, cluster.duration_ns)
    assert sorted(cluster.outcome) == list(range(sum(map(len, arrivals))))
    ends = Counter(cluster.outcome.values())
    assert ends.keys() <= {"answered", "rejected", "unrouted", "lost"}
    assert sum(len(each.latency_ns) for each in run.outcomes) == ends["answered"]
    assert sum(each.refused for each in run.outcomes) == ends["rejected"] + ends["unrouted"]
    assert sum(each.errors for each in run.outcomes) == ends["lost"]
    if not known.scenario.failures:
        assert not ends["lost"] and not ends["unrouted"]
    again = MachineCluster(known, policy, router, machines, seed)
    repeated = again.run()
    assert again.outcome == cluster.outcome and repeated.core_ns == run.core_ns
    for one, other in zip(run.outcomes, repeated.outcomes, strict=True):
        assert np.array_equal(one.latency_ns, other.latency_ns)


@pytest.mark.parametrize("router", ROUTERS)
def test_one_machine_behind_a_router_is_the_machine_without_one(router):
    known = simulation(queries=120, warmup=0.2)
    alone, routed = known.run("veltair", 3), MachineCluster(known, "veltair", router, 1, 3).run()
    assert (routed.blocks, routed.conflicts, routed.core_ns) == (alone.blocks, alone.conflicts, alone.core_ns)
    for one, other in zip(alone.outcomes, routed.outcomes, strict=True):
        assert (one.offered, one.refused, one.served) == (other.offered, other.refused, other.served)
        assert np.array_equal(one.latency_ns, other.latency_ns)


def test_a_dead_machine_loses_what_it_holds_and_what_is_sent_before_the_death_is_known():
    length_s = simulation().duration_ns(1) / 1e9
    never = simulation([MachineFailure(machine=0, at_s=0.0)], routing=RoutingSettings(notice_ms=length_s * 500))
    cluster = MachineCluster(never, "veltair", "round-robin", 1, 1)
    cluster.run()
    ends = Counter(cluster.outcome.values())
    assert ends.keys() == {"lost", "unrouted"} and min(ends.values()) > 5
    back = MachineFailure(machine=0, at_s=0.0, back_s=length_s / 2)
    cluster = MachineCluster(simulation([back], routing=RoutingSettings(notice_ms=0.0)), "veltair", "deadlines", 1, 1)
    cluster.run()
    ends = Counter(cluster.outcome.values())
    assert ends["answered"] > 5 and ends["unrouted"] > 5


@pytest.mark.parametrize("router", ROUTERS)
def test_a_tenant_goes_only_where_it_is_resident(router):
    gone = simulation([MachineFailure(machine=2, at_s=0.0)], machines=(2,), routing=RoutingSettings(notice_ms=0.0))
    cluster = MachineCluster(gone, "veltair", router, 4, 1)
    first, second = cluster.run().outcomes
    assert second.refused + second.errors == second.offered > 0
    assert len(first.latency_ns) > 0


def view(queues, machines=3):
    return RouterView(machines, 4, (10e6, 20e6), (10e6, 20e6), Random(1), queues.__getitem__)


def test_two_choices_never_takes_the_longest_queue():
    router = PowerOfTwoChoices(view([5, 9, 1]))
    assert {router.choose(0, [0, 1, 2], 0) for _ in range(50)} == {0, 2}


def test_the_router_of_deadlines_goes_by_headroom_and_debt():
    router = DeadlineRouter(view([]))
    assert {router.choose(0, [0, 1, 2], 0) for _ in range(3)} == {0, 1, 2}  # it counts what it has sent
    for machine, held, debt in ((0, (2, 0), 0.0), (1, (0, 0), 0.0), (2, (0, 0), 0.4)):
        router.report(MachineReport(machine, 1, held, (debt, 0.0)))
    assert router.choose(0, [0, 1, 2], 1) == 1
    assert router.choose(1, [0, 2], 1) == 2  # the debt is another tenant's
    assert router.choose(0, [0, 2], 30_000_000) == 0  # its queries have left by now, the debt stays


@pytest.mark.parametrize(
    ("changes", "machines", "said"),
    [
        ({}, 0, "expected 1 to 10000 machines, got 0"),
        ({"failures": (MachineFailure(machine=2, at_s=0.0),)}, 2, r"failures\[0\].machine: expected below 2, got 2"),
        ({"load": WorkloadShape(proxy="counters")}, 2, "load.proxy"),
        ({"tenants": (TenantWorkload(name="m0", qps=1.0, target_ms=1.0, machines=(3,)),)}, 3, "expected below 3, got"),
        ({"tenants": (TenantWorkload(name="m0", qps=1.0, target_ms=1.0, machines=()),)}, 3, "at least one machine"),
    ],
)
def test_what_no_cluster_can_be(changes, machines, said):
    with pytest.raises(ConfigError, match=said):
        check_cluster(msgspec.structs.replace(simulation().scenario, **changes), machines)
