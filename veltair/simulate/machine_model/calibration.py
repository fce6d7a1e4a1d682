"""Samples to fit a counter model to, from a simulated machine: models beside co-runners that stream over memory.

What `compiler.timing.co_runners` does on a real machine: so levels come up that a scheduler should never let
happen, and the fit is told the whole range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veltair.simulate.machine_model.contention import Contention
from veltair.simulate.machine_model.layer_speed import Pace
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.proxy_fit import Sample
from veltair.simulate.machine_model.roofline import ModelWork
from veltair.simulate.machine_model.simulated_counters import PERIOD_NS, rates
from veltair.types import CodeVersion, LatencyTable, Layer, LayerBlock, Machine, ModelProfile

SAMPLES = 400
_STREAM = "stream"


def calibrate(
    model: MachineModel, machine: Machine, profiles: Mapping[str, ModelProfile], paces: Mapping[tuple[str, int], Pace],
    seed: int = 0,
) -> list[Sample]:  # fmt: skip
    """`paces`: of the profiles, by model and batch. The same seed gives the same samples."""
    rng = np.random.default_rng(seed)
    streaming = Pace(_stream(len(machine.cores)), model)
    everything = {**paces, (_STREAM, 1): streaming}
    return [_sample(model, machine, profiles, everything, rng) for _ in range(SAMPLES)]


def _sample(
    model: MachineModel,
    machine: Machine,
    profiles: Mapping[str, ModelProfile],
    paces: Mapping[tuple[str, int], Pace],
    rng: np.random.Generator,
) -> Sample:
    """All models (as many as there is room for) side by side on one half of the cores, on equally many each, in the
    versions that are best there alone; of the other half, a random part streams, one co-runner in each L3 domain."""
    contention = Contention(model, machine, paces, rng)
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
    left = machine.cores[max(half, 1) :]
    pressing = set(left[: int(rng.integers(0, len(left) + 1))])
    for query, domain in enumerate(machine.domains, count):
        if taken := tuple(core for core in domain if core in pressing):
            contention.enter(LayerBlock(query, 0, 1, (0,), len(taken), 0), taken, _PRESSER, grown=False)
    contention.changed()
    counts = {query: rates(it.stretch, it.cache, it.memory) for query, it in contention.running.items()}
    accesses, misses, instructions, cycles, flops = (np.sum(list(counts.values()), axis=0)[:5] * PERIOD_NS).tolist()
    return Sample(
        window_ns=PERIOD_NS, l3_accesses=accesses, l3_misses=misses, instructions=instructions, cycles=cycles,
        flops=flops, level=max(1.0, float(np.mean([counts[query][5] for query in range(count)]))),
    )  # fmt: skip


def _stream(cores: int) -> ModelWork:
    """A layer that does nothing but read memory, none of it twice."""
    size = float(64 << 20)
    of_layer = (cores, 1, 1)
    return ModelWork(
        _STREAM, np.zeros(of_layer), np.full(of_layer, size), np.zeros(of_layer), np.zeros((cores, 1, 1, 1)),
        np.full((cores, 1, 1, 1), size), np.ones(1),
    )  # fmt: skip


_PRESSER = ModelProfile(
    _STREAM, 1, (Layer(0, _STREAM, _STREAM, (), (), 1, 1),),
    ((CodeVersion(0, 0, 1, 1, _STREAM, LatencyTable((1.0,), ((1,),))),),), {}, "",
)  # fmt: skip
