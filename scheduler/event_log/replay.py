"""Replays an event log: the events, fed to a fresh scheduler of the same settings, give the identical decisions."""

from __future__ import annotations

from collections.abc import Iterable

from veltair.errors import InvariantError
from veltair.scheduler.event_log.header import LogHeader
from veltair.scheduler.event_log.records import EVENTS, load_decision, load_event, read_tag
from veltair.scheduler.events import Decision
from veltair.scheduler.scheduler import Scheduler


def replay(scheduler: Scheduler, log: Iterable[str]) -> int:
    """Feeds a log's events to a fresh scheduler and returns how many there were. A header in the first line is skipped.

    Raises ConfigError for a line that is no record, InvariantError where a decision differs from the recorded one.
    """
    events = 0
    due: list[Decision] = []  # decided, not yet met in the log
    number = 0
    for number, line in enumerate(log, 1):
        tag = read_tag(line)
        if number == 1 and tag == LogHeader.__name__:
            continue
        if tag in EVENTS:
            if due:
                raise InvariantError(f"log line {number}: expected {due[0]}, the log has an event")
            due = scheduler.handle(load_event(line))
            events += 1
        else:
            recorded = load_decision(line)
            if not due or due[0] != recorded:
                raise InvariantError(
                    f"log line {number}: expected {due[0] if due else 'an event'}, the log has {recorded}"
                )
            del due[0]
    if due:
        raise InvariantError(f"after log line {number}: expected {due[0]}, the log ends")
    return events
