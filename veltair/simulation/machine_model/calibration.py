"""Samples for a counter fit from a simulated machine: models beside co-runners that stream over memory.

`compiler.timing.co_runners` does the same on a real machine. So the samples cover the whole range of levels, also those
that a scheduler should never let happen.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veltair.simulation.machine_model.contention_model import ContentionModel
from veltair.simulation.machine_model.counter_fit import SlowdownSample
from veltair.simulation.machine_model.counting_contention import PERIOD_NS, count_rates
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.roofline import ModelWork
from veltair.types import CodeVersion, LatencyTable, Layer, LayerBlock, Machine, ModelProfile

SAMPLES = 400
_STREAM = "stream"


def calibrate(
    model: MachineModel,
    machine: Machine,
    profiles: Mapping[str, ModelProfile],
    execution_rates: Mapping[tuple[str, int], ExecutionRate],
    seed: int = 0,
) -> list[SlowdownSample]:
    """Draws samples; the same seed gives the same samples. `execution_rates`: of the profiles, by model and batch."""
    rng = np.random.default_rng(seed)
    streaming = ExecutionRate(_stream_work(len(machine.cores)), model)
    everything = {**execution_rates, (_STREAM, 1): streaming}
    return [_draw_sample(model, machine, profiles, everything, rng) for _ in range(SAMPLES)]


def _draw_sample(
    model: MachineModel,
    machine: Machine,
    profiles: Mapping[str, ModelProfile],
    execution_rates: Mapping[tuple[str, int], ExecutionRate],
    rng: np.random.Generator,
) -> SlowdownSample:
    """Places models on one half of the cores and streaming co-runners on the other, and reads the counters.

    All models that fit run side by side, on equally many cores each, in the versions that are best alone there. Of the
    other half a random part streams, with one co-runner in each L3 domain.
    """
    contention = ContentionModel(model, machine, execution_rates, rng)
    half = len(machine.cores) // 2
    count = min(len(profiles), max(half, 1))
    each = int(rng.integers(1, max(half // count, 1) + 1))
    chosen = rng.choice(sorted(profiles), count, replace=False)
    for query, name in enumerate(chosen.tolist()):
        profile = profiles[name]
        core_set = machine.cores[query * each : (query + 1) * each]
        alone = [[version.latency.latency_ns[0][each - 1] for version in of_layer] for of_layer in profile.versions]
        versions = tuple(times.index(min(times)) for times in alone)
        contention.enter(LayerBlock(query, 0, len(versions), versions, each, 0), core_set, profile, grown=False)
    rest = machine.cores[max(half, 1) :]
    streaming = set(rest[: int(rng.integers(0, len(rest) + 1))])
    for query, domain in enumerate(machine.domains, count):
        if taken := tuple(core for core in domain if core in streaming):
            contention.enter(LayerBlock(query, 0, 1, (0,), len(taken), 0), taken, _STREAM_PROFILE, grown=False)
    contention.changed()
    counts = {query: count_rates(it.segment, it.cache, it.memory, it.link) for query, it in contention.running.items()}
    accesses, misses, instructions, cycles, flops = (np.sum(list(counts.values()), axis=0)[:5] * PERIOD_NS).tolist()
    return SlowdownSample(
        window_ns=PERIOD_NS,
        l3_accesses=accesses,
        l3_misses=misses,
        instructions=instructions,
        cycles=cycles,
        flops=flops,
        level=max(1.0, float(np.mean([counts[query][5] for query in range(count)]))),
    )


def _stream_work(cores: int) -> ModelWork:
    """The work of a layer that does nothing but read memory, none of it twice."""
    size = float(64 << 20)
    shape = (cores, 1, 1)
    return ModelWork(
        model=_STREAM,
        compute_ns=np.zeros(shape),
        l3_bytes=np.full(shape, size),
        remote_bytes=np.zeros(shape),
        need_bytes=np.zeros((cores, 1, 1, 1)),
        dram_bytes=np.full((cores, 1, 1, 1), size),
        flops=np.ones(1),
    )


_STREAM_PROFILE = ModelProfile(
    model=_STREAM,
    batch=1,
    layers=(Layer(0, _STREAM, _STREAM, (), (), 1, 1),),
    versions=((CodeVersion(0, 0, 1, 1, _STREAM, LatencyTable((1.0,), ((1,),))),),),
    environment={},
    digest="",
)
