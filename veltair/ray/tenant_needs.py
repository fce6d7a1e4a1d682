"""What the tenants of a configuration need of this machine, from the profiles in their artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from veltair.config import ServeConfig
from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import MANIFEST, Artifact, decode_manifest
from veltair.ray.in_flight import TenantNeeds
from veltair.server.repository.model_folders import wanted_versions
from veltair.simulation.headroom import estimate_core_ns


def tenant_needs(config: ServeConfig) -> Mapping[str, TenantNeeds]:
    """The needs of each tenant, of the version that is meant by default. The daemon has checked the artifacts, so only
    their manifests are read. Raises ArtifactError.
    """
    found = {}
    for tenant in config.tenants:
        path = wanted_versions(tenant)[-1].path
        artifact = _unchecked(path)
        target_ns = artifact.manifest.qos_ns if tenant.qos_ms is None else round(tenant.qos_ms * 1e6)
        core_ns = estimate_core_ns(artifact.profiles()[0], target_ns)
        found[tenant.name] = TenantNeeds(artifact.manifest.model, target_ns, core_ns, tenant.percentile)
    return found


def _unchecked(path: Path) -> Artifact:
    try:
        return Artifact(path, decode_manifest((path / MANIFEST).read_bytes(), path), "")
    except OSError as error:
        raise ArtifactError(f"{path}: no model artifact there ({error.strerror})") from None
