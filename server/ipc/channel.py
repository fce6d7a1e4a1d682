"""`Channel`: one end of a packet socket that carries messages."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

PACKET_BYTES = 1 << 20  # of the largest message; an EngineStatus of 1,000 workers has about 100 KB
_encoder = msgspec.msgpack.Encoder()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends with buffers for the largest message, as far as the system allows."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    return ends


class ChannelClosedError(Exception):
    """The other end is gone."""


class Channel(Generic[T]):
    """Receives messages of union type T and sends any message.

    On a non-blocking socket, packets that the system does not take now wait in `backlog` for `flush`.

    >>> from veltair.server.ipc.messages import AbortQuery, ToEngine
    >>> front, engine = (Channel(end, ToEngine) for end in socket_pair())
    >>> front.send(AbortQuery(query=7))
    >>> engine.receive()
    AbortQuery(query=7)
    >>> front.close(), engine.close()
    (None, None)
    """

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        """`incoming` is T: a message type or a union of them."""
        self.socket = sock
        self.backlog: deque[bytes] = deque()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray(PACKET_BYTES)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Raises ChannelClosedError when the other end is gone."""
        self.backlog.append(_encoder.encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what waits in the backlog. Raises ChannelClosedError when the other end is gone."""
        backlog = self.backlog
        try:
            while backlog:
                self.socket.send(backlog[0])
                backlog.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            backlog.clear()
            raise ChannelClosedError from None

    def receive(self) -> T | None:
        """The next message; None when there is none now. Raises ChannelClosedError when the other end is gone."""
        try:
            size = self.socket.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise ChannelClosedError from None
        if size == 0:
            raise ChannelClosedError
        return self._decoder.decode(self._view[:size])

    def is_closed(self) -> bool:
        """Whether the other end is gone, and all that it sent has been received. Does not block."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()
