"""`FrontLanes`: the engine's end of the lanes that the front's I/O threads write queries to."""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from veltair.server.engine.pending_query import PendingQuery
from veltair.server.ipc.admission_gates import AdmissionGates
from veltair.server.ipc.done_queries import Caller, pack_callers
from veltair.server.ipc.lane import Lane, QueryHeld, QueryRan, lane_bytes
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.messages import AbortQuery, InferQuery, QueryEnded


class FrontLanes:
    """All lanes of one front, by number; none where Python reads and writes for it.

    ::

        lanes = FrontLanes(poll, configure.lanes, configure.slots)
        for lane, message in lanes.take():  # once the bell has rung
            …
        lanes.end(lane, ended, tenant, slot)
        lanes.wake_fronts()
    """

    def __init__(self, poll: select.epoll, descriptors: LaneDescriptors | None, tenants: int, slots: int) -> None:
        """Registers the bell in `poll`. The descriptors are inherited from the front. `slots`: of each tenant."""
        self._slots = slots
        self._told: set[int] = set()  # lanes whose threads are to be woken
        self.ran: Callable[[QueryRan], None] = lambda ran: None  # hears of what ran by standing orders
        self.held: Callable[[int, QueryHeld], None] = lambda lane, held: None  # hears the answers to `recall`
        self._lanes: list[Lane] = []
        self.bell = -1  # readable when a lane has messages
        if descriptors is not None:
            self.bell, self._wakes, records = descriptors.bell, descriptors.wakes, descriptors.records
            memory = mmap.mmap(descriptors.lanes, len(self._wakes) * lane_bytes(records))
            self._lanes = [Lane(memory, index, records) for index in range(len(self._wakes))]
            self._gates = AdmissionGates(descriptors.gates, tenants)
            poll.register(self.bell, select.EPOLLIN | select.EPOLLET)  # each write tells; nobody reads it

    def __len__(self) -> int:
        """How many threads there are."""
        return len(self._lanes)

    def take(self) -> Iterator[tuple[int, InferQuery | AbortQuery]]:
        """All messages that are there, with their lanes. What comes meanwhile rings the bell again."""
        for index, lane in enumerate(self._lanes):
            for message in lane.take():
                if isinstance(message, QueryRan):
                    self.ran(message)
                elif isinstance(message, QueryHeld):
                    self.held(index, message)
                else:
                    yield index, message

    def callers(self, queries: Sequence[PendingQuery]) -> bytes:
        """Who waits for these queries, for their worker to tell (`DoneQueries`); nobody where one came as a message."""
        callers = []
        for query in queries:
            message, lane = query.message, query.lane
            if lane is None:
                return b""
            callers.append(Caller(message.query, query.taken_ns, lane, self.place(message.tenant, message.slot)))
        return pack_callers(callers)

    def end(self, lane: int, ended: QueryEnded, tenant: int, slot: int) -> None:
        """Tell the front of a query's end, which it reads with the next `wake_fronts`."""
        self._lanes[lane].end(ended, tenant, slot)
        self._told.add(lane)

    def shut(self, tenant: int, batch: int, for_ns: int, priority_level: int = 1) -> None:
        """Have the front refuse queries of so many samples or more, of this level or behind it, for so long."""
        if self._lanes:
            self._gates.shut(tenant, batch, time.monotonic_ns(), for_ns, priority_level)

    def refuse(self, tenant: int, for_ns: int) -> None:
        """Have the front refuse all of the tenant's queries for so long, and none of them afterwards."""
        if self._lanes:
            self._gates.refuse(tenant, time.monotonic_ns(), for_ns)

    def decided(self, query: InferQuery, now_ns: int, *, admitted: bool) -> None:
        """Whether the query is admitted has been decided: the front may send others like it."""
        if self._lanes:
            self._gates.decided(query.tenant, now_ns, query.priority_level, admitted=admitted)

    def work(self, tenant: int) -> int:
        """What the I/O threads have done for the tenant's number, in requests; for those that they refused too."""
        return self._gates.work(tenant) if self._lanes else 0

    def place(self, tenant: int, slot: int) -> int:
        """As callers name it."""
        return tenant * self._slots + slot

    def tenant_and_slot(self, place: int) -> tuple[int, int]:
        """Of a caller's place."""
        return divmod(place, self._slots)

    def tell_all(self) -> None:
        """Have all threads look for what there is to read."""
        self._told.update(range(len(self._lanes)))

    def recall(self) -> None:
        """Ask all threads for the queries that they wait for."""
        for lane in self._lanes:
            lane.recall()
        self.tell_all()

    def wake_fronts(self) -> None:
        """Wake the threads that have something to read."""
        while self._told:
            with suppress(BlockingIOError):  # it is awake
                os.eventfd_write(self._wakes[self._told.pop()], 1)
