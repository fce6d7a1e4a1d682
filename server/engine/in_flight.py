"""Queries from their Infer to their Ended: who waits, who flies on which worker, and how each lands."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from veltair.errors import InvariantError
from veltair.scheduler.events import CancelQuery, Decision, FinishQuery, GrowBlock, RejectQuery, StartBlock, StopBlock
from veltair.server.engine.pending_query import Flight, Tally, Ticket
from veltair.server.engine.worker_supervisor import Supervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel, ClosedError


class Flights:
    """Carries out what the scheduler decides.

    Invariants: every Infer gets exactly one Ended; a worker is held by one flight at most; a ticket's slot is not
    touched any more when its Ended goes out, since its flight's worker has answered or is gone: one of a batch that
    is cancelled ends with the batch.
    """

    def __init__(self, front: Channel[m.ToEngine], tenants: Sequence[m.TenantSpec], supervisor: Supervisor) -> None:
        self._front, self._tenants, self._supervisor = front, tenants, supervisor
        self._tickets: dict[int, Ticket] = {}  # by query
        self._by_query: dict[int, Flight] = {}  # in the name of which it flies
        self.tally = {spec.name: Tally(spec.qos_ns) for spec in tenants}

    def __getitem__(self, query: int) -> Flight:
        return self._by_query[query]

    def all(self) -> Collection[Flight]:
        return self._by_query.values()

    def take(self, infer: m.Infer) -> Ticket:
        """A query that has arrived."""
        ticket = self._tickets[infer.query] = Ticket(infer, self._tenants[infer.tenant].name)
        self.tally[ticket.tenant].arrived += 1
        return ticket

    def cancel(self, query: int) -> bool:
        """Whether the scheduler should hear of it: not if the query's end is on the way to the front."""
        ticket = self._tickets.get(query)
        if ticket is None or ticket.cancelled:
            return False
        ticket.cancelled = True
        if (flight := ticket.flight) is None:
            self._end(ticket, "cancelled")
        elif flight.forsaken and flight.order is None:
            self.land(flight, "cancelled")
        return True

    def carry_out(self, decision: Decision) -> None:
        match decision:
            case StartBlock():
                self._start(decision)
            case GrowBlock(query=query, core_set=core_set):
                self._by_query[query].worker.cell.order(core_set)
            case CancelQuery(query=query) | StopBlock(query=query):
                self._by_query[query].worker.cell.cancel(query)
            case FinishQuery(query=query):
                self._settle(query, "done")
            case RejectQuery(query=query, reason=reason):
                self._settle(query, "rejected", reason)

    def land(self, flight: Flight, outcome: m.Outcome, reason: str = "") -> None:
        """Answer all of the batch, and free the worker before the scheduler can want it for another."""
        del self._by_query[flight.query]
        flight.order = None
        self._supervisor.release(flight.worker)
        for ticket in flight.tickets:
            self._end(ticket, "cancelled" if ticket.cancelled else outcome, reason)

    def _start(self, order: StartBlock) -> None:
        block = order.block
        flight = self._by_query.get(block.query)
        if flight is None:
            worker = self._supervisor.take(block.query)
            if worker is None:
                raise InvariantError(f"query {block.query} is to start, but no worker is idle")
            flight = Flight([self._tickets[query] for query in (block.query, *order.members)], worker)
            self._by_query[block.query] = flight
            self.tally[flight.tenant].batches[len(flight.tickets)] += 1
        flight.order, flight.ordered_ns = order, time.monotonic_ns()
        worker = flight.worker
        worker.stand_on(order.core_set)
        worker.cell.cancel(0)  # a block before this one may have been told to stop
        worker.cell.order(order.core_set)
        tenant = flight.tickets[0].infer.tenant
        run = m.Run(block.query, tenant, flight.parts, block.start, block.versions, order.core_set)
        with suppress(ClosedError):  # it has just died: its pidfd tells next
            worker.channel.send(run)

    def _settle(self, query: int, outcome: m.Outcome, reason: str = "") -> None:
        """As the scheduler says; a batch lands with the first of its queries that it names."""
        ticket = self._tickets.get(query)
        if ticket is not None and ticket.flight is not None:
            self.land(ticket.flight, outcome, reason)
        elif ticket is not None:
            self._end(ticket, outcome, reason)

    def _end(self, ticket: Ticket, outcome: m.Outcome, reason: str = "") -> None:
        query = ticket.infer.query
        del self._tickets[query]
        self.tally[ticket.tenant].ended(ticket, outcome, time.monotonic_ns())
        blocks = tuple(ticket.flight.blocks) if ticket.flight else ()
        self._front.send(m.Ended(query, outcome, reason, blocks))
