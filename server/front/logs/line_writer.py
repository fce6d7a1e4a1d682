"""`LineWriter`: lines for the log, written by a thread of their own: a reader that is slow holds up no query."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

MOST_PENDING = 1 << 18  # lines that wait; more are lost, and counted
ATOMIC_BYTES = 4096  # PIPE_BUF: other processes write to the same pipe, and shorter writes are not mixed with theirs
CLOSE_S = 5.0  # that the last lines may take

Lines: TypeAlias = Callable[[], Sequence[bytes]]  # called in the thread; each with its end of line


class LineWriter:
    """Writes what it is given, in order.

    ::

        with LineWriter(descriptor=2) as writer:
            writer.add(1, lambda: [b"one line\\n"])
    """

    def __init__(self, descriptor: int) -> None:
        self.lost = 0  # lines
        self._descriptor = descriptor
        self._pending: deque[tuple[int, Lines]] = deque()
        self._lines = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, count: int, lines: Lines) -> bool:
        """Write `lines()`, which are so many. Returns whether there is room for them; else they are lost."""
        with self._changed:
            if self._lines + count > MOST_PENDING:
                self.lost += count
                return False
            self._lines += count
            self._pending.append((count, lines))
            self._changed.notify()
            return True

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with suppress(OSError):  # nobody reads the log any more
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._pending or self._closing)
                    if not self._pending:
                        return
                    count, lines = self._pending.popleft()
                self._write(lines())
                with self._changed:
                    self._lines -= count

    def _write(self, lines: Sequence[bytes]) -> None:
        piece = b""
        for line in lines:
            if piece and len(piece) + len(line) > ATOMIC_BYTES:
                write_all(self._descriptor, piece)
                piece = b""
            piece += line
        write_all(self._descriptor, piece)


def write_all(descriptor: int, data: bytes) -> None:
    """Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]
