"""Memory that the engine shares with the front's I/O threads."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.ipc.admission_gates import create_admission_gates
from veltair.server.ipc.lane import create_lanes, ring_records
from veltair.server.ipc.lane_descriptors import LaneDescriptors

RECORDS, THREADS = ring_records(4), 2


@pytest.fixture
def lanes() -> Iterator[FrontLanes]:
    """Those of two threads, for a tenant of four slots."""
    wakes = tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(THREADS))
    bell, memory, gates = os.eventfd(0), create_lanes(THREADS, RECORDS), create_admission_gates(1)
    with select.epoll() as poll:
        yield FrontLanes(poll, LaneDescriptors(memory, RECORDS, bell, wakes, -1, 0, gates), tenants=1, slots=4)
    for descriptor in (*wakes, bell, memory, gates):
        os.close(descriptor)
