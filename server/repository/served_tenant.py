"""`ServedTenant`: a configured tenant with one version of its model, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from veltair.config import TenantConfig
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles
from veltair.server.ipc.messages import TenantSpec
from veltair.server.ipc.tenant_share import TenantShare
from veltair.types import QoSTarget

_SETTINGS = ("qos", "priority", "batching", "share", "pinned")
_NO_FILES = SealedFiles(-1, -1, -1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ServedTenant:
    """A tenant with one version of its model, as the front knows it.

    ::

        served = served_tenant(entry, "1", await loader.load(path), queue_slots=1024)
        served.manifest.inputs
    """

    name: str
    version: str
    artifact: SealedArtifact
    qos: QoSTarget
    priority: int
    batching: bool
    share: TenantShare = field(default_factory=TenantShare)
    pinned: bool = False  # it never leaves memory

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.version

    @property
    def resident(self) -> bool:
        """Whether its artifact is in memory."""
        return self.artifact.files != _NO_FILES

    def is_set_as(self, other: ServedTenant) -> bool:
        """Whether both have the same settings, whatever their artifacts are."""
        return all(getattr(self, name) == getattr(other, name) for name in _SETTINGS)

    def without_files(self) -> ServedTenant:
        """The same, known but not in memory."""
        return replace(self, artifact=replace(self.artifact, files=_NO_FILES))

    def spec(self, number: int, offset: int, copy: int) -> TenantSpec:
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
            number=number,
            offset=offset,
            copy=copy,
            version=self.version,
        )


def served_tenant(entry: TenantConfig, version: str, artifact: SealedArtifact, queue_slots: int) -> ServedTenant:
    """The tenant as it is configured. `queue_slots`: of the server."""
    qos_ns = artifact.manifest.qos_ns if entry.qos_ms is None else round(entry.qos_ms * 1e6)
    share = TenantShare(entry.weight, entry.queue_slots or queue_slots, entry.rate or 0.0, entry.burst)
    qos = QoSTarget(qos_ns, entry.percentile)
    return ServedTenant(entry.name, version, artifact, qos, entry.priority, entry.batching, share, entry.resident)
