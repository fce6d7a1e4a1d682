"""`LoneQueries`: what becomes of a claim that the engine has taken over, by how its worker ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from veltair.scheduler.events import QueryCancelled, QueryRuns
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.lending.lone_orders import LoneOrders
from veltair.server.engine.lending.lone_queries import LoneQueries
from veltair.server.engine.tenant_counters import TenantCounters
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.lane import QueryRan
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.messages import InferQuery, TenantSpec
from veltair.server.ipc.standing_orders import Claim, StandingOrders, create_standing_orders
from veltair.server.ipc.worker_cell import ATTEND
from veltair.types import LayerBlock, Query

LAYERS, TERM = 3, 1
SPECS = {0: TenantSpec("a", "/", "ab12", 10**7, 0.95, 1, batching=True)}
BLOCK = LayerBlock(1, 0, LAYERS, (0,) * LAYERS, 1, 200_000)


@dataclass
class Cell:
    """What a worker tells of the order to attend."""

    end: BlockEnd | None = None

    def take_end(self) -> BlockEnd | None:
        end, self.end = self.end, None
        return end


@dataclass
class Worker:
    pid: int = 0
    cell: Cell = field(default_factory=Cell)

    def attend(self, term: int, cores: Any) -> None:
        self.cell.end = BlockEnd(ATTEND, 0, reported=False, begin_ns=0, end_ns=0)


class Engine:
    """The workers and the queries of an engine, and what it decided."""

    def __init__(self, lanes: FrontLanes, descriptor: int) -> None:
        """`descriptor`: of the memory of claims."""
        arrivals, orders = Arrivals(SPECS), LoneOrders(SPECS, lambda *_: BLOCK, (0,), refuses=True)
        self.worker, self.held, self.cancelled = Worker(), set[int](), list[int]()
        self.counters, self.decided = {"a": TenantCounters(10**7)}, list[QueryRuns | QueryCancelled]()
        descriptors = LaneDescriptors(-1, 0, -1, (-1,) * len(lanes), -1, 0, standing=descriptor)
        known = SPECS, arrivals, lanes, cast(Any, self), cast(Any, self)
        self.lone = LoneQueries(descriptors, *known, self.decided.append, orders)
        orders.foresee(InferQuery(1, 0, 0, 1, 0, None))
        for query in range(8):  # none met another
            lanes.ran(QueryRan(query, 0, 0, 1, 0, left=False, refused=True, begin_ns=0, end_ns=0, ended_ns=0))
        self.standing = StandingOrders(descriptor, len(lanes))

    # As InFlightQueries and WorkerSupervisor have it

    @property
    def ids(self) -> set[int]:
        return self.held

    def batches(self) -> list[Any]:
        return []

    def lend(self) -> Any:
        return self.worker

    def add(self, message: InferQuery, taken_ns: int, lane: int) -> Query:
        self.held.add(message.query)
        return Query(message.query, "a", message.arrival_ns, message.deadline_ns, message.batch)

    def take_over(self, query: int, worker: Any) -> None:
        assert worker is self.worker

    def has_batch(self, query: int) -> bool:
        return query in self.held

    def cancel(self, query: int) -> bool:
        self.cancelled.append(query)
        return True


@pytest.fixture
def engine(lanes: FrontLanes) -> Iterator[Engine]:
    descriptor = create_standing_orders(len(lanes))
    yield Engine(lanes, descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("stop", [0, 1, LAYERS])
@pytest.mark.parametrize("refused", [False, True])
def test_what_was_stopped_before_its_first_layer_goes_on_and_what_was_refused_does_not(
    engine: Engine, stop: int, refused: bool
) -> None:
    engine.lone.lend()
    assert engine.lone.hear() is None  # it attends
    now_ns = time.monotonic_ns()
    assert engine.standing.ask(0, Claim(Caller(7, now_ns, 0, 2), 0, 2, now_ns, 0, 3), 0, 1)
    position = engine.standing.next_claim(TERM, patience_ns=0)
    assert engine.lone.take_back()
    assert [type(each) for each in engine.decided] == [QueryRuns]
    end = BlockEnd(7, stop, reported=False, begin_ns=now_ns, end_ns=now_ns + 1, refused=refused)
    assert engine.standing.end(TERM, position, engine.standing.lines(), end, done=None)
    assert engine.lone.hear() == end
    assert engine.cancelled == [7] * refused
    assert [type(each) for each in engine.decided] == [QueryRuns, QueryCancelled][: 1 + refused]
