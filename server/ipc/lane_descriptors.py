"""`LaneDescriptors`: how the front hands its I/O threads' shared memory to engine and workers."""

from __future__ import annotations

import msgspec


class LaneDescriptors(msgspec.Struct, frozen=True):
    """Descriptors that engine and workers inherit.

    >>> LaneDescriptors(lanes=7, records=1024, bell=8, wakes=(9,), done=10, places=512).wakes
    (9,)
    """

    lanes: int  # memory of all lanes (`ipc/lane.py`)
    records: int  # of each ring
    bell: int  # wakes the engine
    wakes: tuple[int, ...]  # each wakes the thread of a lane
    done: int  # memory by which workers tell of done queries (`ipc/done_queries.py`)
    places: int  # of slots, in all
    gates: int = -1  # memory by which the engine refuses in advance (`ipc/admission_gates.py`)
