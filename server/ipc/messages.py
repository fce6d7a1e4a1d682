"""Messages between front, engine and workers: msgpack, one message a packet, each tagged with its type.

Tensors do not travel here; they lie in the tensor pool. The descriptors of a model's artifact come with `LoadModel`, or
are inherited. All times are CLOCK_MONOTONIC, which the processes share.

    front -> engine    ConfigureEngine, InferQuery, AbortQuery, LoadModel, UnloadModel, GetStatus, Shutdown
    engine -> front    EngineReady, WorkersLeft, WorkerDied, StartFailed, QueryEnded, EngineStatus; ModelLoaded,
                       ModelFailed, ModelUnloaded
    engine -> worker   LoadModels; later LoadModel and UnloadModel
    worker -> engine   ModelsLoaded, StartFailed, KernelFailed, CoresChanged, ModelLoaded, ModelFailed, ModelUnloaded

Blocks are ordered, and their end is told, in the worker's cell (`worker_cell`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from veltair.config import CounterCoefficients, SandboxMode, ServerConfig, read_counter_coefficients
from veltair.profiles.artifact.sealed_artifact import SealedFiles
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.stages import NOT_STAMPED, EngineStamps
from veltair.server.ipc.status_records import BlockRecord, BlockStatus, SandboxStatus, TenantStatus, WorkerStatus
from veltair.server.ipc.tenant_share import TenantShare
from veltair.types import DEFAULT_PRIORITY_LEVEL, CoreSet


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of all messages; its name is the tag on the wire.

    >>> msgspec.json.encode(AbortQuery(query=7))
    b'{"type":"AbortQuery","query":7}'
    """


class TenantSpec(msgspec.Struct, frozen=True):
    """A tenant with one version of its model, as the engine and its workers need it.

    >>> tenant = TenantSpec("vision", "/srv/resnet50", "ab12", 15_000_000, 0.95, priority=1, batching=True)
    >>> LoadModels((tenant,), cores=(0, 1), slots=4).tenants[0].qos_ns
    15000000
    """

    name: str
    artifact: str  # where it was read, for messages alone
    digest: str
    qos_ns: int
    percentile: float
    priority: int
    batching: bool
    share: TenantShare = TenantShare()
    number: int = 0  # by which messages and orders name it, until it is unloaded
    offset: int = 0  # of its region in the tensor pool
    copy: int = 1  # which of the tenant's versions in the engine this is, where there are several
    version: str = "1"  # as clients name it

    @property
    def key(self) -> str:
        """The tenant's name for the scheduler, to which each version is a tenant of its own."""
        return self.name if self.copy == 1 else f"{self.name}#{self.copy}"


# Front to engine


