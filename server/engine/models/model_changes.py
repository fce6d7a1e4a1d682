"""`ModelChanges`: models that come and go while the engine serves.

A model is loaded by one idle worker after the other, so that as many as before take queries (the spare stands in). A
worker that dies of that had no query, and the next one tries once all are back. The scheduler hears of a model when
every worker holds it, and of its end before the first worker lets go of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from veltair.errors import ArtifactError, VeltairError
from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.server.engine.models.served_models import PreparedModel, ServedModels
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.open_artifacts import OpenArtifacts
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
    artifact: CheckedArtifact
    prepared: PreparedModel
    is_prepared: bool = False
    since_ns: int = 0  # when its loading began
    deaths: int = 0  # of workers that loaded it


class ModelChanges:
    """Decides which worker loads or lets go of which model next, and when that is done everywhere.

    ::

        changes = ModelChanges(served, supervisor, opened, front.send)
        changes.begin(LoadModel(spec), front.take_descriptors())
        while changes.under_way:
            changes.advance(time.monotonic_ns())
    """

    def __init__(
        self,
        served: ServedModels,
        supervisor: WorkerSupervisor,
        opened: OpenArtifacts,
        answer: Callable[[m.ModelChanged], None],
    ) -> None:
        """`opened`: the artifacts of what is served. `answer`: tells the front how a change that it asked for has
        ended."""
        self._served, self._supervisor, self._opened, self._answer = served, supervisor, opened, answer
        self._coming: dict[int, ComingModel] = {}
        self._leaving: set[int] = set()  # served until their last query has ended
        self._going: set[int] = set()  # workers may hold them
        self._changing: dict[WorkerProcess, int] = {}  # since when

    @property
    def under_way(self) -> bool:
        return bool(self._coming or self._leaving or self._going or self._changing)

    @property
    def look_s(self) -> float | None:
        """How soon there is something to do again, at the latest; None: nothing is under way."""
        if not self.under_way:
            return None
        return LOOK_S if all(coming.is_prepared for coming in self._coming.values()) else PREPARE_S

    def begin(self, change: m.ModelChange, descriptors: Sequence[int] = ()) -> None:
        """Begin to load a model, whose artifact the descriptors are, or to forget one once its last query has ended."""
        if isinstance(change, m.UnloadModel):
            self._leaving.add(change.number)
            return
        spec = change.tenant
        try:
            artifact = self._opened.add(spec, descriptors)
            layers = max(len(each.layers) for each in artifact.manifest.every_bucket)
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
            self._serve()
            self._going.add(number)
        for number, coming in list(self._coming.items()):
            coming.since_ns = coming.since_ns or now_ns
            if now_ns - coming.since_ns > MOST_NS:
                self._fail(m.ModelFailed(number, ArtifactError.__name__, f"{coming.artifact.path}: {TOO_SLOW}"))
        for worker, began_ns in self._changing.items():
            if now_ns - began_ns > MOST_NS:
                self._supervisor.kill_hung(worker, "a change of its models")
        if not self._changing:
            self._change_next_worker(now_ns)
        self._settle()

    def worker_answered(self, worker: WorkerProcess, message: m.ModelChanged, now_ns: int) -> None:
        """A worker has done what it was asked to, or failed."""
        del self._changing[worker]
        if isinstance(message, m.ModelLoaded):
            worker.holds.add(message.number)
        elif isinstance(message, m.ModelUnloaded):
            worker.holds.discard(message.number)
        elif message.number in self._coming:
            self._fail(message)
        elif message.number in self._served.specs:  # it is of no use: another takes its place
            logger.error("worker %d does not load what is served: %s", worker.pid, message.reason)
            worker.kill()
        self._supervisor.release(worker)
        self.worker_idle(worker, now_ns)

    def worker_idle(self, worker: WorkerProcess, now_ns: int) -> None:
        """A worker could take queries. It does once it holds all that is served, which has changed since it started."""
        for number, spec in self._served.specs.items():
            if number not in worker.holds and worker.alive:
                self._change(worker, m.LoadModel(spec), now_ns)
                return

    def worker_died(self, worker: WorkerProcess, ending: str) -> None:
        """A worker is gone, maybe of its change."""
        if self._changing.pop(worker, None) is not None and isinstance(change := worker.change, m.LoadModel):
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

    def _change(self, worker: WorkerProcess, change: m.ModelChange, now_ns: int) -> None:
        files = self._opened.files(change.tenant.number) if isinstance(change, m.LoadModel) else ()
        self._supervisor.change(worker, change, files)
        self._changing[worker] = now_ns

    def _serve(self) -> None:
        """Workers that start from here on load what is served now."""
        specs = list(self._served.specs.values())
        self._supervisor.serve(specs, {spec.digest: self._opened.files(spec.number) for spec in specs})

    def _change_next_worker(self, now_ns: int) -> None:
        for worker in self._supervisor.idle:
            if (change := self._change_for(worker)) is not None:
                self._change(worker, change, now_ns)
                return

    def _change_for(self, worker: WorkerProcess) -> m.ModelChange | None:
        """The next change that the worker needs."""
        for number in worker.holds:
            if number in self._going:
                return m.UnloadModel(number)
        if self._supervisor.complete:
            for number, coming in self._coming.items():
                if number not in worker.holds:
                    return m.LoadModel(coming.spec)
        return None

    def _is_held(self, number: int) -> bool:
        """Whether a worker holds the model, or loads it."""
        loading = [worker.change.tenant.number for worker in self._changing if isinstance(worker.change, m.LoadModel)]
        return number in loading or any(number in worker.holds for worker in self._supervisor.all)

    def _settle(self) -> None:
        """Tell of what is done by every worker."""
        for number in [number for number in self._going if not self._is_held(number)]:
            self._going.remove(number)
            self._opened.remove(number)
            self._answer(m.ModelUnloaded(number))
        holding = [worker for worker in self._supervisor.all if worker.state != "starting" and worker.alive]
        for number, coming in list(self._coming.items()):
            coming.is_prepared = coming.is_prepared or coming.prepared.make_some()
            if coming.is_prepared and holding and all(number in worker.holds for worker in holding):
                try:
                    self._served.add(coming.prepared)
                except VeltairError as error:
                    self._fail(m.ModelFailed(number, type(error).__name__, str(error)))
                    continue
                del self._coming[number]
                self._serve()
                self._answer(m.ModelLoaded(number))
