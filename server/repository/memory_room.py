"""`MemoryRoom`: has idle models leave memory, so that what is in it stays below `max_resident_bytes`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from veltair.config import ServerConfig
from veltair.errors import ArtifactError, OverloadedError, RefusalReason
from veltair.machine.topology import usable_machine
from veltair.server.repository.artifact_loader import ArtifactLoader
from veltair.server.repository.artifact_sizes import FoundArtifact, buffer_bytes, look_at, sealed_bytes
from veltair.server.repository.engine_models import EngineModels
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.memory_budget import MemoryBudget, MemoryNeed, ResidentModel, first_residents
from veltair.server.repository.model_folders import WantedVersion
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.repository.serving_engine import ServingEngine

LOOK_S = 0.02  # between two looks whether models have become idle
WORKERS_A_CORE = 2  # as the engine starts them, where memory allows (`default_workers`)

_log = logging.getLogger("veltair.server")


class MemoryRoom:
    """What is in memory, where that has a bound; without one, nothing here does anything.

    Whoever calls what loads or unloads holds the lock of `ModelControl`. ::

        await room.make_room(found, batching=True, what="resnet50")
        ...  # load it
        room.loaded(served, load_ns)
    """

    def __init__(self, config: ServerConfig, loader: ArtifactLoader, reads: FolderReads) -> None:
        self.engine: ServingEngine | None = None
        self.refresh: Callable[[], None] = lambda: None  # tells `ended` of queries that Python has not seen
        self.left_memory = Counter[str]()  # how often models of a tenant have
        self.using = Counter[tuple[str, str]]()  # queries in Python, by tenant and version
        self.load_ns: dict[str, int] = {}  # by digest: how long the last load took
        self._loader, self._reads = loader, reads
        workers = config.workers or WORKERS_A_CORE * (config.cores or len(usable_machine().cores))
        self._workers = workers + config.spare_workers  # that hold all models, at most
        self._wait_ns = int(config.model_wait_s * 1e9)
        most = config.max_resident_bytes
        self._budget = None if most is None else MemoryBudget[ServedTenant](most)

    @property
    def bounded(self) -> bool:
        return self._budget is not None

    @property
    def numbered(self) -> EngineModels | None:
        """The models as the engine knows them; None while there is no engine."""
        return None if self.engine is None else self.engine.numbered

    def used(self, served: ServedTenant, time_ns: int) -> None:
        """A query of the model was there at that time."""
        if self._budget is not None:
            self._budget.used(served, time_ns)

    def ended(self, number: int, time_ns: int) -> None:
        """The same, by the model's number in the engine."""
        if (numbered := self.numbered) is not None and (served := numbered.served_as(number)) is not None:
            self.used(served, time_ns)

    def loaded(self, served: ServedTenant, load_ns: int) -> None:
        """A model is in memory, after so long."""
        if self._budget is not None:
            self.load_ns[served.artifact.digest] = load_ns
            found = FoundArtifact(served.manifest, served.artifact.digest, sealed_bytes(served.artifact.files))
            need = self.need(found, batching=served.batching)
            self._budget.loaded(served, ResidentModel(need, load_ns, time.monotonic_ns(), served.pinned))

    def left(self, served: ServedTenant) -> None:
        """A model is not in memory any more."""
        if self._budget is not None:
            self._budget.left(served)

    def need(self, found: FoundArtifact, *, batching: bool) -> MemoryNeed:
        """What a model takes before its first query."""
        shared = found.sealed.total + self._workers * found.manifest.private_bytes(self._workers)
        return MemoryNeed(found.digest, shared, self._workers * buffer_bytes(found.manifest, batching=batching))

    async def first(self, wanted: Sequence[WantedVersion]) -> Collection[WantedVersion]:
        """Those that are in memory when the server starts: the pinned ones, and of the others as many as fit."""
        if self._budget is None:
            return wanted
        needs = []
        for each in sorted(wanted, key=lambda each: not each.entry.resident):
            with suppress(ArtifactError):  # it is met again by the check
                found = await self._reads.run(look_at, each.path)
                needs.append((each, self.need(found, batching=each.entry.batching)))
        return first_residents(needs, self._budget.most_bytes)

    def require(self, found: FoundArtifact, *, batching: bool, what: str) -> MemoryNeed:
        """What a model takes. Raises ArtifactError where there can never be so much."""
        need = self.need(found, batching=batching)
        if self._budget is not None and not self._budget.ever_fits(need):
            size, most = need.shared + need.own, self._budget.most_bytes
            rest = "" if size > most else ", of which resident models take the rest"
            raise ArtifactError(f"{what} takes {size:,} bytes of memory; server.max_resident_bytes is {most:,}{rest}")
        return need

    async def make_room(
        self, found: FoundArtifact, *, batching: bool, what: str, keep: Collection[ServedTenant] = ()
    ) -> None:
        """Have models leave until this one fits. Those of `keep` stay.

        Raises ArtifactError where it can never fit, and OverloadedError where the others have not been idle in time.
        """
        if (budget := self._budget) is None:
            return
        need = self.require(found, batching=batching, what=what)
        give_up_ns, staying = time.monotonic_ns() + self._wait_ns, set(keep)
        while True:
            self._measure(budget)
            now_ns = time.monotonic_ns()
            busy = staying | {served for served in budget.models if self._is_busy(served)}
            leaving = budget.leaving_for(need, busy, now_ns)
            if leaving:
                if not await self._can_come_back(leaving[0]):
                    staying.add(leaving[0])
                elif not self._is_busy(leaving[0]):
                    await self._leave(budget, leaving[0])
            elif leaving is not None:
                return
            elif now_ns > give_up_ns:
                raise OverloadedError(RefusalReason.NOT_RESIDENT)
            else:
                await asyncio.sleep(LOOK_S)

    def _measure(self, budget: MemoryBudget[ServedTenant]) -> None:
        """Uses that are not told yet, and the slots that models take by now."""
        self.refresh()
        numbered = self.numbered
        for served in list(budget.models):
            buffers = self._workers * buffer_bytes(served.manifest, batching=served.batching)
            budget.grown(served, buffers + (0 if numbered is None else numbered.slot_bytes(served)))

    def _is_busy(self, served: ServedTenant) -> bool:
        held = 0 if self.numbered is None else self.numbered.held(served)
        return held > 0 or self.using[served.key] > 0

    async def _can_come_back(self, served: ServedTenant) -> bool:
        """Whether its folder is what it was."""
        try:
            found = await self._reads.run(look_at, served.artifact.path)
        except ArtifactError:
            found = None
        sealed = sealed_bytes(served.artifact.files)
        if found is not None and (found.digest, found.sealed) == (served.artifact.digest, sealed):
            return True
        _log.warning("%s %s stays in memory: its folder is not what it was when it was loaded", *served.key)
        return False

    async def _leave(self, budget: MemoryBudget[ServedTenant], served: ServedTenant) -> None:
        engine, before = self.engine, budget.bytes
        assert engine is not None
        idle_s = (time.monotonic_ns() - budget.models[served].used_ns) / 1e9
        engine.models.put(served.without_files())
        await engine.unload(served)
        await self._loader.release(served.artifact)
        budget.left(served)
        self.left_memory[served.name] += 1
        _log.info("%s %s has left memory: %.1f MB, idle for %.1f s", *served.key, (before - budget.bytes) / 1e6, idle_s)
