"""Where models lie: folders of versions, and the repository, a folder of such folders."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from veltair.config import ServeConfig, TenantConfig, read_tenant
from veltair.errors import ArtifactError, ConfigError, VeltairError
from veltair.profiles.artifact.artifact_folder import MANIFEST

SETTINGS = "tenant.toml"
HIGHEST_VERSION = 2**63 - 1  # that the protocol can say

_log = logging.getLogger("veltair.server")


class WantedVersion(NamedTuple):
    """A version of a model that is to be served: `WantedVersion(entry, "2", Path("models/resnet50/2"))`."""

    entry: TenantConfig
    version: str
    path: Path


class FoundModels(NamedTuple):
    """Models by name; and of those whose settings are wrong, what is, in words for clients.

    ::

        FoundModels({"resnet50": entry}, {"dlrm": "dlrm/tenant.toml: qos_ms: expected `float`, got `str`"})
    """

    entries: dict[str, TenantConfig]
    broken: dict[str, str]


def find_versions(folder: Path) -> dict[str, Path]:
    """The artifacts of a model by version, ascending. Raises ArtifactError where there is none."""
    try:
        if (folder / MANIFEST).exists():
            return {"1": folder}
        found = [entry for entry in folder.iterdir() if entry.name.isascii() and entry.name.isdigit()]
        artifacts = sorted(entry for entry in found if (entry / MANIFEST).exists())
    except OSError as error:
        raise ArtifactError(f"{folder}: no model artifact there ({error.strerror})") from None
    if not artifacts:
        raise ArtifactError(f"{folder}: no model artifact there, nor one in a folder with a number")
    versions: dict[str, Path] = {}
    for entry in artifacts:
        if (number := int(entry.name)) > HIGHEST_VERSION:
            raise ArtifactError(f"{folder}: expected numbers of versions up to {HIGHEST_VERSION}, found {entry.name}")
        if (same := versions.setdefault(str(number), entry)) is not entry:
            raise ArtifactError(f"{folder}: {same.name} and {entry.name} are the same version")
    return dict(sorted(versions.items(), key=lambda item: int(item[0])))


def choose_versions(asked: Literal["all"] | int | tuple[int, ...], found: Sequence[str]) -> list[str]:
    """Those of the versions, ascending, that are to be served. Raises ArtifactError for one that is not there.

    >>> choose_versions(2, ["1", "2", "10"]), choose_versions((1, 10), ["1", "2", "10"])
    (['2', '10'], ['1', '10'])
    """
    if asked == "all":
        return list(found)
    if isinstance(asked, int):
        return list(found[-asked:])
    if missing := [version for version in asked if str(version) not in found]:
        raise ArtifactError(f"version {missing[0]} is asked for, and there are {', '.join(found)}")
    return [version for version in found if int(version) in asked]


def scan_repository(folder: Path) -> FoundModels:
    """The models of the repository. What is wrong with one is logged, and the others are found all the same.

    Raises ConfigError where the folder cannot be read.
    """
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise ConfigError(f"server.repository: {folder}: {error.strerror}") from None
    found = FoundModels({}, {})
    for entry in entries:
        try:
            found.entries[entry.name] = read_tenant(entry / SETTINGS, entry.name, entry)
        except ConfigError as error:
            _log.error("%s", error)
            found.broken[entry.name] = str(error).replace(str(entry), entry.name)
    return found


def wanted_versions(entry: TenantConfig) -> list[WantedVersion]:
    """The versions of a model that are to be served. Raises ArtifactError."""
    found = find_versions(Path(entry.artifact))
    return [WantedVersion(entry, version, found[version]) for version in choose_versions(entry.versions, list(found))]


def configured_models(config: ServeConfig) -> FoundModels:
    """All models; a tenant of the configuration goes before a model of the repository with its name.

    Raises ConfigError where the repository cannot be read.
    """
    own = {tenant.name: tenant for tenant in config.tenants}
    if config.server.repository is None:
        return FoundModels(own, {})
    found = scan_repository(Path(config.server.repository))
    broken = {name: reason for name, reason in found.broken.items() if name not in own}
    return FoundModels({**found.entries, **own}, broken)


def without_folder(entry: TenantConfig | None, error: VeltairError) -> str:
    """What went wrong, for clients: they need not know where models lie."""
    return str(error) if entry is None else str(error).replace(entry.artifact, entry.name)
