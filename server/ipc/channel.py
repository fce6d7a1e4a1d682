"""One end of a packet socket that carries messages."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

PACKET_BYTES = 1 << 20  # of the largest message; a Status of 1,000 workers has about 100 KB
_encoder = msgspec.msgpack.Encoder()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends with room for the largest message, as far as the system allows."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    return ends


class ClosedError(Exception):
    """The other end is gone."""


class Channel(Generic[T]):
    """Messages of union type T come in; any go out. On a socket that does not block, what the system will not
    take now waits in `backlog` for `flush`."""

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self.socket = sock
        self.backlog: deque[bytes] = deque()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray(PACKET_BYTES)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Raises ClosedError when the other end is gone."""
        self.backlog.append(_encoder.encode(message))
        self.flush()

    def flush(self) -> None:
        backlog = self.backlog
        try:
            while backlog:
                self.socket.send(backlog[0])
                backlog.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            backlog.clear()
            raise ClosedError from None

    def receive(self) -> T | None:
        """The next message; None when there is none now. Raises ClosedError when the other end is gone."""
        try:
            size = self.socket.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise ClosedError from None
        if size == 0:
            raise ClosedError
        return self._decoder.decode(self._view[:size])

    def close(self) -> None:
        self.socket.close()
