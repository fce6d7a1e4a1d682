"""Artifacts in the simulator: alone they take what was measured, and neighbours on the memory slow them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veltair.errors import ArtifactError, ConfigError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.manifest import Buffer, LayerEntry, Manifest, VersionEntry
from veltair.simulation.machine_model import measured_profiles
from veltair.simulation.machine_model.machine_model import load_machine_model
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.machine_model.roofline import layer_ns
from veltair.simulation.simulation_scenario import SimulationScenario, TenantWorkload, WorkloadShape

HERE = load_machine_model("xeon-2")
MB = 1 << 20


@pytest.fixture
def artifact(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two layers at two batches: one reads 8 MB of weights, one has two versions and none."""
    buffers = (Buffer("input", "float32", (-1, 1024), 0), Buffer("weight", "float32", (2 * MB,), 0))
    levels = ((900_000, 500_000), (1_200_000, 700_000))
    heavy = VersionEntry("a", (0, 1), 64, 8, {}, (levels, levels))
    quick = [VersionEntry(name, (0,), 64, 8, {}, (((t, t),) * 2,) * 2) for name, t in (("b", 40_000), ("c", 30_000))]
    layers = (
        LayerEntry("first", "matmul", (0,), (0,), (10**7, 2 * 10**7), (9 * MB, 10 * MB), (heavy,)),
        LayerEntry("second", "pool2d", (0,), (0,), (10, 20), (MB, 2 * MB), tuple(quick)),
    )
    manifest = Manifest(
        schema=1,
        model="two",
        precision="fp32",
        tolerance=0.1,
        qos_ns=10_000_000,
        target={},
        features=(),
        max_batch=2,
        batches=(1, 2),
        levels=(1.0, 1.4),
        inputs=(),
        outputs=(),
        buffers=buffers,
        arena_bytes=0,
        layers=layers,
        environment={},
        source_digest="",
        kernels_digest="",
        weights_digest="",
    )
    known = Artifact(Path("folder/two"), manifest, "f" * 64)
    monkeypatch.setattr(
        measured_profiles, "load_artifact", lambda path: known if path == known.path else load_artifact(path)
    )
    return known.path


@pytest.mark.parametrize("exposed", [0.0, 0.5, 1.0])
def test_alone_is_what_was_measured(artifact: Path, exposed: float) -> None:
    machine = replace(HERE, exposed_share=exposed)
    (one, work), (two, _) = measured_profiles.load_measured_models(artifact, machine, 2)
    assert (one.batch, two.batch) == (1, 2)
    for cores in (1, 2):
        times = layer_ns(work, cores, 1, HERE.l3_bytes, HERE.dram_gb_s, 1.0, machine)
        for layer, of_layer in enumerate(one.versions):
            for at, version in enumerate(of_layer):
                assert times[layer, at] == pytest.approx(version.latency.latency_ns[0][cores - 1], rel=1e-6)
    assert np.isinf(times[0, 1])


def test_less_memory_costs_what_reads_weights(artifact: Path) -> None:
    work = measured_profiles.load_measured_models(artifact, HERE, 2)[0][1]
    alone, pressed = (layer_ns(work, 2, 1, HERE.l3_bytes, share, 1.0, HERE) for share in (HERE.dram_gb_s, 5.0))
    assert pressed[0, 0] == pytest.approx(8 * MB / 5.0, rel=0.01)
    assert pressed[1, 0] == alone[1, 0]
    assert (
        layer_ns(work, 2, 1, 0.0, 5.0, 1.0, HERE)[1, 0] > alone[1, 0]
    )  # nothing kept: its activations come from memory


def test_a_scenario_may_name_both_kinds(artifact: Path) -> None:
    tenants = [TenantWorkload(name=n, model=m, qps=1, target_ms=10) for n, m in (("a", str(artifact)), ("b", "dlrm"))]
    found = scenario_models(SimulationScenario(tuple(tenants), WorkloadShape()), HERE)
    assert [known.profile.batch for known in found[str(artifact)]] == [1, 2]
    assert found[str(artifact)][0].profile.model == str(artifact)
    assert [known.profile.model for known in found["dlrm"]] == ["dlrm"]


def test_what_cannot_be_simulated(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was timed on 2 cores, and 4 of wide are in use"):
        measured_profiles.load_measured_models(artifact, replace(HERE, name="wide", cores=4), 4)
    with pytest.raises(ArtifactError, match="no model artifact there"):
        measured_profiles.load_measured_models(tmp_path, HERE, 2)
