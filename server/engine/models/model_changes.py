"""`ModelChanges`: models that come and go while the engine serves.

A model is loaded by one idle worker after the other, so that as many as before take queries (the spare stands in). A
worker that dies of that had no query, and the next one tries once all are back. The scheduler hears of a model when
every worker holds it, and of its end before the first worker lets go of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from veltair.errors import ArtifactError, VeltairError
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.server.engine.models.served_models import PreparedModel, ServedModels
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.tenant_artifact import open_artifact
from veltair.server.ipc.worker_cell import cell_bytes

logger = logging.getLogger("veltair.engine")

MOST_NS = 300_000_000_000  # for one worker to load one model, and for all of them
TOO_SLOW = "not every worker has loaded it in time"
MOST_DEATHS = 2  # of workers that load one model
LOOK_S = 0.25  # while something is under way, how often the engine looks
PREPARE_S = 0.002  # between two tables of costs


@dataclass(slots=True)
class ComingModel:
    """A model that not every worker holds yet."""

    spec: m.TenantSpec
    artifact: Artifact
    prepared: PreparedModel
    is_prepared: bool = False
    since_ns: int = 0  # when its loading began
    deaths: int = 0  # of workers that loaded it


class ModelChanges:
    """Decides which worker loads or lets go of which model next, and when that is done everywhere.

    ::

        changes = ModelChanges(served, supervisor, front.send)
        changes.begin(LoadModel(spec))
        while changes.under_way:
            changes.advance(time.monotonic_ns())
    """

    def __init__(
        self, served: ServedModels, supervisor: WorkerSupervisor, answer: Callable[[m.ModelChanged], None]
    ) -> None:
        """`answer`: tells the front how a change that it asked for has ended."""
        self._served, self._supervisor, self._answer = served, supervisor, answer
        self._coming: dict[int, ComingModel] = {}
        self._leaving: set[int] = set()  # served until their last query has ended
        self._going: set[int] = set()  # workers may hold them
        self._changing: WorkerProcess | None = None
        self._began_ns = 0

    @property
    def under_way(self) -> bool:
        return bool(self._coming or self._leaving or self._going or self._changing)

    @property
    def look_s(self) -> float | None:
        """How soon there is something to do again, at the latest; None: nothing is under way."""
        if any(not coming.is_prepared for coming in self._coming.values()):
            return PREPARE_S
        return LOOK_S if self.under_way else None

    def begin(self, change: m.ModelChange) -> None:
        """Begin to load a model, or to forget one once its last query has ended."""
        if isinstance(change, m.UnloadModel):
            self._leaving.add(change.number)
            return
        spec = change.tenant
        try:
            artifact = open_artifact(spec)
            layers = len(artifact.manifest.layers)
            if cell_bytes(layers, artifact.manifest.max_batch) > self._supervisor.cell_bytes:
                raise ArtifactError(f"{artifact.path}: {layers} layers are more than the workers take")
            prepared = self._served.prepare(spec, artifact)
        except VeltairError as error:
            self._going.add(spec.number)  # no worker holds it
            self._answer(m.ModelFailed(spec.number, type(error).__name__, str(error)))
            return
        self._coming[spec.number] = ComingModel(spec, artifact, prepared)

    def advance(self, now_ns: int) -> None:
        """Do what can be done now."""
        for number in [number for number in self._leaving if self._served.is_idle(number)]:
            self._leaving.remove(number)
            self._served.remove(number)
            self._supervisor.serve(self._served.specs.values())
            self._going.add(number)
        for number, coming in list(self._coming.items()):
            coming.since_ns = coming.since_ns or now_ns
            if now_ns - coming.since_ns > MOST_NS:
                self._fail(m.ModelFailed(number, ArtifactError.__name__, f"{coming.artifact.path}: {TOO_SLOW}"))
        if self._changing is not None and now_ns - self._began_ns > MOST_NS:
            self._supervisor.kill_hung(self._changing)
        if self._changing is None:
            self._change_next_worker(now_ns)
        self._settle()

    def worker_answered(self, worker: WorkerProcess, message: m.ModelChanged) -> None:
        """A worker has done what it was asked to, or failed."""
        self._changing = None
        if isinstance(message, m.ModelLoaded):
            worker.holds.add(message.number)
        elif isinstance(message, m.ModelUnloaded):
            worker.holds.discard(message.number)
        else:
            self._fail(message)
        self._supervisor.release(worker)

    def worker_died(self, worker: WorkerProcess, ending: str) -> None:
        """A worker that was to change its models is gone."""
        if self._changing is worker:
            self._changing = None
            if isinstance(change := worker.change, m.LoadModel):
                self._died_loading(change.tenant.number, ending)

    def _died_loading(self, number: int, ending: str) -> None:
        """Somebody may have killed the worker; one more death is the model's fault."""
        if (coming := self._coming.get(number)) is not None:
            coming.deaths += 1
            if coming.deaths >= MOST_DEATHS:
                reason = f"{coming.artifact.path}: the worker process that loads the model {ending}"
                self._fail(m.ModelFailed(number, ArtifactError.__name__, reason))

    def _fail(self, failure: m.ModelFailed) -> None:
        if (coming := self._coming.pop(failure.number, None)) is not None:
            logger.error("%s is not loaded: %s", coming.spec.name, failure.reason)
            self._going.add(failure.number)
            self._answer(failure)
        # A model that is served already is loaded once more by the worker's next change.

    def _change_next_worker(self, now_ns: int) -> None:
        for worker in self._supervisor.idle:
            if (change := self._change_for(worker)) is not None:
                self._supervisor.change(worker, change)
                self._changing, self._began_ns = worker, now_ns
                return

    def _change_for(self, worker: WorkerProcess) -> m.ModelChange | None:
        """The next change that the worker needs."""
        for number in worker.holds:
            if number in self._going:
                return m.UnloadModel(number)
        for number, spec in self._served.specs.items():
            if number not in worker.holds:
                return m.LoadModel(spec)
        if self._supervisor.complete:
            for number, coming in self._coming.items():
                if number not in worker.holds:
                    return m.LoadModel(coming.spec)
        return None

    def _settle(self) -> None:
        """Tell of what is done by every worker."""
        workers = self._supervisor.all
        for number in [n for n in self._going if not any(n in worker.holds for worker in workers)]:
            self._going.remove(number)
            self._answer(m.ModelUnloaded(number))
        holding = [worker for worker in workers if worker.state != "starting" and worker.alive]
        for number, coming in list(self._coming.items()):
            coming.is_prepared = coming.is_prepared or coming.prepared.make_some()
            if coming.is_prepared and holding and all(number in worker.holds for worker in holding):
                try:
                    self._served.add(coming.prepared)
                except VeltairError as error:
                    self._fail(m.ModelFailed(number, type(error).__name__, str(error)))
                    continue
                del self._coming[number]
                self._supervisor.serve(self._served.specs.values())
                self._answer(m.ModelLoaded(number))
