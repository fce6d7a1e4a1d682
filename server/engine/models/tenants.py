"""The configured tenants and their profiles, as the scheduler takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.profiles.artifact.dynamic_dimension import bucket_name
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.messages import TenantSpec
from veltair.types import ModelProfile, QoSTarget, Tenant


def tenants_and_profiles(
    specs: Sequence[TenantSpec], artifacts: Sequence[CheckedArtifact]
) -> tuple[tuple[Tenant, ...], dict[str, tuple[ModelProfile, ...]]]:
    """The scheduler's tenants, and the profiles by model. `artifacts` has one for each of `specs`, in order.

    To the scheduler a model has one time for each batch. So each bucket of a model whose queries choose a dimension is
    a tenant, and a model, of its own: what it plans with is that bucket's times, and only queries of one bucket share
    a batch.
    """
    digests: dict[str, set[str]] = {}  # by model
    for artifact in artifacts:
        digests.setdefault(artifact.manifest.model, set()).add(artifact.digest)

    def model_key(artifact: CheckedArtifact) -> str:
        """The model's name, with the digest where two artifacts have the same name."""
        model = artifact.manifest.model
        return model if len(digests[model]) == 1 else f"{model}@{artifact.digest[:12]}"

    tenants, profiles = list[Tenant](), dict[str, tuple[ModelProfile, ...]]()
    for spec, artifact in zip(specs, artifacts, strict=True):
        for bucket, each in enumerate(artifact.buckets()):
            model = bucket_name(model_key(artifact), bucket)
            tenants.append(_tenant(spec, each, model, bucket))
            profiles[model] = each.profiles()
    return tuple(tenants), profiles


def added_tenants(spec: TenantSpec, artifact: CheckedArtifact, known: Mapping[str, str]) -> list[Tenant]:
    """What is loaded later, as `tenants_and_profiles` has it. `known`: digests of the models that the scheduler has, by
    name."""
    model = artifact.manifest.model
    if known.get(model, artifact.digest) != artifact.digest:
        model = f"{model}@{artifact.digest[:12]}"
    buckets = enumerate(artifact.buckets())
    return [_tenant(spec, each, bucket_name(model, bucket), bucket) for bucket, each in buckets]


def _tenant(spec: TenantSpec, artifact: CheckedArtifact, model: str, bucket: int) -> Tenant:
    return Tenant(
        name=bucket_name(spec.key, bucket),
        model=model,
        qos=QoSTarget(spec.qos_ns, spec.percentile),
        priority=spec.priority,
        batching=spec.batching and can_batch(artifact.manifest),
        weight=spec.share.weight,
        owner=spec.name,
    )


def can_batch(manifest: Manifest) -> bool:
    """Whether several queries can share one batch: each input and output has a row for every sample."""
    ports = (*manifest.inputs, *manifest.outputs)
    return manifest.mergeable and manifest.max_batch > 1 and all(port.shape[:1] == (-1,) for port in ports)
