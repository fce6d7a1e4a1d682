"""`WorkerProcess`: one child process of the engine, with its channel and its cell."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from veltair.server.ipc.block_orders import Order
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.forks.fork_server import ForkedProcess, ForkServer
from veltair.server.ipc.messages import FromWorker, LoadModel, LoadModels, ModelChange, UnloadModel
from veltair.server.ipc.worker_cell import WorkerCell, create_worker_cell
from veltair.types import CoreSet


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What every worker is started with.

    >>> setup = WorkerSetup(LoadModels((), cores=(0, 1), slots=4), tensors=5, bell=6, cell_bytes=4096)
    >>> setup.load.cores
    (0, 1)
    """

    load: LoadModels
    tensors: int  # descriptor of the tensor pool
    bell: int  # descriptor of the eventfd that it writes when a block has ended
    cell_bytes: int

    @property
    def passed(self) -> list[int]:
        """Descriptors that a worker gets, except for that of its cell."""
        lanes = self.load.lanes
        of_lanes = () if lanes is None else (lanes.done, lanes.standing, *lanes.wakes)
        return [self.bell, self.tensors, *of_lanes, *chain.from_iterable(self.load.artifacts.values())]


class WorkerProcess:
    """A child that is `starting` until it has loaded every model, then `idle`, `busy` with one query, `attending` to
    what I/O threads order, or `changing` one of its models.

    ::

        worker = WorkerProcess(setup, forks)
        worker.channel.receive()  # ModelsLoaded or StartFailed
        worker.order(Order(…))
        os.eventfd_read(setup.bell)
        worker.cell.take_end()
    """

    def __init__(self, setup: WorkerSetup, forks: ForkServer) -> None:
        """Raises OSError when the system does not give what another process needs."""
        self.process = ForkedProcess(forks)
        self.pid, self.pidfd = self.process.pid, self.process.pidfd
        with ExitStack() as undo:
            undo.callback(self.process.end)
            fd = create_worker_cell(setup.cell_bytes)
            try:
                self.cell = WorkerCell(fd)
                self.channel: Channel[FromWorker] = Channel(self.process.socket, FromWorker)
                with suppress(ChannelClosedError):  # the pidfd reports its end
                    self.channel.pass_descriptors([fd, *setup.passed])
                    self.channel.send(setup.load)
            finally:
                os.close(fd)
            undo.pop_all()
        self.state: Literal["starting", "idle", "busy", "attending", "changing"] = "starting"
        self.holds = {spec.number for spec in setup.load.tenants}  # models
        self.change: ModelChange | None = None  # the last one
        self.query: int | None = None
        self.alive = True
        self.killed_for = ""  # why the engine has killed it
        self._main_core = -1  # where its main thread is pinned, if known
        self.started_ns = time.monotonic_ns()

    @property
    def shown_state(self) -> Literal["starting", "idle", "busy", "changing"]:
        """Its state for people: one that attends is idle, for all that the engine knows."""
        return "idle" if self.state == "attending" else self.state

    def order(self, order: Order) -> None:
        """Have it run a block. Nothing happens when it has just died: its pidfd reports that next."""
        self.pin_main_thread(order.cores)
        self.cell.publish_order(order)

    def attend(self, term: int, cores: CoreSet) -> None:
        """Have it run what I/O threads order, mostly on these cores; the order has ended once it does."""
        self.pin_main_thread(cores)
        self.cell.attend(term)

    def change_models(self, change: ModelChange, descriptors: Sequence[int]) -> None:
        """Have it load a model, whose artifact the descriptors are, or let go of one; its answer is a message."""
        self.change = change
        with suppress(ChannelClosedError):  # its pidfd reports its end
            self.channel.send(change, descriptors)
        self.cell.call()

    def is_changing(self, number: int) -> bool:
        """Whether its last change was of this model."""
        match self.change:
            case LoadModel(tenant=tenant):
                return tenant.number == number
            case UnloadModel(number=unloaded):
                return unloaded == number
        return False

    def pin_main_thread(self, cores: CoreSet) -> None:
        """Have the worker's main thread wake up on one of these cores.

        Another block may run by now where it slept last: it would wait there for its turn, for milliseconds at times,
        before it could pin itself.
        """
        if self._main_core not in cores:
            self._main_core = cores[0]
            with suppress(ProcessLookupError):  # its pidfd reports that next
                os.sched_setaffinity(self.pid, (self._main_core,))

    def kill(self) -> None:
        """Kill the process; its pidfd reports when the whole process is gone."""
        self.process.kill()

    def close(self) -> int:
        """Kill the process if it still runs, and reap it. Returns its exit code, negative for a signal."""
        self.channel.close()
        return self.process.end()
