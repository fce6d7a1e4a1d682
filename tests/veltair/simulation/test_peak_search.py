from __future__ import annotations

import pytest
from small_models import small_machine, small_model

from veltair.simulation.peak_search import find_peak, try_scale
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape


@pytest.fixture
def simulation():
    model = small_machine(4)
    tenant = TenantWorkload(name="m", model="m", qps=50, target_ms=40, arrivals="even")
    return Simulation(
        SimulationScenario((tenant,), WorkloadShape(queries=300)), model, {"m": [small_model(model, "cc")]}
    )


def test_the_peak_of_even_arrivals_is_what_the_machine_can_do(simulation):
    # 4 ms a layer on one core, two layers: four cores do 500 a second
    probes = list(find_peak(simulation, "fcfs", [1]))
    best = max((tried for tried in probes if tried.held), key=lambda tried: tried.scale)
    assert best.qps == pytest.approx(500, rel=0.1)
    missed = min(tried.scale for tried in probes if not tried.held)
    assert best.scale < missed <= best.scale * 1.011
    assert all(tried.held is (tried.scale <= best.scale) for tried in probes)


def test_seeds_are_pooled_and_reported_in_steps(simulation):
    told = []
    tried = try_scale(simulation, "fcfs", [1, 2, 3], 0.5, report=told.append)
    assert [outcome.offered for outcome in tried.outcomes] == [sum(run.outcomes[0].offered for run in tried.runs)]
    assert tried.offered_qps == tried.qps == 25
    assert told == sorted(told) and told[0] >= 0 and told[-1] <= 1


def test_the_percentile_may_be_that_of_all_queries_together():
    model = small_machine(4)
    often = TenantWorkload(name="often", model="m", qps=50, target_ms=40, arrivals="even")
    seldom = TenantWorkload(name="seldom", model="m", qps=1, target_ms=0.1, arrivals="even")  # never in time
    scenario = SimulationScenario((often, seldom), WorkloadShape(queries=300))
    simulation = Simulation(scenario, model, {"m": [small_model(model, "cc")]})
    assert not try_scale(simulation, "fcfs", [1]).held
    assert try_scale(simulation, "fcfs", [1], pooled=True).held
    assert try_scale(simulation, "fcfs", [1], give_up=True, pooled=True).held
    assert not try_scale(simulation, "fcfs", [1], 40.0, give_up=True, pooled=True).held


def test_a_rate_that_is_lost_ends_with_the_run_that_shows_it(simulation):
    tried = try_scale(simulation, "fcfs", [1, 2, 3], 40.0, give_up=True)
    assert not tried.held and len(tried.runs) == 1
