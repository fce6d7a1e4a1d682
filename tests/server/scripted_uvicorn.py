"""The I/O threads with a scripted server in uvicorn's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from native_front import new_threads, run_in
from native_http import Client

from veltair.server.listening import bind, listen_inside
from veltair.server.wire.io_threads import IoThreads


class Behind:
    """The I/O threads, and the connections that they open to the scripted server."""

    def __init__(self, threads: IoThreads, address: tuple[str, int]) -> None:
        self.threads, self.address = threads, address
        self.connections: asyncio.Queue[Client] = asyncio.Queue()
        self.opened: list[Client] = []

    async def client(self) -> Client:
        self.opened.append(Client(*await asyncio.open_connection(*self.address)))
        return self.opened[-1]

    async def accepted(self) -> Client:
        """The next connection to the server, which begins by saying whose it is."""
        server = await self.connections.get()
        assert await server.reader.readline() == self.threads.uvicorn_secret + b" main \n"
        return server

    async def begin(self, data: bytes) -> tuple[Client, Client]:
        """A client that has sent this, and the connection on which it has come out."""
        client = await self.client()
        client.send(data)
        server = await self.accepted()
        assert await server.reader.readexactly(len(data)) == data
        return client, server


@asynccontextmanager
async def behind() -> Any:
    threads = new_threads(1)
    await threads.listen("127.0.0.1", 0, {}, lambda *_: b"", lambda _: None)
    inside, public = listen_inside(), bind("http", "127.0.0.1:0")
    made = Behind(threads, public.getsockname())

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.opened.append(Client(reader, writer))
        made.connections.put_nowait(made.opened[-1])

    server = await asyncio.start_server(accept, sock=inside)
    threads.forward_to(inside)
    threads.listen_http(public)
    try:
        yield made
    finally:
        for opened in made.opened:
            await opened.close()
        await threads.stop(0)
        server.close()
        public.close()


def run(test: Callable[[Behind], Awaitable[None]]) -> None:
    run_in(behind(), test)
