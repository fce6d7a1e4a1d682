"""`Worker`: holds every tenant's model and runs one query or batch at a time, block by block.

The engine has it forked from a process that has imported all that it needs (`ForkServer`). It ends with the engine, or
soon after the engine's end of the socket closes.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veltair.errors import VeltairError
from veltair.server.ipc.block_orders import BATCH, BlockEnd, tenant_of, unpack_key
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.done_queries import DoneQueries
from veltair.server.ipc.logs.line_writer import log_promptly
from veltair.server.ipc.messages import (
    CoresChanged,
    KernelFailed,
    LoadModel,
    LoadModels,
    ModelsLoaded,
    StartFailed,
    ToWorker,
    UnloadModel,
)
from veltair.server.ipc.open_artifacts import as_passed
from veltair.server.ipc.process_setup import die_with_parent
from veltair.server.ipc.standing_orders import StandingOrders
from veltair.server.ipc.worker_cell import ATTEND, WorkerCell
from veltair.server.worker.lent_worker import LentWorker
from veltair.server.worker.sandbox import confine
from veltair.server.worker.worker_models import WorkerModels

if TYPE_CHECKING:
    from veltair.profiles.runtime import executor
    from veltair.profiles.runtime.block_runner import BoundBlock
    from veltair.profiles.runtime.pinned_threads import PinnedThreads
    from veltair.server.worker.batch_buffers import BatchBuffers
    from veltair.types import CoreSet

logger = logging.getLogger("veltair.worker")

MAX_BOUND = 512  # bindings kept: one per slot and number of samples that was seen
MAX_PREPARED = 4096  # blocks kept: for each binding those that were ordered
PATIENCE_NS = 1_000_000_000  # without an order, before the worker looks whether the engine is still there


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A block that is bound to its tensors.

    ::

        prepared = PreparedBlock(run.block(0, versions), last=False, batch=None)
    """

    block: BoundBlock
    last: bool  # its queries are done at its end
    batch: BatchBuffers | None  # of several queries: to gather before the first block, to scatter after the last


