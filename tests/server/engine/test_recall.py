"""`Recall`: of what I/O threads name, exactly what the engine does not know becomes an arrival, once."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.lending.recall import Recall
from veltair.server.ipc.admission_gates import create_admission_gates
from veltair.server.ipc.lane import QueryHeld, create_lanes, ring_records
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.messages import InferQuery, TenantSpec

RECORDS, THREADS = ring_records(4), 2
SPECS = {0: TenantSpec("a", "/", "ab12", 10**7, 0.95, 1, batching=True)}


def query(number: int) -> InferQuery:
    return InferQuery(number, tenant=0, slot=number % 4, batch=1, arrival_ns=number, deadline_ns=None)


@pytest.fixture
def lanes() -> Iterator[FrontLanes]:
    wakes = tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(THREADS))
    bell, memory, gates = os.eventfd(0), create_lanes(THREADS, RECORDS), create_admission_gates(1)
    with select.epoll() as poll:
        yield FrontLanes(poll, LaneDescriptors(memory, RECORDS, bell, wakes, -1, 0, gates), tenants=1, slots=4)
    for descriptor in (*wakes, bell, memory, gates):
        os.close(descriptor)


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
    assert [os.eventfd_read(wake) for wake in lanes._wakes] == [1] * THREADS
