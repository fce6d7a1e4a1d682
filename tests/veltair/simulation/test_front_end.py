"""What client and front end cost, and what it costs the blocks that they share a core with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_models import small_machine, small_model

from veltair.simulation.front_end import FrontEndCost, front_end_cost
from veltair.simulation.machine_model.contention_model import ContentionModel
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape
from veltair.types import LayerBlock

LAYER_NS = 4001e3  # of kind c on one core: 4 ms, and its launch


def latencies_us(folder, cores, target_ms, arrivals_s, **front):
    """Latencies of queries that arrive at these times for a model of two layers of 4 ms on one core, under fcfs."""
    model = small_machine(cores, **front)
    path = folder / "arrivals.txt"
    path.write_text("\n".join(map(str, arrivals_s)) + "\n")
    tenant = TenantWorkload(name="m", qps=1, target_ms=target_ms, arrivals="file", file=str(path))
    load = WorkloadShape(duration_s=1.0, warmup=0.0)
    simulation = Simulation(SimulationScenario((tenant,), load), model, {"m": [small_model(model, "cc")]})
    return simulation.run("fcfs", 1).outcomes[0].latency_ns / 1e3


def test_a_lone_query_takes_its_front_time_more(tmp_path):
    alone = latencies_us(tmp_path, 2, 9, [0.0])
    assert alone == pytest.approx([2 * LAYER_NS / 1e3], rel=1e-6)
    assert latencies_us(tmp_path, 2, 9, [0.0], front_ns=3e6) == pytest.approx(alone + 3e3, rel=1e-6)
    assert latencies_us(tmp_path, 2, 9, [0.0], dispatch_ns=5e4) == pytest.approx(alone + 50, rel=1e-6)


def test_the_front_end_serves_one_query_after_another(tmp_path):
    # Decoded at 1 and 2 ms; the first answer is encoded at 9 to 10, the second at 10 to 11.
    took = latencies_us(tmp_path, 2, 9, [0.0, 0.0], front_ns=2e6)
    assert took == pytest.approx([1e3 + 8002 + 1e3, 2e3 + 8002 + 1e3], rel=1e-3)


def test_front_end_and_block_share_a_core_where_all_are_held(tmp_path):
    # The first query's block begins at 1 ms; at 4 the second query is decoded, on the same core: 2 ms for both.
    first, second = latencies_us(tmp_path, 1, 90, [0.0, 0.004], front_ns=2e6)
    # At 10 its block begins, beside it the first answer is encoded.
    assert first == pytest.approx(1e3 + 8002 + 1e3 + 2e3, rel=1e-3)
    assert second == pytest.approx(10_002 - 4000 + 8002 + 1e3 + 1e3, rel=1e-3)


@pytest.mark.parametrize(("held", "halved"), [([(0,)], {}), ([(0,), (1,)], 1), ([(0, 1)], 1)])
def test_a_block_that_shares_its_core_goes_half_as_fast(held, halved):
    model = small_machine(2, domain_cores=1)
    known = small_model(model, "c")
    contention = ContentionModel(
        model, model.machine(), {("m", 1): ExecutionRate(known.work, model)}, np.random.default_rng(3)
    )
    for query, cores in enumerate(held):
        contention.enter(LayerBlock(query, 0, 1, (0,), len(cores), 0), cores, known.profile, grown=False)
    alone = {query: timeline[-1] for query, timeline in contention.changed()}
    contention.set_front_end_work(1000.0)
    shared = {query: timeline[-1] for query, timeline in contention.changed()}
    front_ns = shared.pop(None)
    assert front_ns == (2000 if halved else 1000)
    assert len(shared) == (1 if halved else 0)
    assert all(timeline == pytest.approx(2 * alone[query]) for query, timeline in shared.items())
    contention.set_front_end_work(0.0)
    assert {query: timeline[-1] for query, timeline in contention.changed()} == {q: alone[q] for q in shared}


def test_costs_follow_bytes():
    model = small_machine(2, front_ns=1000.0, front_in_ns=2.0, front_out_ns=3.0)
    work = replace(small_model(model, "c").work, in_bytes=100.0, out_bytes=10.0)
    assert front_end_cost(model, work) == FrontEndCost(before_ns=700.0, after_ns=530.0)
