"""Whole runs under every policy: what the log shows of them, and what is made of it."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_machine, small_model

from veltair.errors import UserError
from veltair.scheduler.event_log.records import load_decision, load_event
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.events import (
    BlockFinished,
    BlockGrown,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    RejectQuery,
    StartBlock,
)
from veltair.scheduler.policies.by_name import POLICIES
from veltair.simulation.arrivals import draw_arrivals
from veltair.simulation.miss_budget import MissBudget
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape

IN_ORDER = {"fcfs", "layerwise", "block-6", "block-11", "veltair-ac", "veltair-full", "veltair-as"}


@pytest.mark.parametrize(("aware", "second"), [(True, (4, 5, 6)), (False, (2, 3, 4))])
def test_cores_are_handed_out_by_domain_or_by_number(aware, second):
    model, tenant = small_machine(16), TenantWorkload(name="m", qps=1.0, target_ms=100.0)
    scenario = SimulationScenario((tenant,), WorkloadShape(queries=1, domain_aware=aware))
    pool = Simulation(scenario, model, {"m": [small_model(model, "c")]}).scheduler("fcfs").state.pool
    assert [pool.take(2), pool.take(3)] == [(0, 1), second]


@st.composite
def simulations(draw_):
    """Small simulations: one or two models, few or many cores, idle to overloaded."""
    cores = draw_(st.sampled_from((1, 3, 6, 16)))
    model = small_machine(cores, domain_cores=draw_(st.sampled_from((1, 2, 4))))
    texts = draw_(st.lists(st.sampled_from(("c", "s", "ck", "ksc", "ccsck", "kkksssccc")), min_size=1, max_size=2))
    models = {f"m{i}": [small_model(model, text, f"m{i}")] for i, text in enumerate(texts)}
    tenants = []
    for name, (known,) in models.items():
        one_core_ns = sum(versions[0].latency.at(1.0, 1) for versions in known.profile.versions)
        target_ms = one_core_ns / 1e6 * draw_(st.sampled_from((0.2, 0.7, 1.5, 4.0)))
        load = draw_(st.sampled_from((0.2, 0.8, 1.6)))
        qps = load * cores / one_core_ns * 1e9 / len(texts)
        tenants.append(TenantWorkload(name=name, model=name, qps=qps, target_ms=target_ms))
    load = WorkloadShape(queries=draw_(st.integers(1, 40)), warmup=0.2, workers=draw_(st.sampled_from((None, 1, 3))))
    return Simulation(SimulationScenario(tuple(tenants), load), model, models)


def told(simulation, policy, seed):
    """A run, and its log as events and decisions in turn."""
    log = io.StringIO()
    run = simulation.run(policy, seed, log=log)
    lines = log.getvalue().splitlines()
    kinds = {QueryArrived, BlockFinished, BlockGrown}
    return run, lines, [load_event(line) if _is_event(line, kinds) else load_decision(line) for line in lines]


def _is_event(line, kinds):
    return any(f'"type":"{kind.__name__}"' in line for kind in kinds)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=12)
@given(data=st.data())
def test_what_holds_in_every_run(policy, data):
    simulation = data.draw(simulations())
    seed = data.draw(st.integers(0, 5))
    run, lines, entries = told(simulation, policy, seed)
    cores = set(simulation.machine.cores)
    held, reached, ended, arrived, started = {}, {}, {}, {}, []
    blocks = {}
    now_ns = 0
    for entry in entries:
        if hasattr(entry, "time_ns"):
            assert entry.time_ns >= now_ns
            now_ns = entry.time_ns
        match entry:
            case QueryArrived(query=query):
                arrived[query.id] = query
                reached[query.id] = 0
            case StartBlock(block=block, core_set=core_set):
                assert block.query not in held and block.query not in ended
                assert block.start == reached[block.query] < block.stop
                if block.start == 0 and block.query not in started:
                    started.append(block.query)
                held[block.query], blocks[block.query] = core_set, block
            case GrowBlock(query=query, core_set=core_set):
                assert set(held[query]) < set(core_set)
                held[query] = core_set
            case BlockGrown(query=query, layer=layer, core_set=core_set):
                assert core_set == held[query] and blocks[query].start < layer < blocks[query].stop
            case BlockFinished(query=query, stop=stop):
                assert blocks[query].start < stop <= blocks[query].stop
                reached[query] = stop
                del held[query]
            case FinishQuery(query=query) | RejectQuery(query=query):
                assert query not in ended and query not in held
                ended[query] = type(entry)
                layers = len(simulation.profiles[arrived[query].tenant][0].layers)
                assert type(entry) is RejectQuery or reached[query] == layers
        used = [core for core_set in held.values() for core in core_set]
        assert len(used) == len(set(used)) and set(used) <= cores
    assert ended.keys() == arrived.keys() and not held
    if policy in IN_ORDER:
        order = sorted(arrived, key=lambda id: (arrived[id].arrival_ns, id))
        assert started == order

    assert replay(simulation.scheduler(policy), lines) == sum(hasattr(entry, "time_ns") for entry in entries)
    again, same, _ = told(simulation, policy, seed)
    assert same == lines
    assert [outcome.latency_ns.tolist() for outcome in again.outcomes] == [
        outcome.latency_ns.tolist() for outcome in run.outcomes
    ]

    _agrees(simulation, run, entries, seed)


def _agrees(simulation, run, entries, seed):
    """The run's numbers with those read from its log."""
    duration_ns = simulation.duration_ns()
    warm_ns = round(duration_ns * 0.2)
    at, arrived, done, refused = 0, {}, {}, set()
    blocks = conflicts = 0
    core_ns, since_ns, held = 0.0, 0, {}
    for entry in entries:
        if hasattr(entry, "time_ns"):
            low, high = (min(max(t, warm_ns), duration_ns) for t in (since_ns, entry.time_ns))
            core_ns += (high - low) * sum(map(len, held.values()))
            at = since_ns = entry.time_ns
        match entry:
            case QueryArrived(query=query):
                arrived[query.id] = query
            case StartBlock(block=block, core_set=core_set, conflict=conflict):
                held[block.query] = core_set
                if warm_ns <= at < duration_ns:
                    blocks += 1
                    conflicts += conflict
            case GrowBlock(query=query, core_set=core_set):
                held[query] = core_set
            case BlockFinished(query=query):
                del held[query]
            case FinishQuery(query=query):
                done[query] = at
            case RejectQuery(query=query):
                refused.add(query)
    assert (run.blocks, run.conflicts) == (blocks, conflicts)
    assert isclose(run.core_ns, core_ns)
    for outcome, times in zip(run.outcomes, draw_arrivals(simulation.scenario, 1.0, seed, duration_ns), strict=True):
        mine = {id for id, query in arrived.items() if query.tenant == outcome.name}
        assert sorted(arrived[id].arrival_ns for id in mine) == times.tolist()
        counted = {id for id in mine if arrived[id].arrival_ns >= warm_ns}
        latencies = sorted(done[id] - arrived[id].arrival_ns for id in counted & done.keys())
        assert outcome.latency_ns.tolist() == latencies
        assert outcome.offered == len(counted) and outcome.refused == len(counted & refused) and outcome.errors == 0
        assert outcome.served == sum(warm_ns <= done[id] < duration_ns for id in mine & done.keys())
        assert outcome.in_time == sum(ns <= outcome.target_ns for ns in latencies)


