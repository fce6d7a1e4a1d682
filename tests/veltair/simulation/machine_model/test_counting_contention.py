"""What is counted against what the machine moves, and the counter model in a whole run."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from small_models import small_machine, small_model

from veltair.scheduler.interference import CounterModel
from veltair.simulation.machine_model.calibration import calibrate
from veltair.simulation.machine_model.counter_fit import SlowdownSample, fit_counters
from veltair.simulation.machine_model.counting_contention import CountingContention, count_rates
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.modelled_profiles import SimulatedModel
from veltair.simulation.machine_model.roofline import dram_bytes
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape
from veltair.types import CounterSample, LayerBlock


def block(known: SimulatedModel, query: int = 0, cores: int = 4) -> LayerBlock:
    layers = len(known.profile.layers)
    return LayerBlock(query, 0, layers, (0,) * layers, cores, 0)


@pytest.fixture
def machine() -> MachineModel:
    return small_machine()


class Clock:
    now_ns = 0


def contention(machine: MachineModel, models: list[SimulatedModel], clock: Clock) -> CountingContention:
    execution_rates = {(known.profile.model, 1): ExecutionRate(known.work, machine) for known in models}
    return CountingContention(
        machine, machine.machine(), execution_rates, np.random.default_rng(0), lambda: clock.now_ns
    )


def test_a_block_alone_counts_what_its_layers_move(machine: MachineModel) -> None:
    known, clock = small_model(machine, "cks"), Clock()
    running = contention(machine, [known], clock)
    running.enter(block(known), (0, 1, 2, 3), known.profile, grown=False)
    ((_, timeline),) = running.changed()
    clock.now_ns = round(timeline[-1])  # just when it ends
    seen = running.read()
    assert seen.window_ns == clock.now_ns
    moved = dram_bytes(known.work, 4, machine.l3_bytes)[:, 0].sum()
    assert seen.l3_accesses * 64 == pytest.approx(known.work.l3_bytes[3, :, 0].sum(), rel=1e-3)
    assert seen.l3_misses * 64 == pytest.approx(min(moved, seen.l3_accesses * 64), rel=1e-3)
    assert seen.flops == pytest.approx(known.work.flops.sum(), rel=1e-3)
    assert seen.cycles == pytest.approx(4 * machine.clock_ghz * seen.window_ns)
    assert seen.level == 1.0


def test_counting_stops_with_the_block(machine: MachineModel) -> None:
    known, clock = small_model(machine, "cks"), Clock()
    running = contention(machine, [known], clock)
    running.enter(block(known), (0, 1, 2, 3), known.profile, grown=False)
    running.changed()
    clock.now_ns = 1000
    running.leave(0)
    running.changed()
    first = running.read()
    clock.now_ns = 5000
    after = running.read()
    assert first.l3_accesses > 0 and first.window_ns == 1000
    assert (after.l3_accesses, after.flops, after.level, after.window_ns) == (0, 0, 1.0, 4000)


def test_neighbours_show_in_the_level_and_in_the_rates(machine: MachineModel) -> None:
    known, clock = small_model(machine, "sks"), Clock()
    running = contention(machine, [known], clock)
    for query, first in enumerate((0, 4, 8, 12)):
        running.enter(block(known, query), tuple(range(first, first + 4)), known.profile, grown=False)
    running.changed()
    clock.now_ns = 10_000
    together = running.read()
    segment = running.running[0].segment
    alone = count_rates(segment, 0, 0)
    assert together.level > 1.0
    assert together.l3_accesses < 4 * alone[0] * 10_000  # slowed
    assert together.level == pytest.approx(
        np.mean([count_rates(it.segment, it.cache, it.memory)[5] for it in running.running.values()])
    )


def test_the_event_is_what_the_scheduler_understands(machine: MachineModel) -> None:
    known, clock = small_model(machine, "cks"), Clock()
    running = contention(machine, [known], clock)
    running.enter(block(known), (0, 1, 2, 3), known.profile, grown=False)
    running.changed()
    clock.now_ns = 10_000
    kept: list = []
    sample = running.event(clock.now_ns, kept).sample
    assert isinstance(sample, CounterSample)
    model = CounterModel(1.0, 2.0, 0.0)
    model.observe(sample)
    assert model.level == pytest.approx(1 + 2 * kept[0].l3_misses / kept[0].l3_accesses, rel=1e-2)


def test_calibration_is_repeatable_and_presses(machine: MachineModel) -> None:
    models = {name: small_model(machine, layers, name) for name, layers in (("a", "ks"), ("b", "cs"))}
    profiles = {name: known.profile for name, known in models.items()}
    execution_rates = {(name, 1): ExecutionRate(known.work, machine) for name, known in models.items()}
    samples = calibrate(machine, machine.machine(), profiles, execution_rates)
    assert samples == calibrate(machine, machine.machine(), profiles, execution_rates)
    levels = [sample.level for sample in samples]
    assert min(levels) < 1.1 < max(levels)
    assert all(sample.l3_misses <= sample.l3_accesses for sample in samples)
    found = fit_counters(samples)
    assert found.per_access_per_ns > 0 and found.r2 > 0.3


def test_a_run_may_take_its_level_from_the_counters(machine: MachineModel) -> None:
    models = {name: [small_model(machine, layers, name)] for name, layers in (("a", "kss"), ("b", "sks"))}
    tenants = tuple(TenantWorkload(name=name, model=name, qps=300.0, target_ms=20.0) for name in models)
    simulation = Simulation(SimulationScenario(tenants, WorkloadShape(queries=200, proxy="counters")), machine, models)
    assert simulation.scheduler("veltair-full").level_source == "counters"

    def once() -> tuple[str, list[SlowdownSample]]:
        log, samples = io.StringIO(), []
        simulation.run("veltair-full", 1, log=log, samples=samples)
        return log.getvalue(), samples

    log, samples = once()
    assert (log, samples) == once()
    events = [json.loads(line) for line in log.splitlines()]
    told = [event for event in events if "sample" in event]
    assert len(told) == len(samples) > 10
    assert max(sample.level for sample in samples) > 1.0
    levels = {event["level"] for event in events if "level" in event}
    assert len(levels) > 1  # versions were picked for more than one
