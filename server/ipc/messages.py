"""Messages between front, engine and workers: msgpack, one message a packet, each tagged with its type.

Tensors do not travel here; they lie in the tensor pool. All times are CLOCK_MONOTONIC, which the processes share.

    front -> engine    ConfigureEngine, InferQuery, AbortQuery, GetStatus, Shutdown
    engine -> front    EngineReady, StartFailed, QueryEnded, EngineStatus
    engine -> worker   LoadModels, RunBlock
    worker -> engine   ModelsLoaded, StartFailed, BlockDone, KernelFailed, CoresChanged
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from veltair.config import CounterCoefficients
from veltair.types import CoreSet


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of all messages; its name is the tag on the wire.

    >>> msgspec.json.encode(AbortQuery(query=7))
    b'{"type":"AbortQuery","query":7}'
    """


class TenantSpec(msgspec.Struct, frozen=True):
    """A tenant as the engine and its workers need it; the front has checked the artifact's digests.

    >>> tenant = TenantSpec("vision", "/srv/resnet50", "ab12", 15_000_000, 0.95, priority=1, batching=True)
    >>> LoadModels((tenant,), cores=(0, 1), slots=4).tenants[0].qos_ns
    15000000
    """

    name: str
    artifact: str  # absolute path
    digest: str
    qos_ns: int
    percentile: float
    priority: int
    batching: bool


# Front to engine


class ConfigureEngine(Message, frozen=True):
    """The first message. The engine answers with `EngineReady` or `StartFailed`.
    To serve on all cores that it may use::

        ConfigureEngine((tenant,), "veltair", cores=None, workers=4, spare_workers=1, slots=256, event_log=None)
    """

    tenants: tuple[TenantSpec, ...]
    policy: str
    cores: int | None
    workers: int | None
    spare_workers: int
    slots: int  # per tenant, in the tensor pool
    event_log: str | None
    counter_model: CounterCoefficients | None = None
    planned_share: float = 1.0  # of each target and deadline; policies plan with this share


class InferQuery(Message, frozen=True):
    """Run a query whose inputs lie in its slot. The engine sends exactly one `QueryEnded`, which frees the slot.

    >>> InferQuery(7, tenant=0, slot=3, batch=1, arrival_ns=100, deadline_ns=None).slot
    3
    """

    query: int  # unique and ascending within an engine's life
    tenant: int  # index into ConfigureEngine.tenants
    slot: int
    batch: int
    arrival_ns: int
    deadline_ns: int | None  # set by the client; None: only the tenant's target applies


class AbortQuery(Message, frozen=True):
    """Nobody waits for this query any more: `AbortQuery(query=7)`."""

    query: int


class GetStatus(Message, frozen=True):
    """The engine answers with an `EngineStatus`.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(GetStatus()))
    {'type': 'GetStatus'}
    """


class Shutdown(Message, frozen=True):
    """Exit at once: `Shutdown()`. The front sends it when all queries are answered, or when it stops waiting."""


# Engine to front


class EngineReady(Message, frozen=True):
    """Every worker has loaded every model: `EngineReady(workers=4, cores=(0, 1))`."""

    workers: int
    cores: CoreSet


class StartFailed(Message, frozen=True):
    """The engine or a worker cannot start: `StartFailed("ConfigError", "no core")`; `kind` is one of veltair.errors."""

    kind: str
    reason: str


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

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.begin_ns


Outcome: TypeAlias = Literal["done", "rejected", "cancelled", "failed", "worker_died"]


class QueryEnded(Message, frozen=True):
    """A query has ended: `QueryEnded(7, "rejected", "cannot be in time")`. No process touches its slot any more."""

    query: int
    outcome: Outcome
    reason: str = ""
    blocks: tuple[BlockRecord, ...] = ()


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
    batches: dict[int, int] = {}  # batches started, by their number of queries


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
    state: Literal["starting", "idle", "busy"]
    query: int | None
    started_ns: int


class EngineStatus(Message, frozen=True):
    """The engine now.
    A gap is a worker's idle time between two blocks of one query started back to back; on average, in ns::

        status.gap_ns / status.gaps
    """

    time_ns: int
    level: float
    level_source: str
    conflicts: int
    capped_blocks: int
    blocks: int  # started
    scheduler_ns: int  # spent deciding, summed over all events
    scheduler_events: int
    gap_ns: int
    gaps: int
    worker_deaths: int
    tenants: dict[str, TenantStatus]
    running: tuple[BlockStatus, ...]
    workers: tuple[WorkerStatus, ...]


# Engine to worker


class LoadModels(Message, frozen=True):
    """A worker's first message: `LoadModels((tenant,), (0, 1), 4)`. It answers with `ModelsLoaded` or `StartFailed`."""

    tenants: tuple[TenantSpec, ...]
    cores: CoreSet
    slots: int


class BatchMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One query of a batch: the slot of its tensors and its number of samples, `BatchMember(slot=3, samples=1)`."""

    slot: int
    samples: int


class RunBlock(Message, frozen=True):
    """Run layers [start, start + len(versions)) of a query or a batch, on the cores that the worker's cell holds.

    `cores` is what the cell holds when this is sent: the worker reports when it finds other cores there.

    >>> RunBlock(7, 0, (BatchMember(slot=3, samples=1),), start=0, versions=(0, 2), cores=(0, 1)).versions
    (0, 2)
    """

    query: int  # the batch's first
    tenant: int
    members: tuple[BatchMember, ...]
    start: int
    versions: tuple[int, ...]
    cores: CoreSet


# Worker to engine


class ModelsLoaded(Message, frozen=True):
    """The worker is ready for blocks: `ModelsLoaded()`."""


class BlockDone(Message, frozen=True):
    """The block reached layer `stop`, before its end if the cell asked it to stop: `BlockDone(7, 3, 100, 350)`."""

    query: int
    stop: int
    begin_ns: int
    end_ns: int


class KernelFailed(Message, frozen=True):
    """A kernel raised an error; the worker lives: `KernelFailed(query=7, reason="out of memory")`."""

    query: int
    reason: str


class CoresChanged(Message, frozen=True):
    """The worker found another core set before `layer`, and uses it from there: `CoresChanged(7, 2, (0, 1), 100)`."""

    query: int
    layer: int
    cores: CoreSet
    time_ns: int


ToEngine: TypeAlias = ConfigureEngine | InferQuery | AbortQuery | GetStatus | Shutdown
ToFront: TypeAlias = EngineReady | StartFailed | QueryEnded | EngineStatus
ToWorker: TypeAlias = LoadModels | RunBlock
FromWorker: TypeAlias = ModelsLoaded | StartFailed | BlockDone | KernelFailed | CoresChanged
