"""`Decisions`: has the scheduler decide about each event, what it decides carried out, and both written down."""

from __future__ import annotations

import time
from collections.abc import Callable

from veltair.scheduler.events import Decision, Event
from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.engine_status import Timings
from veltair.server.engine.event_log import EventLog


class Decisions:
    """The engine's way to the scheduler.

    ::

        decisions = Decisions(scheduler, queries.carry_out, log)
        decisions.decide(QueryArrived(time.monotonic_ns(), query))
    """

    def __init__(self, scheduler: Scheduler, carry_out: Callable[[Decision], None], log: EventLog | None) -> None:
        self.timings = Timings()
        self._scheduler, self._carry_out, self._log = scheduler, carry_out, log

    def decide(self, event: Event) -> None:
        """Something has happened. Raises InvariantError where that cannot be."""
        begin_ns = time.monotonic_ns()
        decisions = self._scheduler.handle(event)
        self.timings.count_event(time.monotonic_ns() - begin_ns)
        for decision in decisions:
            self._carry_out(decision)
        if self._log:
            self._log.write(event, decisions)
