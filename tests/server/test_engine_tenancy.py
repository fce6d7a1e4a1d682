"""What the engine works with: cores, workers, tenants; and the starts of workers that fail."""

from __future__ import annotations

import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from veltair.errors import ArtifactError, ConfigError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.server.engine import machine_limits
from veltair.server.engine.machine_limits import default_workers, limit_machine
from veltair.server.engine.tenants import can_batch, tenants_and_profiles
from veltair.server.engine.worker_supervisor import LONGEST_DELAY_S, WorkerSupervisor
from veltair.server.ipc.messages import LoadModels, TenantSpec
from veltair.server.ipc.tenant_artifact import open_artifact
from veltair.types import Machine

pytestmark = pytest.mark.slow

TWO_SOCKETS = Machine(((0, 1, 2, 3), (8, 9, 10, 11)))


def spec(name: str, artifact: Artifact, *, batching: bool = True) -> TenantSpec:
    return TenantSpec(name, str(artifact.path), artifact.digest, 5_000_000, 0.99, 3, batching)


@pytest.fixture
def mlp(artifacts: Path) -> Artifact:
    return load_artifact(artifacts / "mlp")


@pytest.mark.parametrize(
    ("cores", "domains"),
    [(None, ((0, 1, 2, 3), (8, 9, 10, 11))), (1, ((0,),)), (4, ((0, 1, 2, 3),)), (6, ((0, 1, 2, 3), (8, 9)))],
)
def test_fewer_cores_are_whole_domains_first(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, domains: tuple[tuple[int, ...], ...]
) -> None:
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: TWO_SOCKETS)
    assert limit_machine(cores) == Machine(domains)


def test_cores_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: TWO_SOCKETS)
    with pytest.raises(ConfigError, match=r"server\.cores: 9 asked for, 8 usable"):
        limit_machine(9)
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: Machine(((1023, 1024),)))
    with pytest.raises(ConfigError, match="core 1024"):
        limit_machine(None)
    assert limit_machine(1) == Machine(((1023,),))


def test_workers_are_twice_the_cores_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch, mlp: Artifact) -> None:
    heavy = replace(mlp, manifest=msgspec.structs.replace(mlp.manifest, arena_bytes=1 << 30), digest="heavy")
    monkeypatch.setattr(machine_limits, "memory_bytes", lambda: 16 << 30)
    assert default_workers(8, [mlp]) == 16
    assert default_workers(8, [heavy, heavy]) == 6  # 8 GB by 1 GB of arena and a process; loaded once
    assert default_workers(1, [mlp]) == 2
    monkeypatch.setattr(machine_limits, "memory_bytes", lambda: 1 << 20)
    assert default_workers(8, [mlp]) == 2


def test_artifacts_of_one_name_are_told_apart_and_the_same_artifact_is_one_model(mlp: Artifact) -> None:
    twin = replace(mlp, digest="f" * 64)
    tenants, profiles = tenants_and_profiles([spec("a", mlp), spec("b", mlp, batching=False)], [mlp, mlp])
    assert [t.model for t in tenants] == ["mlp", "mlp"]
    assert list(profiles) == ["mlp"]
    assert [t.batching for t in tenants] == [True, False]
    assert (tenants[0].qos.latency_ns, tenants[0].qos.percentile, tenants[0].priority) == (5_000_000, 0.99, 3)
    tenants, profiles = tenants_and_profiles([spec("a", mlp), spec("b", twin)], [mlp, twin])
    assert [t.model for t in tenants] == [f"mlp@{mlp.digest[:12]}", "mlp@ffffffffffff"]
    assert set(profiles) == {t.model for t in tenants}


def test_a_model_batches_if_every_tensor_has_a_row_for_each_sample(mlp: Artifact) -> None:
    manifest = mlp.manifest
    assert can_batch(manifest)
    assert not can_batch(msgspec.structs.replace(manifest, max_batch=1, batches=(1,)))
    fixed = msgspec.structs.replace(manifest.inputs[0], shape=(1, 16))
    assert not can_batch(msgspec.structs.replace(manifest, inputs=(*manifest.inputs, fixed)))
    assert not can_batch(msgspec.structs.replace(manifest, outputs=(*manifest.outputs, fixed)))


def test_an_artifact_is_opened_only_as_it_was_checked(mlp: Artifact, tmp_path: Path) -> None:
    assert open_artifact(spec("a", mlp)) == mlp
    with pytest.raises(ArtifactError, match="replaced since"):
        open_artifact(msgspec.structs.replace(spec("a", mlp), digest="0" * 64))
    with pytest.raises(ArtifactError, match="No such file"):
        open_artifact(msgspec.structs.replace(spec("a", mlp), artifact=str(tmp_path)))


def test_starts_that_fail_are_tried_again_ever_more_rarely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    poll = select.epoll()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    fd = os.memfd_create("tensors")
    supervisor = WorkerSupervisor(poll, 2, fd, LoadModels((), (0,), 1))
    now_ns, waits = 0, []
    for _ in range(12):
        supervisor.start_missing(now_ns)
        assert not supervisor.all
        wait_s = supervisor.seconds_to_start(now_ns)
        assert wait_s is not None
        failed = supervisor.failed_starts
        supervisor.start_missing(now_ns + round(wait_s * 1e9) - 1)
        assert supervisor.failed_starts == failed, "tried again too early"
        waits.append(wait_s)
        now_ns += round(wait_s * 1e9)
    os.close(fd)
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == LONGEST_DELAY_S
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    poll.close()
