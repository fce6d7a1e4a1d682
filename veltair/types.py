"""The core types of the system. Time is `int` nanoseconds everywhere inside; edges convert.

All are frozen and slotted: they cross process borders, are logged and replayed, and are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct

CoreId: TypeAlias = int
CoreSet: TypeAlias = tuple[CoreId, ...]  # sorted, no duplicates

PRIORITY_LEVELS, DEFAULT_PRIORITY_LEVEL = 5, 3  # of a query among those of its tenant; 1 goes first


class Record(Struct, frozen=True, gc=False):
    """Base of values that are created for every decision, ten times as fast as a frozen dataclass.

    They have no reference cycles and are not tracked by the garbage collector.

    >>> Query(7, "vision", arrival_ns=0) == Query(7, "vision", arrival_ns=0)
    True
    """


class State(Struct, eq=False, gc=False):
    """Base of objects that change during their life and are equal only to themselves; created as fast as a `Record`.

    >>> class Progress(State):
    ...     layer: int = 0
    >>> Progress() == Progress()
    False
    """


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, type and shape of a tensor. A first dimension of -1 is the batch, 1 … max_batch.

    >>> TensorSpec("input", "float32", (-1, 3, 224, 224)).dtype
    'float32'
    """

    name: str
    dtype: str  # numpy name: "float32", "int64", …
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One fused step of a model: a main operator and its epilogue.

    >>> x = TensorSpec("x", "float32", (1, 64))
    >>> Layer(0, "relu", "generic", (x,), (x,), flops=64, bytes=512).op
    'generic'
    """

    index: int
    name: str
    op: str  # kind of the main operator: "conv2d", "depthwise_conv2d", "matmul", "embedding_bag", "generic", …
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int  # at the profile's batch
    bytes: int  # compulsory traffic at the profile's batch: inputs, weights, outputs


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Measured median times. They are not monotonic in cores: scan them, never bisect.

    >>> LatencyTable((1.0, 2.0), ((100, 60), (180, 100))).at(1.5, cores=2)
    80
    """

    levels: tuple[float, ...]  # interference levels, ascending, levels[0] == 1.0 (alone)
    latency_ns: tuple[tuple[int, ...], ...]  # (levels, cores); column c is c + 1 cores

    def at(self, level: float, cores: int) -> int:
        """Returns the time in ns at an interference level, linear between the measured levels and constant outside."""
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
    """One compiled schedule of one layer.

    >>> CodeVersion(0, 1, 65536, 64, "conv_v1", LatencyTable((1.0,), ((100,),))).symbol
    'conv_v1'
    """

    layer: int
    index: int
    block_size: int  # locality: bytes of working set of one parallel task
    parallelism: int  # parallel extent x unroll
    symbol: str
    latency: LatencyTable


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The scheduler's knowledge of a model at one batch size; every layer has at least one version.

    ::

        profile.versions[layer][version].latency.at(level=1.0, cores=4)  # ns
    """

    model: str
    batch: int
    layers: tuple[Layer, ...]
    versions: tuple[tuple[CodeVersion, ...], ...]  # [layer][version]
    environment: dict[str, str]
    digest: str

    @property
    def cores(self) -> int:
        """The most cores that were measured; all counts from 1 on were."""
        return len(self.versions[0][0].latency.latency_ns[0])


class CounterSample(Record, frozen=True):
    """L3 counters of all cores over a window.

    >>> CounterSample(time_ns=10**9, window_ns=10**7, l3_accesses=5000, l3_misses=400, source="perf").l3_misses
    400
    """

    time_ns: int
    window_ns: int
    l3_accesses: int
    l3_misses: int
    source: str


@dataclass(frozen=True, slots=True)
class QoSTarget:
    """A latency target, and the share of the queries that must meet it.

    >>> QoSTarget(15_000_000).percentile
    0.95
    """

    latency_ns: int  # arrival to answer
    percentile: float = 0.95  # 0.95 is the paper's, 0.99 MLPerf's


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model served under a target.

    >>> Tenant("vision", "resnet50", QoSTarget(15_000_000)).priority
    1
    """

    name: str
    model: str
    qos: QoSTarget
    priority: int = 1  # the higher goes first, among tenants
    batching: bool = False  # its queries may run together: every input and output has the batch in front
    weight: int = 1  # its part of the cores, among tenants, where all ask for more than there is
    owner: str = ""  # whose part that is, where several tenants of the scheduler share one; default: its own


class Query(Record, frozen=True):
    """One inference of a tenant's model.

    >>> Query(7, "vision", arrival_ns=1_000_000).batch
    1
    """

    id: int
    tenant: str
    arrival_ns: int
    deadline_ns: int | None = None  # the end that the client set itself; None: only the tenant's target applies
    batch: int = 1
    priority_level: int = DEFAULT_PRIORITY_LEVEL  # 1 … PRIORITY_LEVELS: it starts before its tenant's of higher numbers


class LayerBlock(Record, frozen=True):
    """Consecutive layers [start, stop) of one query, which run on one core set without a return to the scheduler.

    >>> LayerBlock(query=7, start=0, stop=2, versions=(0, 1), cores=4, predicted_ns=120_000).stop
    2
    """

    query: int
    start: int
    stop: int
    versions: tuple[int, ...]  # one code version index per layer of the block
    cores: int  # wanted; the granted core set may be smaller (a conflict) and grow later
    predicted_ns: int  # on `cores` cores at the level of the decision


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores that may be used, grouped by the L3 cache that they share.

    >>> Machine(((0, 1), (2, 3))).cores
    (0, 1, 2, 3)
    """

    domains: tuple[CoreSet, ...]

    @property
    def cores(self) -> CoreSet:
        return tuple(sorted(core for domain in self.domains for core in domain))


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a measurement, recorded beside every result.

    >>> Environment("EPYC", ("avx2",), 2, 1 << 34, "6.18", "3.11").cores
    2
    """

    cpu: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: dict[str, str] = field(default_factory=dict)