def test_alone_a_query_takes_what_its_profile_says():
    model = small_machine(4)
    known = small_model(model, "cks", "m")
    scenario = SimulationScenario(
        (TenantWorkload(name="m", model="m", qps=0.1, target_ms=2.9, arrivals="even"),), WorkloadShape(queries=20)
    )
    simulation = Simulation(scenario, model, {"m": [known]})
    run = simulation.run("fcfs", 1)
    alone = [sum(min(v.latency.latency_ns[0][c] for v in vs) for vs in known.profile.versions) for c in range(4)]
    in_time = next(ns for ns in alone if ns <= 2.9e6)
    assert np.abs(run.outcomes[0].latency_ns - in_time).max() <= 4  # profiles are rounded layer by layer
    assert run.conflict_rate == 0.0


def test_cores_in_use_are_a_part_of_the_machine():
    model = small_machine(16)
    scenario = SimulationScenario(
        (TenantWorkload(name="m", model="m", qps=50, target_ms=50),), WorkloadShape(queries=10)
    )
    simulation = Simulation(scenario, model, {"m": [small_model(model, "cks")]}, cores=6)
    assert simulation.machine.domains == ((0, 1, 2, 3), (4, 5))
    assert simulation.workers == 6


def test_a_lost_run_is_given_up_and_a_held_one_is_not():
    model = small_machine(4)
    scenario = SimulationScenario(
        (TenantWorkload(name="m", model="m", qps=100, target_ms=20),), WorkloadShape(queries=2000)
    )
    simulation = Simulation(scenario, model, {"m": [small_model(model, "cksccc")]})
    held = simulation.run("veltair-full", 1, budget=MissBudget(1))
    assert not held.abandoned and held.outcomes[0].qos_held
    full = simulation.run("veltair-full", 1, scale=20.0)
    lost = simulation.run("veltair-full", 1, scale=20.0, budget=MissBudget(1))
    assert not full.abandoned and not full.outcomes[0].qos_held
    assert lost.abandoned and lost.blocks < full.blocks / 2
    assert simulation.run("veltair-full", 1, budget=MissBudget(1, (full,))).abandoned  # nothing is left to miss


@pytest.mark.parametrize("proxy", ["observed", "demand", "counters"])
def test_every_source_of_the_level_is_there(proxy):
    model = small_machine(16)
    scenario = SimulationScenario(
        (TenantWorkload(name="m", model="m", qps=600, target_ms=30),), WorkloadShape(queries=200, proxy=proxy)
    )
    simulation = Simulation(scenario, model, {"m": [small_model(model, "sksksk")]})
    assert simulation.scheduler("veltair-full").level_source == proxy
    runs = [asdict(simulation.run("veltair-full", 1)) for _ in range(2)]
    latencies = [run["outcomes"][0]["latency_ns"].tolist() for run in runs]
    assert latencies[0] == latencies[1] and len(latencies[0]) > 150


def test_a_profile_without_versions_is_refused():
    model = small_machine(4)
    known = small_model(model, "cks")
    versions = known.profile.versions[0], (), known.profile.versions[2]
    broken = replace(known, profile=replace(known.profile, versions=versions))
    scenario = SimulationScenario((TenantWorkload(name="m", qps=10, target_ms=50),))
    with pytest.raises(UserError, match=r"m \(batch 1\): layer 1 has no code version"):
        Simulation(scenario, model, {"m": [broken]}).run("veltair", 1)
