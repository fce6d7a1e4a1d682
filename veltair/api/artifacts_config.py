"""`artifacts_config`: the configuration of a daemon that serves these artifacts.

Away from the daemon's Python API, because `veltair serve` needs it, and no client library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from veltair.config import ServeConfig, TenantConfig, parse_config
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact

Served: TypeAlias = Artifact | TenantConfig | str | Path


def artifacts_config(
    models: Served | Sequence[Served] | Mapping[str, Served], server: Mapping[str, Any], where: str
) -> ServeConfig:
    """The configuration that serves these artifacts (see `serve`). Raises ConfigError or ArtifactError.

    `server`: keys of that table. `where`: what errors begin with.
    """
    if isinstance(models, Mapping):
        tenants = [_tenant(each, name) for name, each in models.items()]
    elif isinstance(models, Artifact | TenantConfig | str | Path):
        tenants = [_tenant(models, None)]
    else:
        tenants = [_tenant(each, None) for each in models]
    return parse_config(
        {"server": dict(server), "tenants": [configuration_values(tenant) for tenant in tenants]}, Path(where)
    )


def _tenant(served: Served, name: str | None) -> TenantConfig:
    """A tenant of this name, or of the model's."""
    if isinstance(served, TenantConfig):
        return served if name is None else msgspec.structs.replace(served, name=name)
    artifact = served if isinstance(served, Artifact) else load_artifact(Path(served))
    return TenantConfig(name=name or artifact.manifest.model, artifact=str(artifact.path.absolute()))


def configuration_values(value: Any) -> Any:
    """A configuration as TOML has it: what is None is left out."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: configuration_values(each) for key, each in value.items() if each is not None}
    return [configuration_values(each) for each in value] if isinstance(value, list | tuple) else value
