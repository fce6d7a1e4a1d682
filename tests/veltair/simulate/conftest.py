"""A small machine, and models made of three kinds of layers, as roofline tables."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from veltair.simulate.machine_model.layer_speed import Pace
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.modelled_profiles import Simulated
from veltair.simulate.machine_model.roofline import ModelWork
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile

MB = 2**20
LEVELS = (1.0, 1.5, 3.0)
UNDER = ((0, 0), (5, 3), (9, 8))  # the pressures (cache, memory) at which the levels' times are taken


def _model(cores: int = 16, domain_cores: int = 4, **other: float) -> MachineModel:
    values = {
        "name": "small", "title": "Small", "cores": cores, "domain_cores": domain_cores, "l2_bytes": MB,
        "l3_bytes": 16 * MB, "l3_gb_s": 300.0, "core_gb_s": 20.0, "domain_gb_s": 40.0, "dram_gb_s": 80.0,
        "launch_ns": 1000.0, "launch_core_ns": 0.0, "spawn_median_ns": 100_000.0, "spawn_mean_ns": 220_000.0,
        "dispatch_ns": 0.0, "front_ns": 0.0, "front_in_ns": 0.0, "front_out_ns": 0.0,
    }  # fmt: skip
    fields = MachineModel.__dataclass_fields__
    return MachineModel(**{name: 1 for name in fields if name != "loaded_latency"} | values | other)


def _work(model: MachineModel, layers: str, name: str = "m") -> ModelWork:
    """A letter a layer: `c` computes, `k` keeps 12 MB or moves much, `s` streams; two versions of each.

    The second version keeps a quarter and computes a tenth longer.
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
def _simulated(model: MachineModel, layers: str, name: str = "m") -> Simulated:
    work = _work(model, layers, name)
    pace = Pace(work, model)
    cores = range(1, model.cores + 1)

    def table(layer: int, version: int) -> LatencyTable:
        times = [[round(pace.times_ns(c, model.domains(c), *under)[layer, version]) for c in cores] for under in UNDER]
        return LatencyTable(LEVELS, tuple(map(tuple, times)))

    versions = tuple(
        tuple(CodeVersion(i, j, MB >> j, 64 << j, f"l{i}_v{j}", table(i, j)) for j in (0, 1))
        for i in range(len(layers))
    )
    about = tuple(Layer(i, f"layer{i}", "conv2d", (), (), 10**6, 10**6) for i in range(len(layers)))
    return Simulated(ModelProfile(name, 1, about, versions, {}, ""), work)


@pytest.fixture(scope="session")
def machine_model():
    return _model


@pytest.fixture(scope="session")
def simulated():
    return _simulated
