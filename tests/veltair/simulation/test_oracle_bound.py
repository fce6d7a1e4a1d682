"""The bound of an oracle against every way to run a small model, and against what policies reach."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_machine, small_model

from veltair.errors import ConfigError
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.oracle_bound import least_core_ns, oracle_qps
from veltair.simulation.peak_search import try_scale
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape

CORES = 4
MODEL = small_machine(CORES, domain_cores=2)


def ways_of(rate: ExecutionRate) -> tuple[np.ndarray, np.ndarray]:
    """Times as (ways, layers) and the cores of each way."""
    spread = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]  # cores and domains
    times = np.array([rate.times_ns(cores, domains, 0, 0).min(axis=1) for cores, domains in spread])
    return times, np.array([cores for cores, _ in spread])


@settings(max_examples=40, deadline=None)
@given(st.text("cks", min_size=1, max_size=4), st.floats(0.5, 6))
def test_no_choice_of_cores_takes_less(layers: str, slack: float) -> None:
    rate = ExecutionRate(small_model(MODEL, layers).work, MODEL)
    times, cores = ways_of(rate)
    target_ns = round(times.min(axis=0).sum() * slack)
    bound = least_core_ns(rate, CORES, target_ns)
    columns = range(len(layers))
    taken = [
        sum(times[way, layer] * cores[way] for way, layer in zip(ways, columns, strict=True))
        for ways in product(range(len(cores)), repeat=len(layers))
        if sum(times[way, layer] for way, layer in zip(ways, columns, strict=True)) <= target_ns
    ]
    if not taken:
        assert bound == inf
        return
    assert bound <= min(taken) * (1 + 1e-9)
    assert bound >= (times * cores[:, None]).min(axis=0).sum() * (1 - 1e-9)  # what it is without a target
    mixed = np.array(taken).min() - bound  # at most one layer is split between two ways
    assert mixed <= (times * cores[:, None]).max(axis=0).max()


def simulation(**tenant: float) -> Simulation:
    loads = (TenantWorkload(name="m", qps=100.0, target_ms=20.0, **tenant),)
    scenario = SimulationScenario(loads, WorkloadShape(queries=200, proxy="demand"))
    return Simulation(scenario, MODEL, {"m": [small_model(MODEL, "cks")]})


def test_policies_stay_below_it() -> None:
    known = simulation()
    bound = oracle_qps(known)
    held = [
        try_scale(known, policy, (1,), scale, give_up=True).held
        for policy in ("veltair", "veltair-full", "planaria")
        for scale in (1.1 * bound / 100, 0.05 * bound / 100)
    ]
    assert held == [False, True] * 3


def test_the_bound_scales_with_the_percentile_and_knows_no_batches() -> None:
    assert oracle_qps(simulation(percentile=0.5)) == pytest.approx(oracle_qps(simulation(percentile=1.0)) * 2)
    with pytest.raises(ConfigError, match="tenant m: no bound is known where queries are batched"):
        oracle_qps(simulation(max_batch=2))
