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
    deadline_ns: int | None = None  # the end that the client set itself; None: only the tenant's target applies
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
