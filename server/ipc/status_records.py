"""What the engine tells of its blocks, tenants and workers, inside its messages to the front."""

from __future__ import annotations

from typing import Literal

import msgspec

from veltair.types import CoreSet


class CoreChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block in execution moved to other cores before `layer`: `CoreChange(2, (0, 1), time_ns=200)`."""

    layer: int
    cores: CoreSet
    time_ns: int


class BlockRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block that has run: layers [start, stop) of a query, first on `cores`, then on those of each core change.

    >>> record = BlockRecord(1, "mlp", 0, 3, (0, 2, 2), (0, 1), begin_ns=100, end_ns=350, conflict=False, level=1.0)
    >>> record.elapsed_ns
    250
    """

    query: int
    tenant: str
    start: int
    stop: int
    versions: tuple[int, ...]  # one for each layer that ran
    cores: CoreSet
    begin_ns: int
    end_ns: int
    conflict: bool  # it wanted more cores than were free
    level: float  # interference level that the versions were chosen for
    core_changes: tuple[CoreChange, ...] = ()
    queries: int = 1  # in the batch that it ran for; the batch has the id of its first query
    failed: bool = False  # in its last layer

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.begin_ns


class Executions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Executions of a model with one number of samples.

    >>> Executions(2, 700) + Executions(1, 300)
    Executions(count=3, execute_ns=1000)
    """

    count: int = 0
    execute_ns: int = 0  # in blocks, summed

    def __add__(self, more: Executions) -> Executions:
        return Executions(self.count + more.count, self.execute_ns + more.execute_ns)


class TenantStatus(msgspec.Struct, frozen=True):
    """Counts of one tenant since the engine started.

    >>> TenantStatus(arrived=3, done=2, batches={1: 2}).batches[1]
    2
    """

    arrived: int = 0
    waiting: int = 0  # now: admitted by the scheduler, not started
    running: int = 0  # now: started, not ended
    done: int = 0
    within_qos: int = 0  # done with arrival to end within the target
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    queue_ns: int = 0  # arrival to first block, summed over the done queries
    execute_ns: int = 0  # in blocks, summed over the done queries
    predicted_ns: int = 0  # of the blocks that ran on the cores they were planned for, by their profile
    measured_ns: int = 0  # what those blocks took
    batches: dict[int, int] = {}  # batches started, by their number of queries
    executions: dict[str, dict[int, Executions]] = {}  # batches done, by version of the model and number of samples
    versions: dict[int, int] = {}  # layers run by code version, summed over the done queries


class BlockStatus(msgspec.Struct, frozen=True):
    """A block in execution now, e.g. `status.running[0].layer` of an `EngineStatus`."""

    query: int
    tenant: str
    worker: int  # process id
    start: int
    stop: int
    layer: int  # in execution
    versions: tuple[int, ...]
    cores: CoreSet
    conflict: bool
    since_ns: int  # when the scheduler ordered it


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker process now: `WorkerStatus(pid=4711, state="busy", query=7, started_ns=100)`."""

    pid: int
    state: Literal["starting", "idle", "busy", "changing"]
    query: int | None
    started_ns: int


class SandboxStatus(msgspec.Struct, frozen=True):
    """What confines a worker, and why something does not: `SandboxStatus(landlock_abi=7, seccomp=True)`."""

    landlock_abi: int = 0  # 0: Landlock does not
    seccomp: bool = False
    gaps: tuple[str, ...] = ()
