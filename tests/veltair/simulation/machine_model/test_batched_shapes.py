from __future__ import annotations

import io
from dataclasses import replace

import pytest
from small_models import small_machine, small_model

from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.scheduler.event_log.records import load_decision
from veltair.simulation.machine_model.batched_shapes import batch_model, interpolate_work, timed_batch_sizes
from veltair.simulation.machine_model.layer_shapes import load_model_shape
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape


@pytest.mark.parametrize(("most", "timed"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_batch_sizes_are_powers_of_two_and_the_greatest(most, timed):
    assert timed_batch_sizes(most) == timed


@pytest.mark.parametrize("model", ["resnet50", "bert_large", "dlrm"])
def test_a_batch_computes_its_samples_and_reads_weights_once(model):
    one, four = load_model_shape(model), batch_model(load_model_shape(model), 4)
    assert four.model == f"{model}@4"
    for before, after in zip(one.layers, four.layers, strict=True):
        assert after.flops == 4 * before.flops and after.outputs == 4 * before.outputs
        assert after.m * after.n * after.k * after.groups == 4 * before.m * before.n * before.k * before.groups
        assert (after.weights == before.weights) is (before.op != "embedding_bag" and before.op != "embedding")


@pytest.fixture(scope="module")
def simulation():
    tenants = tuple(
        TenantWorkload(name=f"t{most}", model="dlrm", qps=200_000, target_ms=2, max_batch=most) for most in (1, 8)
    )
    scenario, machine = (
        SimulationScenario(tenants, WorkloadShape(queries=1500)),
        load_machine_model("threadripper-3990x"),
    )
    return Simulation(scenario, machine, scenario_models(scenario, machine, cores=2), 2)


def test_queries_that_wait_run_as_one_where_that_is_allowed(simulation):
    log = io.StringIO()
    run = simulation.run("veltair", 1, log=log)
    alone, together = run.outcomes
    decisions = [load_decision(line) for line in log.getvalue().splitlines() if '"type":"StartBlock"' in line]
    batches = [(start.block.query, *start.members) for start in decisions if start.members]
    assert len(batches) > 50 and max(map(len, batches)) == 8
    # queries are numbered tenant by tenant
    first = min(id for batch in batches for id in batch)
    assert first >= simulation.run("fcfs", 1).outcomes[0].offered
    assert together.refused < alone.refused


def test_what_a_scheduler_plans_with_the_machine_can_run(simulation):
    planned = {profile.batch for profile in interpolate_batches(simulation.profiles["dlrm"])}
    assert {batch for _, batch in simulation.execution_rates} == planned >= {1, 2, 4, 8}


def test_between_two_batches_everything_is_on_the_line():
    known = small_model(small_machine(4), "cks")
    low, high = known.profile, replace(known.profile, batch=4)
    twice = replace(known.work, compute_ns=known.work.compute_ns * 2, dram_bytes=known.work.dram_bytes * 3)
    found = dict(interpolate_work([(low, known.work), (high, twice)]))
    assert list(found) == [1, 2, 3, 4] or list(found) == [1, 2, 4]
    assert found[2].compute_ns == pytest.approx(known.work.compute_ns * 4 / 3)
    assert found[2].dram_bytes == pytest.approx(known.work.dram_bytes * 5 / 3)
