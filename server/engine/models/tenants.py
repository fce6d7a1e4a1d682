"""The configured tenants and their profiles, as the scheduler takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.messages import TenantSpec
from veltair.types import ModelProfile, QoSTarget, Tenant


def tenants_and_profiles(
    specs: Sequence[TenantSpec], artifacts: Sequence[CheckedArtifact]
) -> tuple[tuple[Tenant, ...], dict[str, tuple[ModelProfile, ...]]]:
    """The scheduler's tenants, and the profiles by model. `artifacts` has one for each tenant, in order."""
    digests: dict[str, set[str]] = {}  # by model
    for artifact in artifacts:
        digests.setdefault(artifact.manifest.model, set()).add(artifact.digest)

    def model_key(artifact: CheckedArtifact) -> str:
        """The model's name, with the digest where two artifacts have the same name."""
        model = artifact.manifest.model
        return model if len(digests[model]) == 1 else f"{model}@{artifact.digest[:12]}"

    pairs = zip(specs, artifacts, strict=True)
    tenants = tuple(_tenant(spec, artifact, model_key(artifact)) for spec, artifact in pairs)
    return tenants, {model_key(artifact): artifact.profiles() for artifact in artifacts}


def added_tenant(spec: TenantSpec, artifact: CheckedArtifact, known: Mapping[str, str]) -> Tenant:
    """A tenant that is loaded later, as the scheduler takes it. `known`: digests of the models that it has, by name."""
    model = artifact.manifest.model
    if known.get(model, artifact.digest) != artifact.digest:
        model = f"{model}@{artifact.digest[:12]}"
    return _tenant(spec, artifact, model)


def _tenant(spec: TenantSpec, artifact: CheckedArtifact, model: str) -> Tenant:
    return Tenant(
        name=spec.key,
        model=model,
        qos=QoSTarget(spec.qos_ns, spec.percentile),
        priority=spec.priority,
        batching=spec.batching and can_batch(artifact.manifest),
        weight=spec.share.weight,
    )


def can_batch(manifest: Manifest) -> bool:
    """Whether several queries can share one batch: each input and output has a row for every sample."""
    ports = (*manifest.inputs, *manifest.outputs)
    return manifest.mergeable and manifest.max_batch > 1 and all(port.shape[:1] == (-1,) for port in ports)
