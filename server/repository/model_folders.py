"""Where models lie: folders of versions, and the repository, a folder of such folders."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from veltair.access_config import NAME_PATTERN
from veltair.config import ServeConfig, TenantConfig, changed_keys, read_tenant
from veltair.errors import ArtifactError, ConfigError, RequestError, VeltairError
from veltair.profiles.artifact.artifact_folder import MANIFEST

SETTINGS = "tenant.toml"
OF_THE_FILE_SYSTEM = "lost+found"  # at the root of a disk, and no model
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
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ConfigError(f"server.repository: {folder}: {error.strerror}") from None
    found = FoundModels({}, {})
    for name in names:
        if not name.startswith(".") and name != OF_THE_FILE_SYSTEM:
            _look_at_model(folder, name, found)
    return found


def find_model(config: ServeConfig, name: str) -> FoundModels:
    """One model alone, whatever is wrong with the others; nothing where there is none of that name.

    Raises ConfigError where the repository cannot be read.
    """
    found = FoundModels({each.name: each for each in config.tenants if each.name == name}, {})
    if found.entries or config.server.repository is None or name.startswith(".") or not _is_name(name):
        return found
    folder = Path(config.server.repository)
    _look_at_model(folder, name, found)
    if not found.entries and not found.broken:
        try:
            folder.stat()
        except OSError as error:
            raise ConfigError(f"server.repository: {error.strerror}") from None
    return found


def _look_at_model(repository: Path, name: str, found: FoundModels) -> None:
    """Add the model of that folder. A file, or what is gone meanwhile, is none; a link that leads nowhere is a model
    whose store is away."""
    folder = repository / name
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return
        if not _is_name(name):
            raise ConfigError(f"{folder}: no name of a model: expected 1 to 64 letters, digits, '.', '_' and '-'")
        found.entries[name] = read_tenant(folder / SETTINGS, name, folder)
    except ConfigError as error:
        fault = str(error)
    except OSError as error:
        if not os.path.lexists(folder) and isinstance(error, FileNotFoundError):
            return
        fault = f"{folder}: cannot be read: {error.strerror}"
    else:
        return
    _log.error("%s", _as_text(fault))
    found.broken[_as_text(name)] = _as_text(fault.replace(str(folder), name))


def _is_name(name: str) -> bool:
    return re.fullmatch(NAME_PATTERN, name) is not None


def _as_text(name: str) -> str:
    """What names of files say that are not UTF-8: no message can have them as they are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


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


def read_again(
    read: Callable[[], ServeConfig], before: ServeConfig, served: Collection[str]
) -> tuple[ServeConfig, FoundModels]:
    """What the configuration and the repository say now. `served`: names of all models that are.

    Raises RequestError where one of them cannot be read, or where more has changed than a reload can do. A file that
    names no clients any more would let everybody in, and may be one whose end is missing. A repository without any
    model, of which some are served, is what an empty mount point looks like: a model that is to go is deleted beside
    others, or unloaded by name.
    """
    try:
        config = read()
        found = configured_models(config)
    except ConfigError as error:
        raise RequestError(f"the configuration is not read again: {error}") from None
    if changed := changed_keys(before.server, config.server, "server"):
        raise RequestError(f"{', '.join(changed)}: a change takes a restart; nothing is reloaded")
    if before.clients and not config.clients:
        text = "clients: the file names none any more, and everybody might ask: that takes a restart"
        raise RequestError(f"{text}; nothing is reloaded")
    own = {tenant.name for tenant in config.tenants}
    lost = set(served) - {tenant.name for tenant in before.tenants} - own
    if lost and not found.broken and found.entries.keys() <= own:
        text = f"server.repository: has no model any more, and {len(lost)} of it are served: is it mounted?"
        raise RequestError(f"{text} nothing is reloaded")
    return config, found


def without_folder(entry: TenantConfig | None, error: VeltairError) -> str:
    """What went wrong, for clients: they need not know where models lie."""
    return str(error) if entry is None else str(error).replace(entry.artifact, entry.name)
