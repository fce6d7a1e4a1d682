"""A small machine, and models made of three kinds of layers, as roofline tables."""

from __future__ import annotations

from dataclasses import MISSING
from functools import cache

import numpy as np

from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.modelled_profiles import SimulatedModel
from veltair.simulation.machine_model.roofline import ModelWork
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile

MB = 2**20
LEVELS = (1.0, 1.5, 3.0)
UNDER = ((0, 0), (5, 3), (9, 8))  # the pressures (cache, memory) at which the levels' times are taken


def small_machine(cores: int = 16, domain_cores: int = 4, **other: float) -> MachineModel:
    """A machine with small round numbers, some of which may be given."""
    values: dict[str, float | str] = {"name": "small", "title": "Small", "cores": cores, "domain_cores": domain_cores}
    values |= {"l2_bytes": MB, "l3_bytes": 16 * MB}
    values |= {"l3_gb_s": 300.0, "core_gb_s": 20.0, "domain_gb_s": 40.0, "dram_gb_s": 80.0}
    values |= {"launch_ns": 1000.0, "launch_core_ns": 0.0, "dispatch_ns": 0.0}
    values |= {"spawn_median_ns": 100_000.0, "spawn_mean_ns": 220_000.0}
    values |= {"front_ns": 0.0, "front_in_ns": 0.0, "front_out_ns": 0.0}
    fields = MachineModel.__dataclass_fields__
    return MachineModel(**{name: 1 for name, it in fields.items() if it.default is MISSING} | values | other)


def small_work(model: MachineModel, layers: str, name: str = "m") -> ModelWork:
    """Work of a model given as one letter per layer: `c` computes, `k` keeps 12 MB or moves much, `s` streams.

    Each layer has two versions; the second keeps a quarter and computes a tenth longer.
    """
    rows = {"c": (4e6, 2e5, 1e6, 2e6), "k": (2e6, 1e6, 12 * MB, 60e6), "s": (4e5, 40e6, 1e6, 40e6)}
    shape = model.cores, 2, len(layers), 2
    compute, l3 = np.empty((shape[0], *shape[2:])), np.empty((shape[0], *shape[2:]))
    need, moved = np.zeros(shape), np.empty(shape)
    for cores in range(1, model.cores + 1):
        for i, kind in enumerate(layers):
            work_ns, low, keeps, most = rows[kind]
            for version in (0, 1):
                compute[cores - 1, i, version] = work_ns * (1 + 0.1 * version) / cores
                l3[cores - 1, i, version] = most
                need[cores - 1, 1, i, version] = keeps / (1 + 3 * version)
                moved[cores - 1, :, i, version] = max(most / (1 + version), low), low
    flops = np.full(len(layers), 1e6)
    return ModelWork(name, compute, l3, np.zeros_like(l3), need, moved, flops)


@cache
def small_model(model: MachineModel, layers: str, name: str = "m") -> SimulatedModel:
    """A model of such layers with its profile."""
    work = small_work(model, layers, name)
    rate = ExecutionRate(work, model)
    cores = range(1, model.cores + 1)

    def table(layer: int, version: int) -> LatencyTable:
        times = [[round(rate.times_ns(c, model.domains(c), *under)[layer, version]) for c in cores] for under in UNDER]
        return LatencyTable(LEVELS, tuple(map(tuple, times)))

    versions = tuple(
        tuple(CodeVersion(i, j, MB >> j, 64 << j, f"l{i}_v{j}", table(i, j)) for j in (0, 1))
        for i in range(len(layers))
    )
    about = tuple(Layer(i, f"layer{i}", "conv2d", (), (), 10**6, 10**6) for i in range(len(layers)))
    return SimulatedModel(ModelProfile(name, 1, about, versions, {}, ""), work)
