"""A worker process: holds every tenant's model and runs one query or batch at a time, block by block.

Started by the engine as `python -m veltair.server.worker.worker PARENT SOCKET CELL POOL` (the last three are inherited
descriptors). It ends when the engine's end of the socket closes, or with the engine.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from veltair.errors import VeltairError
from veltair.server.engine.tenancy import open_artifact
from veltair.server.ipc.channel import Channel, ClosedError
from veltair.server.ipc.messages import BlockBroke, BlockDone, Grown, Load, Loaded, Refused, Run, ToWorker
from veltair.server.ipc.process_setup import leave_signals_to_front, set_nice, tie_to_parent
from veltair.server.ipc.worker_cell import Cell

if TYPE_CHECKING:
    from veltair.profiles.artifact.artifact_folder import Artifact
    from veltair.profiles.runtime import executor
    from veltair.profiles.runtime.block_runner import BoundBlock
    from veltair.profiles.runtime.pinned_threads import PinnedThreads
    from veltair.server.ipc.tensor_pool import TensorPool
    from veltair.server.worker.batch import Batch
    from veltair.types import CoreSet

logger = logging.getLogger("veltair.worker")

MAX_BOUND = 512  # bindings kept: one per slot and number of samples that was seen


class Worker:
    """Models loaded and warm, threads pinned. `channel` blocks."""

    def __init__(self, channel: Channel[ToWorker], cell: Cell, pool: TensorPool, cores: PinnedThreads) -> None:
        from veltair.profiles.runtime.block_runner import Watch

        self._channel = channel
        self._cell = cell
        self._pool = pool
        self._cores = cores
        self._executors: list[executor.Executor] = []  # by tenant; tenants with the same artifact share one
        self._bound: dict[tuple[int, int | None, int], executor.ModelRun] = {}  # (tenant, slot, samples)
        self._batches: dict[int, Batch] = {}  # by tenant; its bindings have no slot
        self._watch = Watch(*cell.addresses())
        self._sequence = -1  # of the cell, as last read
        self._told: CoreSet = ()  # the block's cores as the engine believes

    def load(self, artifacts: Sequence[Artifact]) -> None:
        """Load every artifact and run it once. Raises ArtifactError."""
        from veltair.profiles.runtime.executor import Executor

        loaded: dict[str, Executor] = {}
        for artifact in artifacts:
            if artifact.digest not in loaded:
                loaded[artifact.digest] = Executor(artifact)
                warm_up(loaded[artifact.digest])
            self._executors.append(loaded[artifact.digest])

    def serve(self) -> None:
        """Run blocks until the engine closes its end."""
        while True:
            message = self._channel.receive()
            if isinstance(message, Run):
                self._channel.send(self._run(message))

    def _run(self, run: Run) -> BlockDone | BlockBroke:
        try:
            batch = self._batch(run.tenant) if len(run.parts) > 1 else None
            if batch and run.start == 0:
                batch.gather(run.parts)
            block = self._block(run, batch)
            begin_ns = time.monotonic_ns()
            stop = self._layers(run, block)
            end_ns = time.monotonic_ns()
            if batch and stop == len(self._executors[run.tenant].manifest.layers):
                batch.scatter(run.parts)
            return BlockDone(run.query, stop, begin_ns, end_ns)
        except Exception as error:  # whatever a kernel raises costs this batch alone
            return BlockBroke(run.query, f"{type(error).__name__}: {error}")

    def _block(self, run: Run, batch: Batch | None) -> BoundBlock:
        tenant, slot = run.tenant, run.parts[0].slot
        samples = sum([part.samples for part in run.parts])
        key = (tenant, None if batch else slot, samples)
        bound = self._bound.get(key)
        if bound is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            if batch:
                inputs, outputs = batch.inputs(samples), batch.outputs(samples)
            else:
                inputs, outputs = self._pool.inputs(tenant, slot, samples), self._pool.outputs(tenant, slot, samples)
            bound = self._bound[key] = self._executors[tenant].bind(samples, inputs, outputs)
        return bound.block(run.start, run.versions)

    def _batch(self, tenant: int) -> Batch:
        from veltair.server.worker.batch import Batch

        if tenant not in self._batches:
            self._batches[tenant] = Batch(self._pool, tenant, self._executors[tenant].manifest)
        return self._batches[tenant]

    def _layers(self, run: Run, block: BoundBlock) -> int:
        """All layers of the block in one call, or in one more each time the cell has news."""
        self._told = run.cores
        layer = block.start
        while (layer := block.run(layer, self._watch, self._sequence)) < block.stop:
            if not self._obey(run, layer):
                break
        return layer

    def _obey(self, run: Run, layer: int) -> bool:
        """Take up what the cell says now; False when this query is cancelled."""
        self._sequence, cores, cancelled = self._cell.read()
        if cancelled == run.query:
            return False
        self._cores.move_to(cores)
        if cores != self._told:
            self._told = cores
            self._channel.send(Grown(run.query, layer, cores, time.monotonic_ns()))
        return True


def warm_up(executor: executor.Executor) -> None:
    """Every version of every layer once: page faults, lazy symbols and TVM's first launch happen here."""
    from veltair.profiles.runtime.executor import empty

    manifest = executor.manifest
    inputs, outputs = (
        [empty(port.at(1), port.dtype) for port in side] for side in (manifest.input_tensors, manifest.outputs)
    )
    for array, port in zip(inputs, manifest.input_tensors, strict=True):
        if port.low is not None and port.low > 0:
            array.fill(port.low)
    run = executor.bind(1, inputs, outputs)
    for index, layer in enumerate(manifest.layers):
        for version in range(len(layer.versions)):
            run.layer(index, version)


def main(arguments: Sequence[str]) -> int:
    parent, sock, cell, pool_fd = map(int, arguments)
    tie_to_parent(parent)
    leave_signals_to_front()
    set_nice(0)  # the engine's own is inherited
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=sock), ToWorker)
    try:
        load = channel.receive()
        if not isinstance(load, Load):
            raise TypeError(f"expected Load first, got {load!r}")
        try:
            worker = _ready(channel, Cell(cell), pool_fd, load)
        except VeltairError as error:
            channel.send(Refused(type(error).__name__, str(error)))
            return 1
        except Exception as error:  # a library that lacks a symbol, a kernel that rejects its arguments, …
            logger.exception("loading the models failed")
            channel.send(Refused("ArtifactError", f"the models cannot be loaded: {type(error).__name__}: {error}"))
            return 1
        channel.send(Loaded())
        worker.serve()
    except ClosedError:
        return 0
    return 0


def _ready(channel: Channel[ToWorker], cell: Cell, pool_fd: int, load: Load) -> Worker:
    # Imported here, at the worker's own priority: loading TVM takes a third of a second of a core.
    from veltair.profiles.runtime.pinned_threads import PinnedThreads
    from veltair.server.ipc.tensor_pool import TensorPool

    artifacts = [open_artifact(spec) for spec in load.tenants]
    pool = TensorPool(pool_fd, [artifact.manifest for artifact in artifacts], load.slots)
    os.close(pool_fd)
    worker = Worker(channel, cell, pool, PinnedThreads(load.cores))
    worker.load(artifacts)
    gc.collect()
    gc.freeze()
    return worker


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
