"""The tenants and profiles that the scheduler gets, and the artifacts that they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.server.engine.models.tenants import can_batch, tenants_and_profiles
from veltair.server.ipc.messages import TenantSpec

pytestmark = pytest.mark.slow


def spec(name: str, artifact: Artifact, *, batching: bool = True) -> TenantSpec:
    return TenantSpec(name, str(artifact.path), artifact.digest, 5_000_000, 0.99, 3, batching)


@pytest.fixture
def mlp(artifacts: Path) -> Artifact:
    return load_artifact(artifacts / "mlp")


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
    assert not can_batch(msgspec.structs.replace(manifest, mergeable=False))
    fixed = msgspec.structs.replace(manifest.inputs[0], shape=(1, 16))
    assert not can_batch(msgspec.structs.replace(manifest, inputs=(*manifest.inputs, fixed)))
    assert not can_batch(msgspec.structs.replace(manifest, outputs=(*manifest.outputs, fixed)))
