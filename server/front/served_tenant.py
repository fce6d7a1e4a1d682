"""`ServedTenant`: a configured tenant with its artifact, loaded and checked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from veltair.config import ServeConfig
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.messages import TenantSpec
from veltair.server.ipc.tenant_share import TenantShare
from veltair.types import QoSTarget


@dataclass(frozen=True, slots=True)
class ServedTenant:
    """A tenant as the front knows it.

    ::

        tenants = await load_tenants(config)
        tenants["mlp"].manifest.inputs
    """

    name: str
    artifact: Artifact
    qos: QoSTarget
    priority: int
    batching: bool
    share: TenantShare = field(default_factory=TenantShare)

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    def spec(self) -> TenantSpec:
        """The same tenant for the engine and its workers."""
        return TenantSpec(
            name=self.name,
            artifact=str(self.artifact.path),
            digest=self.artifact.digest,
            qos_ns=self.qos.latency_ns,
            percentile=self.qos.percentile,
            priority=self.priority,
            batching=self.batching,
            share=self.share,
        )


async def load_tenants(config: ServeConfig) -> dict[str, ServedTenant]:
    """Every configured tenant by name, its artifact checked in a thread. Raises ArtifactError."""
    tenants = {}
    for entry in config.tenants:
        artifact = await asyncio.to_thread(load_artifact, Path(entry.artifact))
        qos_ns = artifact.manifest.qos_ns if entry.qos_ms is None else round(entry.qos_ms * 1e6)
        qos = QoSTarget(qos_ns, entry.percentile)
        slots = entry.queue_slots or config.server.queue_slots
        share = TenantShare(entry.weight, slots, entry.rate or 0.0, entry.burst)
        tenants[entry.name] = ServedTenant(entry.name, artifact, qos, entry.priority, entry.batching, share)
    return tenants
