"""`TraceSender`: hands traces to a collector from a thread of its own.

A collector that is slow or away loses traces, and nothing else: no query waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from veltair.server.front.tracing.query_trace import QueryTrace

MOST_PENDING = 4096  # traces that wait; more are dropped, and counted
MOST_SENT = 256  # at once
GATHER_S = 0.5  # that a first trace waits for others
CLOSE_S = 2.0  # that the last ones may take

_log = logging.getLogger(__name__)


class Collector(Protocol):
    """Where traces go: `OtlpCollector`.

    ::

        arrived = collector.send(traces)
    """

    def send(self, traces: Sequence[QueryTrace]) -> bool: ...

    def close(self) -> None: ...


class TraceSender:
    """Sends what it is given, in order.

    ::

        with TraceSender(lambda: OtlpCollector(OtlpSettings("http://otel:4317"), "1")) as sender:
            sender.add(trace)
    """

    def __init__(self, collector: Callable[[], Collector], most_pending: int = MOST_PENDING) -> None:
        self.sent = self.dropped = self.failed = 0  # traces
        self._collector = collector()
        self._most_pending = most_pending
        self._pending: deque[QueryTrace] = deque()
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def __enter__(self) -> TraceSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, trace: QueryTrace) -> None:
        """Send it, unless too many wait."""
        with self._changed:
            if len(self._pending) >= self._most_pending:
                self.dropped += 1
                return
            self._pending.append(trace)
            if len(self._pending) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Send what waits, unless the collector takes too long."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._collector.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                self._changed.wait_for(lambda: self._closing, GATHER_S)
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), MOST_SENT))]
            try:
                arrived = self._collector.send(batch)
            except Exception:  # whatever is wrong with a trace or the collector's library, serving goes on
                _log.exception("traces could not be sent")
                arrived = False
            if arrived:
                self.sent += len(batch)
            else:
                self.failed += len(batch)
