"""What is counted against what the machine moves, and the counter model in a whole run."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from veltair.scheduler.interference import CounterModel
from veltair.simulate.machine_model.calibration import calibrate
from veltair.simulate.machine_model.layer_speed import Pace
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.modelled_profiles import Simulated
from veltair.simulate.machine_model.proxy_fit import Sample, fit
from veltair.simulate.machine_model.roofline import dram_bytes
from veltair.simulate.machine_model.simulated_counters import CountedContention, rates
from veltair.simulate.scenario import Load, Scenario, TenantLoad
from veltair.simulate.simulation import Simulation
from veltair.types import CounterSample, LayerBlock


def block(known: Simulated, query: int = 0, cores: int = 4) -> LayerBlock:
    layers = len(known.profile.layers)
    return LayerBlock(query, 0, layers, (0,) * layers, cores, 0)


@pytest.fixture
def machine(machine_model: type[MachineModel]) -> MachineModel:
    return machine_model()


class Clock:
    now_ns = 0


def contention(machine: MachineModel, models: list[Simulated], clock: Clock) -> CountedContention:
    paces = {(known.profile.model, 1): Pace(known.work, machine) for known in models}
    return CountedContention(machine, machine.machine(), paces, np.random.default_rng(0), lambda: clock.now_ns)


def test_a_block_alone_counts_what_its_layers_move(machine: MachineModel, simulated) -> None:
    known, clock = simulated(machine, "cks"), Clock()
    running = contention(machine, [known], clock)
    running.enter(block(known), (0, 1, 2, 3), known.profile, grown=False)
    ((_, course),) = running.changed()
    clock.now_ns = round(course[-1])  # just when it ends
    seen = running.read()
    assert seen.window_ns == clock.now_ns
    moved = dram_bytes(known.work, 4, machine.l3_bytes)[:, 0].sum()
    assert seen.l3_accesses * 64 == pytest.approx(known.work.l3_bytes[3, :, 0].sum(), rel=1e-3)
    assert seen.l3_misses * 64 == pytest.approx(min(moved, seen.l3_accesses * 64), rel=1e-3)
    assert seen.flops == pytest.approx(known.work.flops.sum(), rel=1e-3)
    assert seen.cycles == pytest.approx(4 * machine.clock_ghz * seen.window_ns)
    assert seen.level == 1.0


def test_counting_stops_with_the_block(machine: MachineModel, simulated) -> None:
    known, clock = simulated(machine, "cks"), Clock()
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


def test_neighbours_show_in_the_level_and_in_the_rates(machine: MachineModel, simulated) -> None:
    known, clock = simulated(machine, "sks"), Clock()
    running = contention(machine, [known], clock)
    for query, first in enumerate((0, 4, 8, 12)):
        running.enter(block(known, query), tuple(range(first, first + 4)), known.profile, grown=False)
    running.changed()
    clock.now_ns = 10_000
    together = running.read()
    stretch = running.running[0].stretch
    alone = rates(stretch, 0, 0)
    assert together.level > 1.0
    assert together.l3_accesses < 4 * alone[0] * 10_000  # slowed
    assert together.level == pytest.approx(
        np.mean([rates(it.stretch, it.cache, it.memory)[5] for it in running.running.values()])
    )


def test_the_event_is_what_the_scheduler_understands(machine: MachineModel, simulated) -> None:
    known, clock = simulated(machine, "cks"), Clock()
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


def test_calibration_is_repeatable_and_presses(machine: MachineModel, simulated) -> None:
    models = {name: simulated(machine, layers, name) for name, layers in (("a", "ks"), ("b", "cs"))}
    profiles = {name: known.profile for name, known in models.items()}
    paces = {(name, 1): Pace(known.work, machine) for name, known in models.items()}
    samples = calibrate(machine, machine.machine(), profiles, paces)
    assert samples == calibrate(machine, machine.machine(), profiles, paces)
    levels = [sample.level for sample in samples]
    assert min(levels) < 1.1 < max(levels)
    assert all(sample.l3_misses <= sample.l3_accesses for sample in samples)
    found = fit(samples)
    assert found.per_access_per_ns > 0 and found.r2 > 0.3


def test_a_run_may_take_its_level_from_the_counters(machine: MachineModel, simulated) -> None:
    models = {name: [simulated(machine, layers, name)] for name, layers in (("a", "kss"), ("b", "sks"))}
    tenants = tuple(TenantLoad(name=name, model=name, qps=300.0, target_ms=20.0) for name in models)
    simulation = Simulation(Scenario(tenants, Load(queries=200, proxy="counters")), machine, models)
    assert simulation.scheduler("veltair-full").level_source == "counters"

    def once() -> tuple[str, list[Sample]]:
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
