"""Events, which the scheduler receives, and decisions, which it returns. Time is `int` nanoseconds."""

from __future__ import annotations

from typing import TypeAlias

from veltair.errors import RefusalReason
from veltair.types import CoreSet, CounterSample, LayerBlock, Query, Record, Tenant

# Events: the scheduler's inputs.


class QueryArrived(Record, frozen=True):
    """A query is here; the scheduler starts it, lets it wait or rejects it.

    >>> QueryArrived(1_000_000, Query(7, "vision", arrival_ns=1_000_000)).query.id
    7
    """

    time_ns: int
    query: Query


class QueryRuns(Record, frozen=True):
    """A query runs already, in one block, as the scheduler has started one like it: by a standing order, given while no
    query was in flight. The `StartBlock` that follows says what it has; nobody carries it out.

    >>> block = LayerBlock(query=7, start=0, stop=2, versions=(0, 1), cores=4, predicted_ns=120_000)
    >>> QueryRuns(1_000_000, Query(7, "vision", arrival_ns=990_000), block, level=1.0).block.cores
    4
    """

    time_ns: int
    query: Query
    block: LayerBlock
    level: float  # interference level that the versions were picked for


class BlockFinished(Record, frozen=True):
    """A block ended. `stop` is the layer reached; it is before the block's stop only after StopBlock or CancelQuery.

    >>> BlockFinished(time_ns=1_130_000, query=7, stop=2, elapsed_ns=120_000).stop
    2
    """

    time_ns: int
    query: int
    stop: int
    elapsed_ns: int  # execution alone, measured by the worker


class BlockFailed(Record, frozen=True):
    """The worker died or refused; the query is lost, and its batch with it; its cores are free.

    >>> BlockFailed(time_ns=1_130_000, query=7, reason="the worker died").reason
    'the worker died'
    """

    time_ns: int
    query: int
    reason: str


class BlockGrown(Record, frozen=True):
    """The worker took up a larger core set at a layer boundary.

    >>> BlockGrown(time_ns=1_050_000, query=7, layer=1, core_set=(0, 1, 2)).core_set
    (0, 1, 2)
    """

    time_ns: int
    query: int
    layer: int
    core_set: CoreSet


class QueryCancelled(Record, frozen=True):
    """The client went away or its deadline expired; the query stops at its next layer.

    One that runs as part of a batch is only left out of the answers, even if the batch runs in its name.

    >>> QueryCancelled(time_ns=1_050_000, query=7).query
    7
    """

    time_ns: int
    query: int


class CountersSampled(Record, frozen=True):
    """The hardware counters were read.

    >>> sample = CounterSample(time_ns=10**9, window_ns=10**7, l3_accesses=5000, l3_misses=400, source="perf")
    >>> CountersSampled(10**9, sample).sample.l3_misses
    400
    """

    time_ns: int
    sample: CounterSample


class EdgeTimed(Record, frozen=True):
    """How much CPU time went to queries outside of blocks since the last such event: to reading, deciding and
    answering, and to what ran without a decision.

    >>> EdgeTimed(time_ns=10**9, spent_ns={"vision": 2_000_000}).spent_ns["vision"]
    2000000
    """

    time_ns: int
    spent_ns: dict[str, int]  # by `Tenant.owner`
    unasked: int = 0  # queries that ran without a decision, and met no other


class WorkersChanged(Record, frozen=True):
    """How many queries may be in flight (one live worker each).

    >>> WorkersChanged(time_ns=1_000_000, workers=3).workers
    3
    """

    time_ns: int
    workers: int


class TenantAdded(Record, frozen=True):
    """Queries of another tenant may arrive. The scheduler knows its model already (`Scheduler.learn_model`).

    >>> from veltair.types import QoSTarget
    >>> tenant = Tenant("vision", "resnet50", QoSTarget(15_000_000))
    >>> TenantAdded(1_000_000, tenant, artifact="/srv/resnet50", profiles="ab12").tenant.model
    'resnet50'
    """

    time_ns: int
    tenant: Tenant
    artifact: str  # the model's folder, for whoever replays the log
    profiles: str  # their digest, likewise


class TenantRemoved(Record, frozen=True):
    """No more queries of this tenant arrive, and the last one has ended.

    >>> TenantRemoved(time_ns=1_000_000, tenant="vision").tenant
    'vision'
    """

    time_ns: int
    tenant: str


Event: TypeAlias = (
    QueryArrived
    | QueryRuns
    | BlockFinished
    | BlockFailed
    | BlockGrown
    | QueryCancelled
    | CountersSampled
    | EdgeTimed
    | WorkersChanged
    | TenantAdded
    | TenantRemoved
)


# Decisions: what the scheduler orders.


class StartBlock(Record, frozen=True):
    """Run this block on these cores now.

    >>> block = LayerBlock(query=7, start=0, stop=2, versions=(0, 1), cores=4, predicted_ns=120_000)
    >>> StartBlock(block, core_set=(0, 1), conflict=True).core_set
    (0, 1)
    """

    block: LayerBlock
    core_set: CoreSet
    conflict: bool = False  # fewer cores than the block wanted
    level: float = 1.0  # interference level that the versions were picked for
    members: tuple[int, ...] = ()  # waited until now: from here on part of the query's batch, and end with it


class GrowBlock(Record, frozen=True):
    """The running block may use more cores from its next layer on.

    >>> GrowBlock(query=7, core_set=(0, 1, 2, 3)).core_set
    (0, 1, 2, 3)
    """

    query: int
    core_set: CoreSet  # the whole new set


class FinishQuery(Record, frozen=True):
    """The query has run to its end; its answer goes out.

    >>> FinishQuery(7).query
    7
    """

    query: int


class RejectQuery(Record, frozen=True):
    """The query is given up; the reason goes to its client.

    >>> RejectQuery(7, RefusalReason.OVERLOAD, for_ns=2_000_000).reason.text
    'the queries before it leave it too little time'
    """

    query: int
    reason: RefusalReason
    for_ns: int = 0  # another query like it, without a deadline of its own, would be refused so long


class CancelQuery(Record, frozen=True):
    """Stop the query's running block at its next layer; a BlockFinished or BlockFailed follows.

    The query is the block's: of a batch that nobody waits for any more, the one that leads it.

    >>> CancelQuery(7).query
    7
    """

    query: int


class StopBlock(Record, frozen=True):
    """Stop the running block at its next layer; a BlockFinished or BlockFailed follows, and the query goes on later.

    >>> StopBlock(7).query
    7
    """

    query: int


Decision: TypeAlias = StartBlock | GrowBlock | FinishQuery | RejectQuery | CancelQuery | StopBlock
