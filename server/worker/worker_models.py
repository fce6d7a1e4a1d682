"""`WorkerModels`: the models that one worker holds; they come and go while it serves."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veltair.errors import VeltairError
from veltair.machine.load_pace import LoadPace, PacedLoad, WorkerTimes
from veltair.machine.malloc import return_free_memory
from veltair.server.ipc.block_orders import TENANT_BITS, tenant_of
from veltair.server.ipc.messages import (
    ModelChange,
    ModelChanged,
    ModelFailed,
    ModelLoaded,
    ModelUnloaded,
    TenantSpec,
    UnloadModel,
)
from veltair.server.ipc.open_artifacts import OpenArtifacts
from veltair.server.ipc.process_setup import let_others_first

if TYPE_CHECKING:
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import PinnedThreads
    from veltair.server.ipc.tensor_pool import TensorPool

logger = logging.getLogger("veltair.worker")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A tenant's model in this process: `LoadedModel(spec.digest, (Executor(artifact),))`."""

    digest: str
    executors: tuple[Executor, ...]  # of its buckets


class WorkerModels:
    """Models by tenant; tenants with the same artifact share one.

    ::

        models = WorkerModels(pool)
        models.load(spec, descriptors)
        models.executor(bucket_number(spec.number, 0)).bind(batch, inputs, outputs)
    """

    def __init__(self, pool: TensorPool, load_share: float = 1.0) -> None:
        """`load_share`: of a core, for loading beside workers that compute."""
        self.pool, self._load_share = pool, load_share
        self._models: dict[int, LoadedModel] = {}
        # Open for as long as their libraries are loaded: these have the names of their descriptors (`load_library`).
        self._artifacts = OpenArtifacts()

    def executor(self, number: int) -> Executor:
        """The executor of a `bucket_number`."""
        return self._models[tenant_of(number)].executors[number >> TENANT_BITS]

    def load(self, spec: TenantSpec, descriptors: Sequence[int], paced: PacedLoad | None = None) -> None:
        """Load a model, run all of it once, and compare its answer with the one that the artifact holds.

        Takes the descriptors of its artifact over. `paced`: where others are served meanwhile. Raises ArtifactError.
        """
        from veltair.profiles.runtime.answer_check import check_answer
        from veltair.profiles.runtime.executor import open_buckets

        artifact = self._artifacts.add(spec, descriptors)
        executors = next((model.executors for model in self._models.values() if model.digest == spec.digest), ())
        if not executors:
            for executor in open_buckets(artifact, paced.pause if paced else None):
                check_answer(artifact.path, executor, paced.pause_running if paced else None)
                executors = (*executors, executor)
        self.pool.add(spec.number, artifact.manifest, spec.offset)
        self._models[spec.number] = LoadedModel(spec.digest, executors)

    def change(self, change: ModelChange, descriptors: Sequence[int], threads: PinnedThreads) -> ModelChanged:
        """Load a model, or let go of one, which nothing is bound to, on a thread that leaves the cores to others."""
        with ThreadPoolExecutor(1, initializer=_stand_back, initargs=(threads.usable,)) as behind:
            if isinstance(change, UnloadModel):
                behind.submit(self._unload, change.number).result()
                return ModelUnloaded(change.number)
            with threads.on_any_thread():
                failure = behind.submit(self._try_to_load, change.tenant, descriptors).result()
        number = change.tenant.number
        return ModelLoaded(number) if failure is None else ModelFailed(number, *failure)

    def _unload(self, number: int) -> None:
        del self._models[number]
        self.pool.remove(number)
        self._close(number)
        return_free_memory()

    def _try_to_load(self, spec: TenantSpec, descriptors: Sequence[int]) -> tuple[str, str] | None:
        """Returns the kind of the error and its text where the model cannot be loaded."""
        try:
            paced = PacedLoad(LoadPace(self._load_share), WorkerTimes(lambda: [os.getppid()]))
            self.load(spec, descriptors, paced)
        except VeltairError as error:
            failure = type(error).__name__, str(error)
        except Exception as error:  # a library that lacks a symbol, a kernel that rejects its arguments, …
            logger.exception("loading %s failed", spec.name)
            failure = "ArtifactError", f"the model cannot be loaded: {type(error).__name__}: {error}"
        else:
            return None
        self._close(spec.number)  # now that the error, which refers to what was loaded, is gone
        return failure

    def _close(self, number: int) -> None:
        gc.collect()
        self._artifacts.remove(number)


def _stand_back(cores: tuple[int, ...]) -> None:
    os.sched_setaffinity(0, cores)  # the worker's main thread stays on one core, and that is inherited
    let_others_first()