class ConfigureEngine(Message, frozen=True):
    """The first message, answered with `EngineReady` or `StartFailed`. To serve on all cores that it may use::

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
    hung_block_ns: int = 10_000_000_000  # a block that takes longer, and 10 times as long as predicted, is ended
    planned_share: float = 1.0  # of each target and deadline; policies plan with this share
    lanes: LaneDescriptors | None = None  # of the front's I/O threads
    capacity: int = 1  # versions of models at once; their numbers are below this
    artifacts: dict[str, SealedFiles] = {}  # by digest
    sandbox: SandboxMode = "try"  # of the workers
    load_share: float = 1.0  # of a core, for loading a model while others are served

    @classmethod
    def of(cls, server: ServerConfig) -> ConfigureEngine:
        """The message that the configuration makes, without tenants. Raises ConfigError."""
        model = server.counter_model
        return cls(
            tenants=(),
            policy=server.policy,
            cores=server.cores,
            workers=server.workers,
            spare_workers=server.spare_workers,
            slots=server.queue_slots,
            event_log=server.event_log,
            counter_model=None if model is None else read_counter_coefficients(Path(model)),
            hung_block_ns=int(server.hung_block_s * 1e9),
            planned_share=server.planned_share,
            capacity=server.max_models,
            sandbox=server.sandbox,
            load_share=server.load_share,
        )


class InferQuery(Message, frozen=True):
    """Run a query whose inputs lie in its slot. The engine sends exactly one `QueryEnded`, which frees the slot.

    >>> InferQuery(7, tenant=0, slot=3, batch=1, arrival_ns=100, deadline_ns=None).slot
    3
    """

    query: int  # unique and ascending within an engine's life
    tenant: int  # TenantSpec.number
    slot: int
    batch: int
    arrival_ns: int
    deadline_ns: int | None  # set by the client; None: only the tenant's target applies
    traced: bool = False  # its QueryEnded holds its blocks, and is a message where the query came by a lane too
    priority_level: int = DEFAULT_PRIORITY_LEVEL
    bucket: int = 0  # of the extents that the model was compiled at, the largest first
    extent: int = 0  # of the dimension that queries choose, where the model has one


class AbortQuery(Message, frozen=True):
    """Nobody waits for this query any more: `AbortQuery(query=7)`."""

    query: int


class LoadModel(Message, frozen=True):
    """Serve one more: `LoadModel(tenant)`. The engine answers with `ModelLoaded` or `ModelFailed`; until then there are
    no queries of it. To a worker: hold it, and answer likewise."""

    tenant: TenantSpec


class UnloadModel(Message, frozen=True):
    """Forget it: `UnloadModel(number=3)`. The front has no more queries of it. Answered with `ModelUnloaded`."""

    number: int


class GetStatus(Message, frozen=True):
    """The engine answers with an `EngineStatus`, with blocks that ended after the cursor `since`: `GetStatus(since=0)`.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(GetStatus()))
    {'type': 'GetStatus', 'since': None}
    """

    since: int | None = None  # None: no blocks


class Shutdown(Message, frozen=True):
    """Exit at once: `Shutdown()`. The front sends it when all queries are answered, or when it stops waiting."""


# Engine to front


class EngineReady(Message, frozen=True):
    """Every worker has loaded every model: `EngineReady(workers=4, cores=(0, 1))`."""

    workers: int
    cores: CoreSet


class WorkersLeft(Message, frozen=True):
    """How many workers can take queries now, after one has died or come: `WorkersLeft(workers=3)`."""

    workers: int


class WorkerDied(Message, frozen=True):
    """A worker process is gone, and another takes its place: `WorkerDied(pid=4711, how="was killed by SIGKILL")`."""

    pid: int
    how: str  # it ended, and what it did then


class StartFailed(Message, frozen=True):
    """The engine or a worker cannot start: `StartFailed("ConfigError", "no core")`; `kind` is one of veltair.errors."""

    kind: str
    reason: str


Outcome: TypeAlias = Literal["done", "rejected", "cancelled", "failed", "worker_died"]


class QueryEnded(Message, frozen=True):
    """A query has ended: `QueryEnded(7, "rejected", RefusalReason.OVERLOAD)`. No process touches its slot any more.

    Queries that ran as one batch ran in the same blocks: `execute_ns` and `blocks` are the batch's for each of them,
    and the blocks have the id of its first query."""

    query: int
    outcome: Outcome
    reason: str = ""  # of a rejected one its RefusalReason, else a text
    execute_ns: int = 0  # in blocks
    stamps: EngineStamps = NOT_STAMPED
    blocks: tuple[BlockRecord, ...] = ()  # of a traced query


class ModelLoaded(Message, frozen=True):
    """Every worker holds it, or the worker that says so: `ModelLoaded(number=3)`."""

    number: int


class ModelFailed(Message, frozen=True):
    """It cannot be served: `ModelFailed(3, "ArtifactError", "no kernel")`; `kind` is one of veltair.errors."""

    number: int
    kind: str
    reason: str


class ModelUnloaded(Message, frozen=True):
    """No process uses its artifact and its region any more: `ModelUnloaded(number=3)`."""

    number: int


class EngineStatus(Message, frozen=True):
    """The engine now. The mean gap in ns is `status.gap_ns / status.gaps`."""

    time_ns: int
    level: float | None  # interference now; None while no block has ended lately that would tell
    level_source: str
    conflicts: int
    capped_blocks: int
    blocks_started: int
    blocks_ended: int  # of ended queries; a batch's count once
    scheduler_ns: int  # spent deciding, summed over all events
    scheduler_events: int
    gap_ns: int  # a worker's idle time between two blocks of one query started back to back
    gaps: int
    worker_deaths: int
    tenants: dict[str, TenantStatus]
    running: tuple[BlockStatus, ...]
    workers: tuple[WorkerStatus, ...]
    blocks: tuple[BlockRecord, ...]  # of ended queries, oldest first: as many as one message takes
    cursor: int  # the number of blocks up to the last of these; below `blocks_ended`, ask again from here
    sandbox: SandboxStatus = SandboxStatus()  # of the worker that started last


# Engine to worker


class LoadModels(Message, frozen=True):
    """A worker's first message: `LoadModels((tenant,), (0, 1), 4)`. It answers with `ModelsLoaded` or `StartFailed`."""

    tenants: tuple[TenantSpec, ...]
    cores: CoreSet
    slots: int
    lanes: LaneDescriptors | None = None  # of the front's I/O threads
    artifacts: dict[str, SealedFiles] = {}  # by digest
    sandbox: SandboxMode = "try"
    load_share: float = 1.0


# Worker to engine


class ModelsLoaded(Message, frozen=True):
    """The worker is ready for blocks: `ModelsLoaded()`."""

    sandbox: SandboxStatus = SandboxStatus()  # it has confined itself so far


class KernelFailed(Message, frozen=True):
    """A kernel raised an error, which ends the block; the worker lives: `KernelFailed(query=7, reason="no memory")`."""

    query: int
    reason: str
    claimed_by: tuple[int, int] | None = None  # by a standing order: I/O thread and place (`done_queries.Caller`)


class CoresChanged(Message, frozen=True):
    """The worker found another core set before `layer`, and uses it from there: `CoresChanged(7, 2, (0, 1), 100)`."""

    query: int
    layer: int
    cores: CoreSet
    time_ns: int


ModelChange: TypeAlias = LoadModel | UnloadModel
ModelChanged: TypeAlias = ModelLoaded | ModelFailed | ModelUnloaded
ToEngine: TypeAlias = ConfigureEngine | InferQuery | AbortQuery | ModelChange | GetStatus | Shutdown
ToFront: TypeAlias = EngineReady | WorkersLeft | WorkerDied | StartFailed | QueryEnded | ModelChanged | EngineStatus
ToWorker: TypeAlias = LoadModels | ModelChange
FromWorker: TypeAlias = ModelsLoaded | StartFailed | KernelFailed | CoresChanged | ModelChanged
