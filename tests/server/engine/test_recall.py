"""`Recall`: of what I/O threads name, exactly what the engine does not know becomes an arrival, once."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.lending.recall import Recall
from veltair.server.ipc.lane import QueryHeld
from veltair.server.ipc.messages import InferQuery, TenantSpec

SPECS = {0: TenantSpec("a", "/", "ab12", 10**7, 0.95, 1, batching=True)}


def query(number: int) -> InferQuery:
    return InferQuery(number, tenant=0, slot=number % 4, batch=1, arrival_ns=number, deadline_ns=None)


def test_what_the_engine_knows_is_named_in_vain(lanes: FrontLanes) -> None:
    arrivals = Arrivals(SPECS)
    arrivals.add(query(1), lane=0)
    recall = Recall(arrivals, lanes, cast(InFlightQueries, SimpleNamespace(ids={2})))
    recall.arrived(5)  # long before
    assert recall.is_over
    recall.begin()
    recall.arrived(3)  # it was on its way
    for number in (1, 2, 3, 4, 4, 5):
        lanes.held(0, QueryHeld(query(number)))
    lanes.held(0, QueryHeld(None))
    assert not recall.is_over
    lanes.held(1, QueryHeld(query(6)))
    lanes.held(1, QueryHeld(None))
    assert recall.is_over
    waiting = [(arrival.message.query, arrival.lane) for arrival in arrivals]
    assert waiting == [(1, 0), (4, 0), (5, 0), (6, 1)]


def test_each_thread_is_asked_and_woken(lanes: FrontLanes) -> None:
    recall = Recall(Arrivals(SPECS), lanes, cast(InFlightQueries, SimpleNamespace(ids=set())))
    recall.begin()
    lanes.wake_fronts()
    assert [os.eventfd_read(wake) for wake in lanes._wakes] == [1, 1]
