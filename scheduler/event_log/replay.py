"""Replays an event log: the events, fed to a fresh scheduler of the same settings, give the identical decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from veltair.errors import ConfigError, InvariantError
from veltair.scheduler.event_log.header import LogHeader, check_digest
from veltair.scheduler.event_log.records import EVENTS, load_decision, load_event, read_tag
from veltair.scheduler.events import Decision, TenantAdded
from veltair.scheduler.scheduler import Scheduler
from veltair.types import ModelProfile

ProfilesOf: TypeAlias = Callable[[TenantAdded], Sequence[ModelProfile]]


def _no_profiles(event: TenantAdded) -> Sequence[ModelProfile]:
    raise ConfigError(f"{event.tenant.model}: the log needs its profile, which is missing")


def replay(scheduler: Scheduler, log: Iterable[str], profiles_of: ProfilesOf = _no_profiles) -> int:
    """Feeds a log's events to a fresh scheduler and returns how many there were. A header in the first line is skipped.

    `profiles_of`: those of a model that was loaded during the recording. Raises ConfigError for a line that is no
    record, ProfileError for other profiles than the recorded ones, InvariantError where a decision differs from the
    recorded one.
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
            event = load_event(line)
            if isinstance(event, TenantAdded):
                _learn_model(scheduler, event, profiles_of)
            due = scheduler.handle(event)
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


def _learn_model(scheduler: Scheduler, event: TenantAdded, profiles_of: ProfilesOf) -> None:
    if event.tenant.model in scheduler.state.costs:
        return
    profiles = profiles_of(event)
    check_digest(event.tenant.model, profiles, event.profiles)
    scheduler.learn_model(event.tenant.model, scheduler.prepare_model(event.tenant.model, profiles))