class Worker:
    """Models loaded and warm, threads pinned.

    ::

        worker = Worker(channel, cell, bell, models, threads)
        worker.serve()  # until the engine closes its end of the channel
    """

    def __init__(
        self,
        channel: Channel[ToWorker],
        cell: WorkerCell,
        bell: int,
        models: WorkerModels,
        threads: PinnedThreads,
        done: DoneQueries | None = None,
        standing: StandingOrders | None = None,
    ) -> None:
        """`channel` blocks. `bell`: a descriptor. `threads` run the kernels, pinned to the cores that `cell` holds.
        `done`: where I/O threads of the front wait for queries; `standing`: where they order some themselves."""
        from veltair.profiles.runtime.block_runner import Watch

        self._channel = channel
        self._cell = cell
        self._bell, self._done = bell, done
        self._pool = models.pool
        self._threads = threads
        self._models = models
        self._bound: dict[tuple[int, int, int], executor.ModelRun] = {}  # (tenant, slot, samples)
        self._prepared: dict[bytes, PreparedBlock] = {}  # by the packed key of their order
        self._batches: dict[int, BatchBuffers] = {}  # by tenant; a batch's bindings have no slot
        self._watch = watch = Watch(*cell.word_addresses())
        kept = models.pool.slots, watch, threads.usable
        self._lent = done and standing and LentWorker(channel, cell, bell, standing, done, *kept, self)
        self.sequence = -1  # of the cell when the threads were moved last
        self.cores: CoreSet = ()  # the block's as the engine knows them
        self._reported = False  # whether this block sent messages

    def serve(self) -> None:
        """Run blocks, and change models. Raises ChannelClosedError when the engine has closed its end."""
        while True:
            if self._cell.wait_for_order(PATIENCE_NS):
                self._run_order()
            elif self._channel.is_closed():
                raise ChannelClosedError

    def _change_models(self) -> None:
        change = self._channel.receive()
        if isinstance(change, UnloadModel):
            self._forget(change.number)
        if isinstance(change, LoadModel | UnloadModel):
            self._channel.send(self._models.change(change, self._channel.take_descriptors(), self._threads))

    def _forget(self, tenant: int) -> None:
        """Let go of all that was prepared for a tenant's model."""
        self._batches = {number: batch for number, batch in self._batches.items() if tenant_of(number) != tenant}
        self._bound = {key: bound for key, bound in self._bound.items() if tenant_of(key[0]) != tenant}
        prepared = self._prepared.items()
        self._prepared = {key: block for key, block in prepared if tenant_of(unpack_key(key).tenant) != tenant}
        if self._lent:
            self._lent.forget()

    def _run_order(self) -> None:
        query, key = self._cell.read_order()
        if not query:
            self._change_models()
            return
        if query == ATTEND and self._lent:
            self.sequence, self.cores = self._cell.sequence, ()  # it changes when the engine is back
            self._lent.attend(PATIENCE_NS)
            self.sequence = -1
            return
        self._reported = False
        try:
            prepared = self._prepared.get(key) or self._prepare(key)
            if prepared.batch and prepared.block.start == 0:
                prepared.batch.gather(self._cell.read_members())
            begin_ns = time.monotonic_ns()
            stop = self._run_layers(query, prepared.block)
            end_ns = time.monotonic_ns()
            done = prepared.last and stop == prepared.block.stop
            if done and prepared.batch:
                prepared.batch.scatter(self._cell.read_members())
        except Exception as error:  # whatever a kernel raises costs this batch alone
            self._channel.send(KernelFailed(query, f"{type(error).__name__}: {error}"))
        else:
            told_ns = self._tell_callers(begin_ns, end_ns) if done else 0
            self._cell.publish_end(BlockEnd(query, stop, self._reported, begin_ns, end_ns, told_ns), self._bell)

    def _tell_callers(self, begin_ns: int, end_ns: int) -> int:
        """Tell the front that the order's queries are done. Returns when; 0: that is the engine's to do."""
        callers = self._cell.callers()
        if self._done is None or not callers.queries:
            return 0
        first_ns, execute_ns = callers.begin_ns or begin_ns, callers.execute_ns + end_ns - begin_ns
        return self._done.report(callers.address, callers.queries, first_ns, execute_ns, end_ns)

    def _prepare(self, packed: bytes) -> PreparedBlock:
        key = unpack_key(packed)
        batch = self._batch(key.tenant) if key.slot == BATCH else None
        block = self._bind(key.tenant, key.slot, key.samples, batch).block(key.start, key.versions)
        last = block.stop == len(self._models.executor(key.tenant).manifest.layers)
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        prepared = self._prepared[packed] = PreparedBlock(block, last, batch)
        return prepared

    def _bind(self, tenant: int, slot: int, samples: int, batch: BatchBuffers | None) -> executor.ModelRun:
        key = tenant, slot, samples
        bound = self._bound.get(key)
        if bound is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
                self._prepared.clear()  # they keep their bindings
            if batch:
                inputs, outputs = batch.inputs(samples), batch.outputs(samples)
            else:
                inputs, outputs = self._pool.inputs(tenant, slot, samples), self._pool.outputs(tenant, slot, samples)
            bound = self._bound[key] = self._models.executor(tenant).bind(samples, inputs, outputs)
        return bound

    def _batch(self, tenant: int) -> BatchBuffers:
        from veltair.server.worker.batch_buffers import BatchBuffers

        if tenant not in self._batches:
            self._batches[tenant] = BatchBuffers(self._pool, tenant, self._models.executor(tenant).manifest)
        return self._batches[tenant]

    def _run_layers(self, query: int, block: BoundBlock) -> int:
        """All layers of the block in one call, or in one more each time the cell has changed. Returns the layer
        reached."""
        layer = block.start
        if self._cell.sequence != self.sequence:  # other cores than those of the last block, mostly
            self.cores = self._cell.read_ordered_cores()
            if not self._read_cell(query, layer):
                return layer
        return self._run_from(query, block, layer)

    def _run_from(self, query: int, block: BoundBlock, layer: int) -> int:
        while (layer := block.run(layer, self._watch, self.sequence)) < block.stop:
            if not self._read_cell(query, layer):
                break
        return layer

    def block(self, packed_key: bytes) -> BoundBlock:
        """`Runs.block`."""
        return (self._prepared.get(packed_key) or self._prepare(packed_key)).block

    def move_to(self, cores: CoreSet) -> None:
        """`Runs.move_to`."""
        self._threads.move_to(cores)
        self.cores = cores

    def resume(self, query: int, block: BoundBlock, layer: int) -> tuple[int, bool]:
        """`Runs.resume`."""
        self._reported = False
        if self._read_cell(query, layer):
            layer = self._run_from(query, block, layer)
        return layer, self._reported

    def _read_cell(self, query: int, layer: int) -> bool:
        """Move to the cores that the cell holds now; returns False when this query is cancelled."""
        sequence, cores, cancelled = self._cell.read()
        if cancelled == query:
            return False
        self._threads.move_to(cores)
        self.sequence = sequence
        if cores != self.cores:
            self.cores, self._reported = cores, True
            self._channel.send(CoresChanged(query, layer, cores, time.monotonic_ns()))
        return True


