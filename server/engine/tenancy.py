"""What the engine works with: the tenants' artifacts and profiles, the cores, how many workers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from veltair.errors import ArtifactError, ConfigError
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import MANIFEST, Artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.messages import TenantSpec
from veltair.server.ipc.worker_cell import MAX_CORES
from veltair.types import Machine, ModelProfile, QoSTarget, Tenant

WORKER_BYTES = 160 << 20  # interpreter, numpy, TVM runtime and code of the kernels; models come on top


def open_artifact(spec: TenantSpec) -> Artifact:
    """The artifact that the front has checked; its big files are not read again, only the manifest is compared."""
    path = Path(spec.artifact)
    try:
        raw = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}") from None
    if hashlib.sha256(raw).hexdigest() != spec.digest:
        raise ArtifactError(f"{path}: replaced since the daemon started; restart it to serve the new one")
    return Artifact(path, msgspec.json.decode(raw, type=Manifest), spec.digest)


def tenants_and_profiles(
    specs: Sequence[TenantSpec], artifacts: Sequence[Artifact]
) -> tuple[tuple[Tenant, ...], dict[str, tuple[ModelProfile, ...]]]:
    """As the scheduler takes them. `artifacts`: one for each tenant, in order."""
    names: dict[str, set[str]] = {}
    for artifact in artifacts:
        names.setdefault(artifact.manifest.model, set()).add(artifact.digest)

    def key(artifact: Artifact) -> str:
        """The model's name, with the digest where two artifacts bear the same."""
        model = artifact.manifest.model
        return model if len(names[model]) == 1 else f"{model}@{artifact.digest[:12]}"

    tenants = tuple(
        Tenant(
            spec.name, key(artifact), QoSTarget(spec.qos_ns, spec.percentile), spec.priority,
            spec.batching and can_batch(artifact.manifest),
        )
        for spec, artifact in zip(specs, artifacts, strict=True)
    )  # fmt: skip
    return tenants, {key(artifact): artifact.profiles() for artifact in artifacts}


def can_batch(manifest: Manifest) -> bool:
    """Whether several queries can stand in one batch: each input and output has a row for every sample."""
    ports = (*manifest.inputs, *manifest.outputs)
    return manifest.max_batch > 1 and all(port.shape[:1] == (-1,) for port in ports)


def limit_machine(cores: int | None) -> Machine:
    """The first `cores` of those that this process may use, whole L3 domains first; all by default."""
    whole = usable_machine()
    wanted = len(whole.cores) if cores is None else cores
    if wanted > len(whole.cores):
        raise ConfigError(f"server.cores: {wanted} asked for, {len(whole.cores)} usable (affinity mask and quota)")
    domains = []
    for domain in whole.domains:
        domains.append(domain[:wanted])
        wanted -= len(domains[-1])
    limited = Machine(tuple(domain for domain in domains if domain))
    if max(limited.cores) >= MAX_CORES:
        raise ConfigError(f"core {max(limited.cores)} is usable, but only cores below {MAX_CORES} are supported")
    return limited


def default_workers(cores: int, artifacts: Sequence[Artifact]) -> int:
    """Twice the cores, within half the memory: each worker has an arena for every model. Weights are shared."""
    arenas = {artifact.digest: artifact.manifest.arena_bytes for artifact in artifacts}
    fitting = memory_bytes() // 2 // (WORKER_BYTES + sum(arenas.values()))
    return max(2, min(2 * cores, fitting))
