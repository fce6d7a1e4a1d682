"""`ModelControl`: loads, replaces and unloads models while the server serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from veltair.config import ServeConfig, TenantConfig
from veltair.errors import ArtifactError, ConfigError, RequestError, UnknownModelError, VeltairError, quoted
from veltair.profiles.artifact.sealed_artifact import SealedArtifact
from veltair.server.ipc.daemon_events import EventKind, Report, report_nothing
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.artifact_sizes import look_at
from veltair.server.repository.finished_changes import to_its_end
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.memory_room import MemoryRoom
from veltair.server.repository.model_folders import (
    WantedVersion,
    configured_models,
    find_model,
    read_again,
    wanted_versions,
    without_folder,
)
from veltair.server.repository.model_memory import MemoryMoves
from veltair.server.repository.model_state import (
    LOADING,
    READY,
    UNLOADED,
    UNLOADING,
    ModelState,
    ModelStates,
    index_rows,
)
from veltair.server.repository.residency import Residency
from veltair.server.repository.served_tenant import ServedTenant, served_tenant
from veltair.server.repository.serving_engine import ServingEngine, refuse_while_draining

_log = logging.getLogger("veltair.server")


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
        self._states, self._reads = ModelStates(), FolderReads()
        self._one_at_a_time = asyncio.Lock()
        self.room = MemoryRoom(config.server, loader, self._reads)
        self.residency = Residency(config.server, self.room, loader, self._reads, self._one_at_a_time)
        self.engine: ServingEngine | None = None
        self.read_config: Callable[[], ServeConfig] = lambda: config  # as its file is now
        self.on_change: Callable[[], None] = lambda: None  # other models are live
        # What else a configuration changes, in words.
        self.on_reload: Callable[[ServeConfig, FolderReads], Awaitable[list[str]]] | None = None

    async def prepare(self) -> list[ServedTenant]:
        """Check the artifacts of all models. One of the repository that is broken is left out, and the index says why.

        Those that do not fit into `max_resident_bytes` are checked, and come with their first query. Raises
        ArtifactError or ConfigError for those of the configuration.
        """
        self._entries, broken = await self._reads.run(configured_models, self._config)
        self._states.tell_broken(broken)
        wanted: list[WantedVersion] = []
        for entry in self._entries.values():
            try:
                wanted += await self._reads.run(wanted_versions, entry)
            except ArtifactError as error:
                self._leave_out(entry, "1", error)
        first = await self.room.first(wanted)
        served = {}
        for each in sorted(wanted, key=first.__contains__):  # others leave again: the bound holds meanwhile
            try:
                served[each] = await self._check_first(each, stays=each in first)
            except ArtifactError as error:
                self._leave_out(each.entry, each.version, error)
        return [served[each] for each in wanted if each in served]

    def _leave_out(self, entry: TenantConfig, version: str, error: ArtifactError) -> None:
        if any(entry is tenant for tenant in self._config.tenants):
            raise error
        _log.error("%s %s is not served: %s", entry.name, version, error)
        self._report(EventKind.MODEL_FAILED, entry.name, str(error))
        self._states[entry.name, version] = ModelState("UNAVAILABLE", without_folder(entry, error))

    async def _check_first(self, wanted: WantedVersion, *, stays: bool) -> ServedTenant:
        entry, begin_ns = wanted.entry, time.monotonic_ns()
        if self.room.bounded:
            found = await self._reads.run(look_at, wanted.path)
            self.room.require(found, batching=entry.batching, what=entry.name)
        served = self._as_set(entry, wanted.version, await self.loader.load(wanted.path))
        self._states[served.key] = READY
        self.room.loaded(served, time.monotonic_ns() - begin_ns)
        if stays:
            return served
        self.room.left(served)
        await self.loader.release(served.artifact)
        if served.pinned:
            raise ArtifactError(f"{entry.name}: resident models do not fit into server.max_resident_bytes together")
        return served.without_files()

    @to_its_end
    async def load(self, name: str) -> None:
        """Serve the versions of a model that its folder has now. Raises UnknownModelError, or RequestError when one
        cannot be loaded; what was served of it before still is then. OverloadedError: the server shuts down.
        """
        async with self._one_at_a_time:
            refuse_while_draining(self.engine)
            try:
                found = await self._reads.run(find_model, self._config, name)
                self._entries |= found.entries
                self._states.tell_broken(found.broken)
                if name in found.broken:
                    raise ConfigError(found.broken[name])
                await self._load(self._entry(name), wake=True)
            except (ArtifactError, ConfigError) as error:
                _log.error("%s is not loaded: %s", name, error)
                reason = without_folder(self._entries.get(name), error)
                raise RequestError(f"{name} is not loaded: {reason}") from None

    @to_its_end
    async def unload(self, name: str) -> None:
        """Serve the model no longer. Returns when nothing of it is in memory. Raises UnknownModelError."""
        async with self._one_at_a_time:
            refuse_while_draining(self.engine)
            entry = self._entry(name)
            for served in self._live(entry.name):
                await self._unload(served)

    @to_its_end
    async def reload(self) -> list[str]:
        """Serve what the configuration says now. Returns what it did, in words.

        Raises RequestError where more than tenants has changed, since that takes a restart, and for the first model
        that cannot be loaded; those that can be are.
        """
        try:
            done = await self._reload()
        except VeltairError as error:
            self._report(EventKind.RELOAD_FAILED, "", str(error))
            if isinstance(error, ArtifactError):
                raise RequestError(str(error)) from None
            raise
        self._report(EventKind.RELOADED, "", ", ".join(done) or "nothing has changed")
        return done

    async def _reload(self) -> list[str]:
        async with self._one_at_a_time:
            refuse_while_draining(self.engine)
            names = {each.name for each in self.engine.models.all()} if self.engine else set()
            config, (entries, broken) = await self._reads.run(read_again, self.read_config, self._config, names)
            try:
                done = [] if self.on_reload is None else await self.on_reload(config, self._reads)
            except ConfigError as error:
                raise RequestError(f"nothing is reloaded: {error}") from None
            before, self._config = self._entries, config
            self._states.tell_broken(broken)
            self._entries = entries | {name: before[name] for name in before.keys() & broken.keys()}
            failure = next((f"{name} is not loaded: {reason}" for name, reason in broken.items()), None)
            for name in {*before, *(name for name, _ in self._states)} - self._entries.keys() - broken.keys():
                for served in self._live(name):
                    await self._unload(served)
                    done.append(f"unloaded {name} {served.version}")
                self._states.forget(name)
            for name, entry in self._entries.items():
                try:
                    done += await self._load(entry)
                except ArtifactError as error:
                    _log.error("%s is not loaded: %s", name, error)
                    failure = failure or f"{name} is not loaded: {without_folder(entry, error)}"
            if failure is not None:
                raise RequestError("; ".join((failure, *done)))
            return done

    def index(self, ready: bool) -> list[dict[str, str]]:
        """Every version that is or was served, or could not be. `ready`: whether the engine takes queries."""
        left = () if self.engine is None else [each for each in self.engine.models.all() if not each.resident]
        return index_rows(self._states, {each.key: self.residency.state_away(each) for each in left}, ready)

    def memory_moves(self) -> MemoryMoves:
        return MemoryMoves(self.residency.came_back, self.room.left_memory, self.residency.waiting)

    async def close(self) -> None:
        """Give up what is on its way, and close all artifacts."""
        self._reads.close()
        await self.residency.close()
        self.loader.close()

    def _entry(self, name: str) -> TenantConfig:
        if name not in self._entries:
            raise UnknownModelError(f"the repository has no model {quoted(name)}")
        return self._entries[name]

    def _live(self, name: str) -> list[ServedTenant]:
        assert self.engine is not None
        return [served for served in self.engine.models.all() if served.name == name]

    def _as_set(self, entry: TenantConfig, version: str, artifact: SealedArtifact) -> ServedTenant:
        return served_tenant(entry, version, artifact, self._config.server.queue_slots)

    async def _load(self, entry: TenantConfig, *, wake: bool = False) -> list[str]:
        """`wake`: what has left memory comes back."""
        done = []
        try:
            wanted = await self._reads.run(wanted_versions, entry)
            for each in wanted:
                before = next((served for served in self._live(entry.name) if served.version == each.version), None)
                if await self._load_version(each, before, wake=wake):
                    done.append(f"loaded {entry.name} {each.version}")
        except VeltairError as error:
            refuse_while_draining(self.engine)  # what loads models has ended by then, which is no fault of this one
            self._report(EventKind.MODEL_FAILED, entry.name, str(error))
            raise
        versions = [each.version for each in wanted]
        self._states.keep(entry.name, {*versions, *(served.version for served in self._live(entry.name))})
        for served in self._live(entry.name):
            if served.version not in versions:
                await self._unload(served)
                done.append(f"unloaded {entry.name} {served.version}")
        return done

    async def _load_version(self, wanted: WantedVersion, before: ServedTenant | None, *, wake: bool) -> bool:
        """Returns whether there was anything to do."""
        entry, version, path = wanted
        key, engine = (entry.name, version), self.engine
        assert engine is not None
        changed = before is not None and not before.is_set_as(self._as_set(entry, version, before.artifact))
        self._states[key] = LOADING if before is None else READY
        served = None
        try:
            if self.room.bounded:
                found = await self._reads.run(look_at, path)
                same = before is not None and before.artifact.digest == found.digest
                if same and before is not None and not before.resident:
                    return await self._load_away(entry, before, changed=changed, wake=wake)
                if changed or not same:
                    kept = () if before is None else (before,)
                    await self.room.make_room(found, batching=entry.batching, what=entry.name, keep=kept)
            begin_ns = time.monotonic_ns()
            served = self._as_set(entry, version, await self.loader.load(path))
            if before is not None and not changed and served.artifact.digest == before.artifact.digest:
                await self.loader.release(served.artifact)
                return False
            await engine.load(served)
        except BaseException as error:
            if served is not None:
                await self.loader.release(served.artifact)
            if isinstance(error, VeltairError):
                reason = without_folder(entry, error)
                self._states[key] = ModelState("UNAVAILABLE" if before is None else "READY", reason)
            raise
        self._states[key] = READY
        self.room.loaded(served, time.monotonic_ns() - begin_ns)
        self.residency.forget_failure(served)
        self._report(EventKind.MODEL_LOADED, entry.name, f"version {version}{' again' if before is not None else ''}")
        self.on_change()
        if before is not None:
            await self._release(before)
        return True

    async def _load_away(self, entry: TenantConfig, before: ServedTenant, *, changed: bool, wake: bool) -> bool:
        """What has left memory is what its folder has now."""
        assert self.engine is not None
        if changed:
            before = self._as_set(entry, before.version, before.artifact)
            self.engine.models.put(before)
            self.on_change()
        if wake:
            await self.residency.bring_back(before)
        return changed or wake

    async def _release(self, served: ServedTenant) -> None:
        assert self.engine is not None
        await self.engine.unload(served)
        if served.resident:
            self.room.left(served)
            await self.loader.release(served.artifact)

    async def _unload(self, served: ServedTenant) -> None:
        assert self.engine is not None
        key = served.name, served.version
        self._states[key] = UNLOADING
        await self._release(served)
        self._states[key] = UNLOADED
        self._report(EventKind.MODEL_UNLOADED, served.name, f"version {served.version}")
        self.on_change()
