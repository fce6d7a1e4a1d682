"""What front, engine and workers say to each other: msgpack, one message a packet, each tagged with its type.

Tensors never travel here, they stand in the tensor pool. All times are CLOCK_MONOTONIC, which the processes share.

    front -> engine    Configure, Infer, Cancel, Ask, Shutdown
    engine -> front    Ready, Refused, Ended, Status
    engine -> worker   Load, Run
    worker -> engine   Loaded, Refused, BlockDone, BlockBroke, Grown
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from veltair.config import CounterCoefficients
from veltair.types import CoreSet


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    pass


class TenantSpec(msgspec.Struct, frozen=True):
    """A tenant as the engine and its workers need it; the front has checked the artifact's digests."""

    name: str
    artifact: str  # absolute path
    digest: str
    qos_ns: int
    percentile: float
    priority: int
    batching: bool


class Configure(Message, frozen=True):
    """The first message. `Ready` or `Refused` answers it."""

    tenants: tuple[TenantSpec, ...]
    policy: str
    cores: int | None
    workers: int | None
    spare_workers: int
    slots: int  # per tenant, in the tensor pool
    event_log: str | None
    counter_model: CounterCoefficients | None = None
    planned_share: float = 1.0  # of each target and deadline, what policies plan with


class Infer(Message, frozen=True):
    """A query whose inputs stand in its slot. Exactly one `Ended` answers it, which also gives the slot back."""

    query: int  # unique and ascending within an engine's life
    tenant: int  # index into Configure.tenants
    slot: int
    batch: int
    arrival_ns: int
    deadline_ns: int | None  # that the client set; None: only the tenant's target applies


class Cancel(Message, frozen=True):
    query: int


class Ask(Message, frozen=True):
    """Wants a `Status`."""


class Shutdown(Message, frozen=True):
    """Leave at once; the front sends it when nothing is left to answer, or when it waits no longer."""


class Ready(Message, frozen=True):
    """Every worker has loaded every model."""

    workers: int
    cores: CoreSet


class Refused(Message, frozen=True):
    """Cannot start. `kind` is the class of the error in veltair.errors."""

    kind: str
    reason: str


class Growth(msgspec.Struct, frozen=True, array_like=True, gc=False):
    layer: int
    cores: CoreSet
    time_ns: int


class BlockRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block as it ran: layers [start, stop) of a query of a tenant on `cores`, then on each growth's."""

    query: int
    tenant: str
    start: int
    stop: int
    versions: tuple[int, ...]  # one for each layer that ran
    cores: CoreSet
    begin_ns: int
    end_ns: int
    conflict: bool  # it wanted more cores than were free
    level: float  # interference level that the versions were picked for
    grown: tuple[Growth, ...] = ()
    queries: int = 1  # in the batch that it ran for, which bears the id of its first

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.begin_ns


Outcome: TypeAlias = Literal["done", "rejected", "cancelled", "failed", "worker_died"]


class Ended(Message, frozen=True):
    """The query's end. No process will touch its slot again."""

    query: int
    outcome: Outcome
    reason: str = ""
    blocks: tuple[BlockRecord, ...] = ()


class TenantCount(msgspec.Struct, frozen=True):
    """Since the engine's start."""

    arrived: int = 0
    waiting: int = 0  # now: in the scheduler, never started
    running: int = 0  # now: started, not ended
    done: int = 0
    within_qos: int = 0  # of the done: arrival to end within the target
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    queue_ns: int = 0  # arrival to first block, summed over the done
    execute_ns: int = 0  # in blocks, summed over the done
    batches: dict[int, int] = {}  # started, by their number of queries


class RunningBlock(msgspec.Struct, frozen=True):
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
    since_ns: int  # ordered by the scheduler


class WorkerState(msgspec.Struct, frozen=True):
    pid: int
    state: Literal["starting", "idle", "busy"]
    query: int | None
    started_ns: int


class Status(Message, frozen=True):
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
    tenants: dict[str, TenantCount]
    running: tuple[RunningBlock, ...]
    workers: tuple[WorkerState, ...]


class Load(Message, frozen=True):
    """A worker's first message: what to load before it says `Loaded` or `Refused`."""

    tenants: tuple[TenantSpec, ...]
    cores: CoreSet
    slots: int


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One query of a batch: where its tensors stand."""

    slot: int
    samples: int


class Run(Message, frozen=True):
    """Run layers [start, start + len(versions)) of a query or a batch, on the cores that the cell names.

    `cores` is what it names at this moment: the worker reports when it finds others.
    """

    query: int  # the batch's first
    tenant: int
    parts: tuple[Part, ...]
    start: int
    versions: tuple[int, ...]
    cores: CoreSet


class Loaded(Message, frozen=True):
    pass


class BlockDone(Message, frozen=True):
    """Reached layer `stop`: before the block's end when the cell said cancel."""

    query: int
    stop: int
    begin_ns: int
    end_ns: int


class BlockBroke(Message, frozen=True):
    """A kernel raised; the worker lives."""

    query: int
    reason: str


class Grown(Message, frozen=True):
    """The block took up a new core set, found in the cell, before `layer`."""

    query: int
    layer: int
    cores: CoreSet
    time_ns: int


ToEngine: TypeAlias = Configure | Infer | Cancel | Ask | Shutdown
ToFront: TypeAlias = Ready | Refused | Ended | Status
ToWorker: TypeAlias = Load | Run
FromWorker: TypeAlias = Loaded | Refused | BlockDone | BlockBroke | Grown
