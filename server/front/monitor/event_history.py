"""`EventHistory`: what happened to the daemon, kept in the front, which outlives its engines and workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from veltair.server.ipc.daemon_events import EventKind, Severity
from veltair.server.protocol.failed_queries import MOST_TEXT

KEPT_EVENTS = 4096
MERGED_S = 60.0  # an event of the same kind and model within this time is counted, not kept by itself


@dataclass(slots=True)
class DaemonEvent:
    """One event, or several alike within a minute, as the page and scripts get it.

    ::

        DaemonEvent(7, 9, "worker_died", "error", "", "worker 4711 was killed by SIGKILL", 1.7e9, 1.7e9, count=1)
    """

    id: int
    revision: int  # of the history when it was last changed
    kind: str
    severity: Severity
    subject: str  # the model that it is about, or ""
    text: str  # of the last one
    first_s: float  # wall clock since 1970
    last_s: float
    count: int


class EventHistory:
    """Keeps the last KEPT_EVENTS. A worker that dies again and again takes one of them a minute, so they span more
    than an hour unless 68 kinds of trouble go on at once.

    >>> history = EventHistory(clock=lambda: 1_700_000_000.0)
    >>> history.add(EventKind.WORKER_DIED, "", "worker 1 was killed by SIGKILL")
    >>> history.add(EventKind.WORKER_DIED, "", "worker 2 was killed by SIGKILL")
    >>> [(event["text"], event["count"]) for event in history.since(0)]
    [('worker 2 was killed by SIGKILL', 2)]
    >>> history.since(history.revision)
    []
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._clock = clock
        self._events: deque[DaemonEvent] = deque(maxlen=KEPT_EVENTS)
        self._latest: dict[tuple[EventKind, str], DaemonEvent] = {}
        self._ids = 0
        self.revision = 0  # grows with each event
        self.counts: Counter[EventKind] = Counter()

    def add(self, kind: EventKind, subject: str, text: str) -> None:
        """A `Report`."""
        now_s = self._clock()
        self.counts[kind] += 1
        self.revision += 1
        key, text = (kind, subject), text[:MOST_TEXT]
        latest = self._latest.get(key)
        if latest is not None and 0 <= now_s - latest.first_s < MERGED_S:
            latest.count, latest.last_s, latest.text, latest.revision = latest.count + 1, now_s, text, self.revision
            return
        self._ids += 1
        event = DaemonEvent(self._ids, self.revision, kind.value, kind.severity, subject, text, now_s, now_s, 1)
        if len(self._latest) >= KEPT_EVENTS:  # subjects are names of models, which clients may choose
            self._latest.clear()
        self._latest[key] = event
        self._events.append(event)

    def since(self, revision: int, most: int = KEPT_EVENTS) -> list[dict[str, Any]]:
        """Those that were added or changed after this revision, the last `most` of them, oldest first."""
        changed = [event for event in self._events if event.revision > revision]
        return [asdict(event) for event in changed[-most:]]
