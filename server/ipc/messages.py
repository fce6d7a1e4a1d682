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
    """A tenant as the engine and its workers need it; the front has checked the artifact's digests."""

    name: str
    artifact: str  # absolute path
    digest: str
    qos_ns: int
    percentile: float
    priority: int
    batching: bool


# Front to engine


class ConfigureEngine(Message, frozen=True):
    """The first message. The engine answers with `EngineReady` or `StartFailed`."""

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
    """Run a query whose inputs lie in its slot. The engine sends exactly one `QueryEnded`, which frees the slot."""

    query: int  # unique and ascending within an engine's life
    tenant: int  # index into ConfigureEngine.tenants
    slot: int
    batch: int
    arrival_ns: int
    deadline_ns: int | None  # set by the client; None: only the tenant's target applies


class AbortQuery(Message, frozen=True):
    """Nobody waits for this query any more."""

    query: int


class GetStatus(Message, frozen=True):
    """The engine answers with an `EngineStatus`."""


class Shutdown(Message, frozen=True):
    """Exit at once. The front sends it when every query is answered, or when it stops waiting for answers."""


# Engine to front


class EngineReady(Message, frozen=True):
    """Every worker has loaded every model."""

    workers: int
    cores: CoreSet


class StartFailed(Message, frozen=True):
    """The engine or a worker cannot start. `kind` is the class of the error in veltair.errors."""

    kind: str
    reason: str


class CoreChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block in execution moved to other cores before `layer`."""

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
    """A query has ended. No process touches its slot any more."""

    query: int
    outcome: Outcome
    reason: str = ""
    blocks: tuple[BlockRecord, ...] = ()


class TenantStatus(msgspec.Struct, frozen=True):
    """Counts of one tenant since the engine started."""

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
    """A block in execution now."""

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
    """A worker process now."""

    pid: int
    state: Literal["starting", "idle", "busy"]
    query: int | None
    started_ns: int


class EngineStatus(Message, frozen=True):
    """The engine now. A gap is a worker's idle time between two blocks of one query started back to back."""

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
    """A worker's first message. The worker answers with `ModelsLoaded` or `StartFailed`."""

    tenants: tuple[TenantSpec, ...]
    cores: CoreSet
    slots: int


class BatchMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One query of a batch: the slot of its tensors and its number of samples."""

    slot: int
    samples: int


class RunBlock(Message, frozen=True):
    """Run layers [start, start + len(versions)) of a query or a batch, on the cores that the worker's cell holds.

    `cores` is what the cell holds when this is sent: the worker reports when it finds other cores there.
    """

    query: int  # the batch's first
    tenant: int
    members: tuple[BatchMember, ...]
    start: int
    versions: tuple[int, ...]
    cores: CoreSet


# Worker to engine


class ModelsLoaded(Message, frozen=True):
    """The worker is ready for blocks."""


class BlockDone(Message, frozen=True):
    """The block reached layer `stop`, which lies before its end when the cell asked it to stop."""

    query: int
    stop: int
    begin_ns: int
    end_ns: int


class KernelFailed(Message, frozen=True):
    """A kernel raised an error; the worker lives."""

    query: int
    reason: str


class CoresChanged(Message, frozen=True):
    """The worker found another core set in its cell before `layer`, and uses it from there on."""

    query: int
    layer: int
    cores: CoreSet
    time_ns: int


ToEngine: TypeAlias = ConfigureEngine | InferQuery | AbortQuery | GetStatus | Shutdown
ToFront: TypeAlias = EngineReady | StartFailed | QueryEnded | EngineStatus
ToWorker: TypeAlias = LoadModels | RunBlock
FromWorker: TypeAlias = ModelsLoaded | StartFailed | BlockDone | KernelFailed | CoresChanged
