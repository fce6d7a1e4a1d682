"""`ModelControl`: loads, replaces and unloads models while the server serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from veltair.config import ServeConfig, TenantConfig
from veltair.errors import ArtifactError, ConfigError, RequestError, UnknownModelError, VeltairError
from veltair.server.ipc.daemon_events import EventKind, Report, report_nothing
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.model_folders import choose_versions, find_versions, scan_repository
from veltair.server.repository.served_tenant import ServedTenant, served_tenant

_log = logging.getLogger("veltair.server")


class ModelState(NamedTuple):
    """A version of a model in the repository index: `ModelState("UNAVAILABLE", "unloaded")`."""

    state: str  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str = ""


READY, LOADING, UNLOADING = ModelState("READY"), ModelState("LOADING"), ModelState("UNLOADING")
UNLOADED, NOT_NOW = ModelState("UNAVAILABLE", "unloaded"), ModelState("UNAVAILABLE", "starting or shutting down")


class ServingEngine(Protocol):
    """What runs the models: `EngineClient`."""

    @property
    def models(self) -> LiveModels: ...

    async def load(self, served: ServedTenant) -> None: ...

    async def unload(self, served: ServedTenant) -> None: ...


class ModelControl:
    """The models that are known, from the configuration and the repository, and what is done with them.

    One change at a time. A version that cannot be loaded leaves the one before serving. ::

        control = ModelControl(config, loader)
        served = await control.prepare()  # for the engine to start with
        control.engine = client
        await control.load("resnet50")  # its versions as they are in their folder now
        await control.reload()  # as `control.read_config` finds it
    """

    def __init__(self, config: ServeConfig, loader: ArtifactLoader, report: Report = report_nothing) -> None:
        """`report`: hears of what is loaded, unloaded and reloaded, and of what cannot be."""
        self._config, self.loader, self._report = config, loader, report
        self._entries: dict[str, TenantConfig] = {}
        self._states: dict[tuple[str, str], ModelState] = {}
        self._one_at_a_time = asyncio.Lock()
        self.engine: ServingEngine | None = None
        self.read_config: Callable[[], ServeConfig] = lambda: config  # as its file is now
        self.on_change: Callable[[], None] = lambda: None  # other models are live
        self.on_reload: Callable[[ServeConfig], list[str]] = lambda _: []  # what else it changes, in words

    async def prepare(self) -> list[ServedTenant]:
        """Check the artifacts of all models. One of the repository that is broken is left out, and the index says why.

        Raises ArtifactError or ConfigError for those of the configuration.
        """
        self._entries = dict(_entries(self._config))
        own = {tenant.name for tenant in self._config.tenants}
        served = []
        for entry in self._entries.values():
            try:
                for version, path in _wanted(entry).items():
                    served.append(await self._check(entry, version, path))
            except ArtifactError as error:
                if entry.name in own:
                    raise
                _log.error("%s is not served: %s", entry.name, error)
                self._report(EventKind.MODEL_FAILED, entry.name, str(error))
                self._states[entry.name, "1"] = ModelState("UNAVAILABLE", _without_folder(entry, error))
        return served

    async def load(self, name: str) -> None:
        """Serve the versions of a model that its folder has now. Raises UnknownModelError, or RequestError when one
        cannot be loaded; what was served of it before still is then.
        """
        async with self._one_at_a_time:
            if self._config.server.repository is not None:
                self._entries |= scan_repository(Path(self._config.server.repository))
            entry = self._entry(name)
            try:
                await self._load(entry)
            except ArtifactError as error:
                _log.error("%s is not loaded: %s", name, error)
                raise RequestError(f"{name} is not loaded: {_without_folder(entry, error)}") from None

    async def unload(self, name: str) -> None:
        """Serve the model no longer. Returns when nothing of it is in memory. Raises UnknownModelError."""
        async with self._one_at_a_time:
            entry = self._entry(name)
            for served in self._live(entry.name):
                await self._unload(served)

    async def reload(self) -> list[str]:
        """Serve what the configuration says now. Returns what it did, in words.

        Raises RequestError where more than tenants has changed, since that takes a restart, and for the first model
        that cannot be loaded; those that can be are.
        """
        try:
            done = await self._reload()
        except VeltairError as error:
            self._report(EventKind.RELOAD_FAILED, "", str(error))
            raise
        self._report(EventKind.RELOADED, "", ", ".join(done) or "nothing has changed")
        return done

    async def _reload(self) -> list[str]:
        async with self._one_at_a_time:
            try:
                config = self.read_config()
            except ConfigError as error:
                raise RequestError(f"the configuration is not read again: {error}") from None
            if config.server != self._config.server:
                raise RequestError("[server] has changed, which takes a restart; nothing is reloaded")
            try:
                done = self.on_reload(config)
            except ConfigError as error:
                raise RequestError(f"nothing is reloaded: {error}") from None
            before, self._config = self._entries, config
            self._entries = dict(_entries(config))
            failure = None
            for name in before.keys() - self._entries.keys():
                for served in self._live(name):
                    await self._unload(served)
                    done.append(f"unloaded {name} {served.version}")
                self._states = {key: state for key, state in self._states.items() if key[0] != name}
            for name, entry in self._entries.items():
                try:
                    done += await self._load(entry, anew=before.get(name) != entry)
                except ArtifactError as error:
                    _log.error("%s is not loaded: %s", name, error)
                    failure = failure or f"{name} is not loaded: {_without_folder(entry, error)}"
            if failure is not None:
                raise RequestError(failure)
            return done

    def index(self, ready: bool) -> list[dict[str, str]]:
        """Every version that is or was served, or could not be. `ready`: whether the engine takes queries."""
        rows, names = [], list(dict.fromkeys(name for name, _ in self._states))
        for (name, version), state in sorted(
            self._states.items(), key=lambda item: (names.index(item[0][0]), int(item[0][1]))
        ):
            shown = (
                ModelState("UNAVAILABLE", "starting or shutting down")
                if state.state == "READY" and not ready
                else state
            )
            rows.append({"name": name, "version": version, "state": shown.state, "reason": shown.reason})
        return rows

    def _entry(self, name: str) -> TenantConfig:
        if name not in self._entries:
            raise UnknownModelError(f"the repository has no model {name!r:.80}")
        return self._entries[name]

    def _live(self, name: str) -> list[ServedTenant]:
        assert self.engine is not None
        return [served for served in self.engine.models.all() if served.name == name]

    async def _check(self, entry: TenantConfig, version: str, path: Path) -> ServedTenant:
        artifact = await self.loader.load(path)
        self._states[entry.name, version] = READY
        return served_tenant(entry, version, artifact, self._config.server.queue_slots)

    async def _load(self, entry: TenantConfig, *, anew: bool = False) -> list[str]:
        """`anew`: its settings have changed."""
        live = {served.version: served for served in self._live(entry.name)}
        done = []
        try:
            wanted = _wanted(entry)
            for version, path in wanted.items():
                if await self._load_version(entry, version, path, live.get(version), anew):
                    done.append(f"loaded {entry.name} {version}")
        except VeltairError as error:
            self._report(EventKind.MODEL_FAILED, entry.name, str(error))
            raise
        for version, served in live.items():
            if version not in wanted:
                await self._unload(served)
                done.append(f"unloaded {entry.name} {version}")
        return done

    async def _load_version(
        self, entry: TenantConfig, version: str, path: Path, before: ServedTenant | None, anew: bool
    ) -> bool:
        """Returns whether there was anything to do."""
        key, engine = (entry.name, version), self.engine
        assert engine is not None
        self._states[key] = LOADING if before is None else READY
        served = None
        try:
            served = await self._check(entry, version, path)
            if before is not None and not anew and served.artifact.digest == before.artifact.digest:
                await self.loader.release(served.artifact)
                return False
            self._states[key] = LOADING if before is None else READY
            await engine.load(served)
        except BaseException as error:
            if served is not None:
                await self.loader.release(served.artifact)
            if isinstance(error, VeltairError):
                reason = _without_folder(entry, error)
                self._states[key] = ModelState("UNAVAILABLE" if before is None else "READY", reason)
            raise
        self._states[key] = READY
        self._report(EventKind.MODEL_LOADED, entry.name, f"version {version}{' anew' if before is not None else ''}")
        self.on_change()
        if before is not None:
            await engine.unload(before)
            await self.loader.release(before.artifact)
        return True

    async def _unload(self, served: ServedTenant) -> None:
        assert self.engine is not None
        key = served.name, served.version
        self._states[key] = UNLOADING
        await self.engine.unload(served)
        await self.loader.release(served.artifact)
        self._states[key] = UNLOADED
        self._report(EventKind.MODEL_UNLOADED, served.name, f"version {served.version}")
        self.on_change()


def _without_folder(entry: TenantConfig, error: VeltairError) -> str:
    """What went wrong, for clients: they need not know where models lie."""
    return str(error).replace(entry.artifact, entry.name)


def _wanted(entry: TenantConfig) -> Mapping[str, Path]:
    """The versions of a model that are to be served."""
    found = find_versions(Path(entry.artifact))
    return {version: found[version] for version in choose_versions(entry.versions, list(found))}


def _entries(config: ServeConfig) -> Mapping[str, TenantConfig]:
    """All models by name; a tenant of the configuration goes before a model of the repository with its name."""
    own = {tenant.name: tenant for tenant in config.tenants}
    repository = config.server.repository
    return own if repository is None else {**scan_repository(Path(repository)), **own}
