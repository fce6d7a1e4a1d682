"""`LaneDescriptors`: by what the engine and its workers reach the front's I/O threads."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LaneDescriptors(msgspec.Struct, frozen=True):
    """Descriptors that the front gives to the engine, and the engine some of them to its workers.

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
    standing: int = -1  # memory by which threads order of a worker themselves (`ipc/standing_orders.py`)

    def as_passed(self, passed: Mapping[int, int]) -> LaneDescriptors:
        """The descriptors with the numbers that they have in the process which got them; -1 for those that it did not
        get.

        >>> own = LaneDescriptors(lanes=7, records=1024, bell=8, wakes=(9,), done=10, places=512)
        >>> own.as_passed({9: 3, 10: 4}).done
        4
        """
        names = ("lanes", "bell", "done", "gates", "standing")
        here = {name: passed.get(getattr(self, name), -1) for name in names}
        return msgspec.structs.replace(self, wakes=tuple(passed[wake] for wake in self.wakes), **here)
