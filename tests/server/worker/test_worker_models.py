"""The models of one worker: each has its own library and its own weights, as long as it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from example_models import mlp_outputs, spin_state

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS
from veltair.profiles.artifact.sealed_artifact import seal_artifact
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros
from veltair.server.ipc.messages import TenantSpec
from veltair.server.ipc.tensor_pool import TensorPool, create_tensor_pool
from veltair.server.worker.worker_models import WorkerModels

pytestmark = pytest.mark.slow

X = np.random.default_rng(5).standard_normal((2, 16), dtype=np.float32)


@pytest.fixture
def models() -> WorkerModels:
    fd = create_tensor_pool()
    pool = TensorPool(fd, slots=1)
    os.close(fd)
    return WorkerModels(pool)


def load(models: WorkerModels, path: Path, number: int) -> None:
    artifact = seal_artifact(path)
    spec = TenantSpec(
        path.name, "", artifact.digest, 10**7, 0.95, 1, batching=False, number=number, offset=number << 20
    )
    models.load(spec, artifact.files)


def opened() -> list[str]:
    """The sealed files that this process has open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if is_sealed(link)]


def is_sealed(text: str) -> bool:
    return any(f"memfd:veltair-{name}" in text for name in (MANIFEST, KERNELS, WEIGHTS))


def test_a_library_keeps_the_name_that_it_was_loaded_by(models: WorkerModels, artifacts: Path) -> None:
    for _ in range(3):
        load(models, artifacts / "mlp", 0)
        load(models, artifacts / "spin", 1)  # the system would take a library of the same name for mlp's
        load(models, artifacts / "mlp", 2)
        assert models.executor(0) is models.executor(2)
        assert len(opened()) == 2 * 3
        models._unload(0)
        outputs = [aligned_zeros((2, 8), "float32")]
        run = models.executor(2).bind(2, [aligned_copy(X)], outputs)
        run.block(0, [0] * len(models.executor(2).manifest.layers))()
        np.testing.assert_allclose(outputs[0], mlp_outputs(X), rtol=1e-4, atol=1e-4)
        state = [aligned_zeros((1,), "int32")]
        run = models.executor(1).bind(1, [aligned_copy(np.array([value], np.int32)) for value in (3, 5)], state)
        run.block(0, [0] * len(models.executor(1).manifest.layers))()
        assert state[0].tolist() == [spin_state(3, 5)]
        del run
        for number in (1, 2):
            models._unload(number)
        assert not opened()
        assert not is_sealed(Path("/proc/self/maps").read_text())


def test_descriptors_that_did_not_come_along_fail_the_model_alone(models: WorkerModels, artifacts: Path) -> None:
    artifact = seal_artifact(artifacts / "mlp")
    spec = TenantSpec("mlp", "", artifact.digest, 10**7, 0.95, 1, batching=False)
    os.close(artifact.files.weights)
    failure = models._try_to_load(spec, artifact.files[:2])
    assert failure is not None
    kind, reason = failure
    assert kind == ArtifactError.__name__
    assert "too many files open" in reason
    assert not opened()
    load(models, artifacts / "mlp", 0)
    models._unload(0)
