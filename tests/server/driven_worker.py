"""A worker process that a test drives by hand."""

from __future__ import annotations

import os
from pathlib import Path

from example_models import SPIN_LAYERS
from running_daemon import until
from running_engine import living, readable
from tensor_pools import fill_pool

from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.sealed_artifact import seal_artifact
from veltair.server.engine.worker_process import WorkerProcess, WorkerSetup
from veltair.server.ipc.block_orders import BlockEnd, Members, Order
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.messages import FromWorker, LoadModels, TenantSpec
from veltair.server.ipc.tensor_pool import TensorPool, create_tensor_pool
from veltair.server.ipc.worker_cell import cell_bytes

CORES = usable_machine().cores

ALL = (0,) * SPIN_LAYERS


_forks = ForkServer("worker")  # of all tests in this process: it ends with it


def ready_forks() -> ForkServer:
    until("a fork server", _forks.is_ready)
    return _forks


class Driven:
    """A worker that has loaded the spin model, or another chain, and the memory it shares with us."""

    def __init__(self, artifacts: Path, name: str = "spin") -> None:
        loaded = seal_artifact(artifacts / name)
        spec = TenantSpec(name, "", loaded.digest, 1_000_000, 0.95, 1, False)
        fd = create_tensor_pool()
        self.pool = fill_pool(TensorPool(fd, 2), [loaded.manifest])
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        size = cell_bytes(len(loaded.manifest.layers), loaded.manifest.max_batch)
        load = LoadModels((spec,), CORES, 2, artifacts={loaded.digest: loaded.files})
        self.process = WorkerProcess(WorkerSetup(load, fd, self.bell, size), ready_forks())
        os.close(fd)
        loaded.files.close()
        self.cell = self.process.cell

    def close(self) -> None:
        self.process.close()
        os.close(self.bell)

    def next(self) -> FromWorker:
        assert readable(self.process.channel), "the worker says nothing"
        message = self.process.channel.receive()
        assert message is not None
        return message

    def end(self) -> BlockEnd:
        """How the block ended, once the bell rings."""
        assert readable(self.bell), "the bell does not ring"
        assert os.eventfd_read(self.bell) == 1
        end = self.cell.take_end()
        assert end is not None
        assert self.cell.take_end() is None
        return end

    def run(
        self, query: int, turns: int, cores: tuple[int, ...], start: int = 0, versions: tuple[int, ...] = ALL
    ) -> None:
        for view, value in zip(self.pool.inputs(0, 1, 1), (turns, 5), strict=True):
            view[:] = value
        self.cell.publish_order(Order(query, 0, Members.of([(1, 1)]), start, versions, cores))

    def reach(self, layer: int) -> None:
        """Until that layer is in execution; the worker says so in its cell."""
        while self.cell.progress < layer:
            assert living(self.process.pid)

    def pinned(self) -> list[set[int]]:
        return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{self.process.pid}/task").iterdir()]