def run(engine: int, sock: socket.socket) -> int:
    """Be a worker of that engine, which passes on `sock` the descriptors of cell, bell and tensor pool, and those of
    lanes and artifacts. Returns the exit code."""
    channel: Channel[ToWorker] = Channel(sock, ToWorker)
    log_promptly()
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # TVM's handler takes half a second to print a stack
    try:
        passed = channel.receive_passed()
        die_with_parent(engine)  # by now the engine knows this process as its child
        load = channel.receive()
        if not isinstance(load, LoadModels):
            raise TypeError(f"expected LoadModels first, got {load!r}")
        os.sched_setaffinity(0, load.cores)
        try:
            cell, bell, pool, *_ = passed.values()
            load = as_passed(load, passed)
            sandbox = confine(load.sandbox)  # before the first thread starts, and before any artifact's code is loaded
            worker = _load_worker(channel, WorkerCell(cell), bell, pool, load)
        except VeltairError as error:
            channel.send(StartFailed(type(error).__name__, str(error)))
            return 1
        except Exception as error:  # a library that lacks a symbol, a kernel that rejects its arguments, …
            logger.exception("loading the models failed")
            channel.send(StartFailed("ArtifactError", f"the models cannot be loaded: {type(error).__name__}: {error}"))
            return 1
        channel.send(ModelsLoaded(sandbox))
        worker.serve()
    except ChannelClosedError:
        return 0
    return 0


def import_runtime() -> None:
    """Import all that a worker needs, before it is forked: this takes a third of a second of a core, and once it is
    confined it could not keep the modules that Python compiles."""
    import veltair.profiles.runtime.executor
    import veltair.profiles.runtime.native
    import veltair.server.ipc.tensor_pool
    import veltair.server.worker.batch_buffers  # noqa: F401


def _load_worker(channel: Channel[ToWorker], cell: WorkerCell, bell: int, pool_fd: int, load: LoadModels) -> Worker:
    from veltair.profiles.runtime.pinned_threads import PinnedThreads
    from veltair.server.ipc.tensor_pool import TensorPool

    pool = TensorPool(pool_fd, load.slots)
    os.close(pool_fd)
    done = None if load.lanes is None else DoneQueries(load.lanes)
    threads = PinnedThreads(load.cores)  # before any library with kernels is loaded
    models = WorkerModels(pool, load.load_share)
    for spec in load.tenants:
        models.load(spec, load.artifacts[spec.digest])
    gc.collect()
    gc.freeze()
    standing = None if load.lanes is None else StandingOrders(load.lanes.standing, len(load.lanes.wakes))
    return Worker(channel, cell, bell, models, threads, done, standing)
