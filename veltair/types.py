"""The words of the system as types. Time is `int` nanoseconds everywhere inside; edges convert.

All are frozen and slotted: they cross process borders, are logged and replayed, and are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct

CoreId: TypeAlias = int
CoreSet: TypeAlias = tuple[CoreId, ...]  # sorted, no duplicates


class Record(Struct, frozen=True, gc=False):
    """What is made anew at every decision, in a tenth of the time that a frozen dataclass takes. Free of cycles, hence
    unknown to the garbage collector."""


class State(Struct, eq=False, gc=False):
    """The same for what changes as long as it is there, and is only equal to itself."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's contract. A first dimension of -1 is the batch, 1 … max_batch."""

    name: str
    dtype: str  # numpy name: "float32", "int64", …
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One fused step of a model: an anchor operator and its epilogue."""

    index: int
    name: str
    op: str  # kind of anchor: "conv2d", "depthwise_conv2d", "matmul", "embedding_bag", "generic", …
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int  # at the profile's batch
    bytes: int  # compulsory traffic at the profile's batch: inputs, weights, outputs


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Measured medians. Not monotonic in cores: scan, never bisect."""

    levels: tuple[float, ...]  # interference levels, ascending, levels[0] == 1.0 (alone)
    latency_ns: tuple[tuple[int, ...], ...]  # (levels, cores); column c is c + 1 cores

    def at(self, level: float, cores: int) -> int:
        """Time in ns at the given interference level, linear between the measured ones and flat outside."""
        column = cores - 1
        rows = self.latency_ns
        if level <= self.levels[0]:
            return rows[0][column]
        for i in range(1, len(self.levels)):
            low, high = self.levels[i - 1], self.levels[i]
            if level <= high:
                share = (level - low) / (high - low)
                return round(rows[i - 1][column] + share * (rows[i][column] - rows[i - 1][column]))
        return rows[-1][column]


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """One compiled schedule of one layer."""

    layer: int
    index: int
    block_size: int  # locality: bytes of working set of one parallel task
    parallelism: int  # parallel extent x unroll
    symbol: str
    latency: LatencyTable


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What the scheduler knows of a model at one batch size; every layer has at least one version."""

    model: str
    batch: int
    layers: tuple[Layer, ...]
    versions: tuple[tuple[CodeVersion, ...], ...]  # [layer][version]
    environment: dict[str, str]
    digest: str

    @property
    def cores(self) -> int:
        """Core counts that were measured: 1 … cores."""
        return len(self.versions[0][0].latency.latency_ns[0])


class CounterSample(Record, frozen=True):
    time_ns: int
    window_ns: int
    l3_accesses: int
    l3_misses: int
    source: str


@dataclass(frozen=True, slots=True)
class QoSTarget:
    latency_ns: int  # arrival to answer
    percentile: float = 0.95  # 0.95 is the paper's, 0.99 MLPerf's


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    model: str
    qos: QoSTarget
    priority: int = 1
    batching: bool = False  # its queries may run together: every input and output has the batch in front


class Query(Record, frozen=True):
    id: int
    tenant: str
    arrival_ns: int
    deadline_ns: int
    batch: int = 1


class LayerBlock(Record, frozen=True):
    """Consecutive layers [start, stop) of one query, run on one core set without coming back."""

    query: int
    start: int
    stop: int
    versions: tuple[int, ...]  # one code version index per layer of the block
    cores: int  # wanted; the core set may be smaller (a conflict) and grow later
    predicted_ns: int  # on `cores` cores at the level of the decision


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores that may be used, grouped by the L3 cache that they share."""

    domains: tuple[CoreSet, ...]

    @property
    def cores(self) -> CoreSet:
        return tuple(sorted(core for domain in self.domains for core in domain))


# Events: what the scheduler is told.


class QueryArrived(Record, frozen=True):
    time_ns: int
    query: Query


class BlockFinished(Record, frozen=True):
    """`stop` is the layer reached: less than the block's own stop when the block was told to stop early."""

    time_ns: int
    query: int
    stop: int
    elapsed_ns: int  # of execution alone, measured by the worker


class BlockFailed(Record, frozen=True):
    """The worker died or refused; the query is lost, and its batch with it; its cores are free."""

    time_ns: int
    query: int
    reason: str


class BlockGrown(Record, frozen=True):
    """The worker took up a larger core set at a layer boundary."""

    time_ns: int
    query: int
    layer: int
    core_set: CoreSet


class QueryCancelled(Record, frozen=True):
    """The client went away or its deadline expired; the query stops at its next layer.

    One that runs as part of a batch is only left out of the answers, even if the batch runs in its name.
    """

    time_ns: int
    query: int


class CountersSampled(Record, frozen=True):
    time_ns: int
    sample: CounterSample


class WorkersChanged(Record, frozen=True):
    """How many queries may be in flight (one live worker each)."""

    time_ns: int
    workers: int


Event: TypeAlias = (
    QueryArrived | BlockFinished | BlockFailed | BlockGrown | QueryCancelled | CountersSampled | WorkersChanged
)


# Decisions: what the scheduler orders.


class StartBlock(Record, frozen=True):
    block: LayerBlock
    core_set: CoreSet
    conflict: bool = False  # fewer cores than the block wanted
    level: float = 1.0  # interference level that the versions were picked for
    members: tuple[int, ...] = ()  # waited until now: from here on part of the query's batch, and end with it


class GrowBlock(Record, frozen=True):
    query: int
    core_set: CoreSet  # the whole new set


class FinishQuery(Record, frozen=True):
    query: int


class RejectQuery(Record, frozen=True):
    query: int
    reason: str


class CancelQuery(Record, frozen=True):
    """Stop the query's running block at its next layer; a BlockFinished or BlockFailed follows.

    The query is the block's: of a batch that nobody waits for any more, the one that it runs in the name of.
    """

    query: int


class StopBlock(Record, frozen=True):
    """Stop the running block at its next layer; a BlockFinished or BlockFailed follows, and the query goes on later."""

    query: int


Decision: TypeAlias = StartBlock | GrowBlock | FinishQuery | RejectQuery | CancelQuery | StopBlock


@dataclass(frozen=True, slots=True)
class Environment:
    """What a number was measured on; recorded beside every result."""

    cpu: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: dict[str, str] = field(default_factory=dict)
