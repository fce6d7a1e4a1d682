"""What uvicorn speaks: HTTP/1.1, with the I/O threads behind a line about the client (`inside_protocol`).

The line is `SECRET main|admin NAME`: a secret of this daemon, so that nobody else on this machine speaks for a client;
where the client came in; and the name in its certificate, which may be empty.
"""

from __future__ import annotations

import hmac
import select
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from veltair.server.protocol.request_target import split_target

CAME_IN = "veltair.came_in"  # of a scope: ("main" or "admin", the name in the client's certificate)
LONGEST_LINE = 512


class TargetProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which would forget the server that a request's target names. `uvicorn.Config(http=…)`."""

    def on_headers_complete(self) -> None:
        self.url = split_target(self.url, self.scope)  # type: ignore[arg-type]
        super().on_headers_complete()


class OutsideProtocol(TargetProtocol):
    """What clients reach without I/O threads: one that closes its side behind its requests gets the answers."""

    _ended = False
    _watch: select.epoll | None = None  # for a client that has left; at its end of input a socket is always readable

    def eof_received(self) -> bool:  # type: ignore[override]
        """An interim response finds out whether the client waits, as in http1.c. Returns whether it does, or may; never
        over TLS, where asyncio closes at once."""
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        waiting = [cycle for cycle, _ in self.pipeline] + ([] if self.cycle is None else [self.cycle])
        cycles = [cycle for cycle in waiting if not cycle.response_complete]
        if not cycles or any(cycle.more_body for cycle in cycles):
            return False
        self._ended = True
        first = cycles[-1]
        if not first.response_started and first.scope["http_version"] != "1.0":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._watch = select.epoll()
        self._watch.register(self.transport.get_extra_info("socket").fileno(), 0)  # errors and hang-ups are always told
        self.loop.add_reader(self._watch.fileno(), self.transport.abort)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self.loop.remove_reader(self._watch.fileno())
            self._watch.close()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._ended and is_last:
            self.transport.close()


def inside_protocol(secret: bytes) -> type[HttpToolsProtocol]:
    """A class for `uvicorn.Config(http=…)`. A connection without the secret is cut off."""

    class InsideProtocol(TargetProtocol):
        _line: bytes | None = b""
        _came_in = ("main", "")

        def data_received(self, data: bytes) -> None:
            if self._line is not None:
                line, end, data = (self._line + data).partition(b"\n")
                if not end and len(line) <= LONGEST_LINE:
                    self._line = line
                    return
                self._line = None
                found, _, about = line.partition(b" ")
                if not end or not hmac.compare_digest(found, secret):
                    self.transport.abort()
                    return
                where, _, name = about.decode("latin-1").partition(" ")
                self._came_in = (where, name)
                if not data:
                    return
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            scope: dict[str, Any] = self.scope  # type: ignore[assignment]
            scope[CAME_IN] = self._came_in

    return InsideProtocol
