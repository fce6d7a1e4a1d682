"""`LineWriter`: lines for the log, written by a thread of their own: a reader that is slow holds up no query."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from veltair.server.ipc.logs.json_lines import event
from veltair.server.ipc.process_setup import log_to_stderr

MOST_PENDING = 1 << 18  # lines that wait; more are lost, and counted
ATOMIC_BYTES = 4096  # PIPE_BUF: other processes write to the same pipe, and shorter writes are not mixed with theirs
CLOSE_S = 5.0  # that the last lines may take

Lines: TypeAlias = Callable[[], Sequence[bytes]]  # called in the thread; each with its end of line


class LineWriter:
    """Writes what it is given, in order. What cannot be written is lost; a line says how much once writing works again.

    ::

        with LineWriter(descriptor=2, tell_lost=lambda lines: b"%d lines were lost\\n" % lines) as writer:
            writer.add(1, lambda: [b"one line\\n"])
    """

    def __init__(self, descriptor: int, tell_lost: Callable[[int], bytes]) -> None:
        self._descriptor, self._tell_lost = descriptor, tell_lost
        self._pending: deque[tuple[int, Lines]] = deque()
        self._lines = 0
        self._lost = 0  # lines that nobody has been told of
        self._torn = False  # the last line is there in part
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, count: int, lines: Lines) -> None:
        """Write `lines()`, which are so many, unless too many wait."""
        with self._changed:
            if self._lines + count > MOST_PENDING:
                self._lost += count
                return
            self._lines += count
            self._pending.append((count, lines))
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                count, lines = self._pending.popleft()
                lost, self._lost = self._lost, 0
            written = self._write([*([self._tell_lost(lost)] if lost else []), *lines()])
            with self._changed:
                self._lines -= count
                if not written:  # all of these count: which of them a full disk has taken, nobody knows
                    self._lost += lost + count

    def _write(self, lines: Sequence[bytes]) -> bool:
        """Returns whether all could be written: the reader may be gone, the disk full."""
        piece = b""
        for line in lines:
            if piece and len(piece) + len(line) > ATOMIC_BYTES:
                if not self._write_all(piece):
                    return False
                piece = b""
            piece += line
        return self._write_all(piece)

    def _write_all(self, data: bytes) -> bool:
        if self._torn:
            data = b"\n" + data
        try:
            while data:
                written = os.write(self._descriptor, data)
                self._torn = not data[:written].endswith(b"\n")
                data = data[written:]
        except OSError:
            return False
        return True


class _LineStream:
    """What `logging.StreamHandler` writes to: whole lines, which it hands on to a thread."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def write(self, text: str) -> None:
        line = text.encode("utf-8", "backslashreplace")
        self._writer.add(1, lambda: [line])

    def flush(self) -> None:
        """Nothing waits here."""


class _PromptStream:
    """What `logging.StreamHandler` writes to: it takes what can be written at once, and drops the rest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._room = descriptor, select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with suppress(OSError):  # as for the thread's: the reader may be gone, the disk full
            for begin in range(0, len(data), ATOMIC_BYTES):
                if not self._room.poll(0):
                    break
                os.write(self._descriptor, data[begin : begin + ATOMIC_BYTES])  # a pipe with any room takes so much

    def flush(self) -> None:
        """Nothing waits here."""


def _handlers_to_stderr() -> list[logging.StreamHandler[Any]]:
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    return [each for each in handlers if each.stream is sys.stderr]


def log_promptly() -> None:
    """Log to stderr, and drop what would have to wait there: for a process that forks, or may have no thread more."""
    log_to_stderr()
    for handler in _handlers_to_stderr():
        handler.setStream(_PromptStream(sys.stderr.fileno()))


@contextmanager
def log_beside() -> Iterator[LineWriter]:
    """Have a thread write what this process logs to stderr from here on: a pipe that nobody reads, such as that of a
    log collector which has stopped, would otherwise stop whoever logs. Not for a process that forks."""
    shown = _handlers_to_stderr()

    def tell_lost(lines: int) -> bytes:
        record = logging.LogRecord("veltair.log", logging.WARNING, "", 0, "%d lines were lost", (lines,), None)
        record.fields = event("lines_lost", lines=lines)["fields"]
        return ((shown[0] if shown else logging.Handler()).format(record) + "\n").encode()

    with LineWriter(sys.stderr.fileno(), tell_lost) as writer:
        for handler in shown:
            handler.setStream(_LineStream(writer))
        try:
            yield writer
        finally:
            for handler in shown:
                handler.setStream(sys.stderr)
