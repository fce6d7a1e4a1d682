"""An HTTP/2 connection on a transport of asyncio."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from veltair.grpc.http2.connection import Connection

WRITE_BUFFER_BYTES = 1 << 20  # unsent; above it nothing is added but answers to control frames


class AsyncioConnection(Connection, asyncio.BufferedProtocol):
    """A connection that `loop.create_server` and `loop.create_connection` can drive.

    ::

        _, connection = await loop.create_connection(AsyncioConnection, host, port)
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's has another base
        stream.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.peer: tuple[str, int] = (stream.get_extra_info("peername") or ("", 0))[:2]  # empty: it has left already
        # The system notices a peer that vanished without closing.
        stream.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.start(stream)

    def eof_received(self) -> bool:
        """Returns whether the connection stays open: not so for an end that has nothing to say."""
        return False
