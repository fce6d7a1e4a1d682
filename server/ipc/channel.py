"""`Channel`: one end of a packet socket that carries messages, and open descriptors beside them."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

PACKET_BYTES = 1 << 20  # of the largest message; an EngineStatus of 1,000 workers has about 100 KB
MOST_DESCRIPTORS = 8  # that come with one message
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
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

    On a non-blocking socket, packets that the system does not take now wait in `backlog` for `flush`. Descriptors that
    came with a message are closed when the next one is received, unless `take_descriptors` took them over.

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
        self.backlog: deque[tuple[bytes, Sequence[int]]] = deque()  # with descriptors of its own
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray(PACKET_BYTES)
        self._view = memoryview(self._buffer)
        self._received: list[int] = []  # descriptors that came with the last message

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """The other end gets duplicates of the descriptors. Raises ChannelClosedError when it is gone."""
        self._post(_encoder.encode(message), descriptors)

    def _post(self, packet: bytes, descriptors: Sequence[int]) -> None:
        self.flush()
        if self.backlog or not self._send(packet, descriptors):
            self.backlog.append((packet, [os.dup(descriptor) for descriptor in descriptors]))

    def flush(self) -> None:
        """Send what waits in the backlog. Raises ChannelClosedError when the other end is gone."""
        backlog = self.backlog
        while backlog and self._send(*backlog[0]):
            _close_all(backlog.popleft()[1])

    def pass_descriptors(self, descriptors: Iterable[int]) -> None:
        """Give the other end duplicates of these, however many, before the first message. Raises ChannelClosedError
        when it is gone, OSError where the system refuses."""
        left = list(dict.fromkeys(descriptors))
        while left:
            some, left = left[:MOST_DESCRIPTORS], left[MOST_DESCRIPTORS:]
            self._post(_encoder.encode(some), some)
        self._post(_encoder.encode([]), ())

    def receive_passed(self) -> dict[int, int]:
        """What `pass_descriptors` gives, in its order: the numbers of the descriptors in the other process, and in this
        one. The socket blocks. Raises ChannelClosedError when the other end is gone, and OSError where this process
        cannot have so many files open."""
        passed: dict[int, int] = {}
        while numbers := msgspec.msgpack.decode(self._receive(), type=list[int]):
            here = self.take_descriptors()
            passed |= zip(numbers, here, strict=False)
            if len(here) < len(numbers):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return passed

    def _send(self, packet: bytes, descriptors: Sequence[int]) -> bool:
        """Returns whether the system took it."""
        try:
            if descriptors:
                socket.send_fds(self.socket, [packet], list(descriptors))
            else:
                self.socket.send(packet)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._drop_backlog()
            raise ChannelClosedError from None
        return True

    def receive(self) -> T | None:
        """The next message; None when there is none now. Raises ChannelClosedError when the other end is gone."""
        try:
            return self._decoder.decode(self._receive())
        except BlockingIOError:
            return None

    def _receive(self) -> memoryview:
        """The next packet. Raises BlockingIOError when there is none now, ChannelClosedError when there comes none."""
        self.drop_descriptors()
        try:
            size, ancillary, _, _ = self.socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            raise ChannelClosedError from None
        for _, _, content in ancillary:
            self._received += array.array("i", content)
        if size == 0:
            raise ChannelClosedError
        return self._view[:size]

    def take_descriptors(self) -> Sequence[int]:
        """Those that came with the last message; the caller closes them. Where too many files are open in this process,
        some or all of them are missing."""
        taken, self._received = self._received, []
        return taken

    def drop_descriptors(self) -> None:
        """Close those that came with the last message."""
        _close_all(self.take_descriptors())

    def is_closed(self) -> bool:
        """Whether the other end is gone, and all that it sent has been received. Does not block."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._drop_backlog()
        self.drop_descriptors()
        self.socket.close()

    def _drop_backlog(self) -> None:
        while self.backlog:
            _close_all(self.backlog.popleft()[1])


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
