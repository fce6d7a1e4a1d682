"""Events, which the scheduler is told, and decisions, which it answers with. Time is `int` nanoseconds."""

from __future__ import annotations

from typing import TypeAlias

from veltair.types import CoreSet, CounterSample, LayerBlock, Query, Record

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
