"""`Recall`: where the memory of claims cannot be believed, the I/O threads say what they wait for."""

from __future__ import annotations

from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.ipc.lane import QueryHeld


class Recall:
    """What nobody but an I/O thread knows of becomes a query that has arrived.

    Nobody may run claims when it begins, and nobody gets any before it is over. A thread first hears of all ends that
    were told when it was asked, so that it names none of those.

    ::

        recall = Recall(arrivals, lanes, queries)
        recall.begin()  # the worker that wrote the memory is gone
        recall.arrived(query)  # by a lane, as ever
        recall.is_over
    """

    def __init__(self, arrivals: Arrivals, lanes: FrontLanes, queries: InFlightQueries) -> None:
        self._arrivals, self._lanes, self._queries = arrivals, lanes, queries
        self._asked: set[int] = set()  # the lanes whose threads have not said all
        self._known: set[int] = set()  # queries that the engine has had since it asked
        lanes.held = self._held

    @property
    def is_over(self) -> bool:
        """Whether all threads have answered."""
        return not self._asked

    def begin(self) -> None:
        """Ask all threads."""
        self._known |= self._queries.ids | {arrival.message.query for arrival in self._arrivals}
        self._asked = set(range(len(self._lanes)))
        self._lanes.recall()

    def arrived(self, query: int) -> None:
        """A query has come while threads are asked: its thread may name it."""
        if self._asked:
            self._known.add(query)

    def _held(self, lane: int, held: QueryHeld) -> None:
        if (message := held.message) is None:
            self._asked.discard(lane)
            if not self._asked:
                self._known.clear()
        elif message.query not in self._known:
            self._known.add(message.query)
            self._arrivals.add(message, lane)
