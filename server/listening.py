"""Where the front process listens: the public addresses, and uvicorn inside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
from collections.abc import Collection, Iterator

import uvicorn
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from veltair.address import join_address, split_address
from veltair.config import ServerConfig
from veltair.errors import ConfigError
from veltair.grpc.server import BACKLOG
from veltair.server.access.inside_protocol import OutsideProtocol, inside_protocol
from veltair.server.front.grpc_front import MESSAGE_SLACK_BYTES, SERVICE
from veltair.server.front.inference_service import TENANT_HEADER
from veltair.server.wire.io_threads import IoThreads

OTHER_DESCRIPTORS = 256  # of libraries, the engine, the threads, the dashboard
FEWEST_CONNECTIONS = 16  # with which a daemon can be asked, looked after and measured
FLUSH_S = 2.0  # for responses still being sent when everything else has ended
DATE_S = 1.0  # between two values of the header Date

_log = logging.getLogger("veltair.server")


def with_descriptors(server: ServerConfig) -> ServerConfig:
    """Raise the number of open files as far as the system lets us, and bound the connections by it.

    A connection over HTTP may need one more inside; the rest of the process has a few. Raises ConfigError where the
    system gives too few.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = (most - OTHER_DESCRIPTORS) // 2
    if connections < FEWEST_CONNECTIONS:
        fewest = OTHER_DESCRIPTORS + 2 * FEWEST_CONNECTIONS
        raise ConfigError(f"expected a limit of at least {fewest} open files, and it is {most} (ulimit -Hn)")
    if server.limits.connections <= connections:
        return server
    _log.warning("%d connections at most: the system gives this process %d descriptors", connections, most)
    return replace(server, limits=replace(server.limits, connections=connections))


def start_threads(server: ServerConfig, home: int | None, hosts: Collection[str]) -> IoThreads | None:
    """The I/O threads that the configuration asks for; None for none. One alone stays on the core `home`.

    `hosts`: names that clients call the server by.

    Raises VeltairError.
    """
    server = with_descriptors(server)
    if not server.fronts:
        _log.warning("fronts = 0: the budgets of [server.limits] do not hold; for comparison alone")
        return None
    return IoThreads(
        server.fronts,
        home=home if server.fronts == 1 else None,
        infer_path=f"/{SERVICE}/ModelInfer",
        tenant_header=TENANT_HEADER,
        max_message_bytes=(server.body_limit_mb << 20) + MESSAGE_SLACK_BYTES,
        max_body_bytes=server.body_limit_mb << 20,
        limits=server.limits,
        hosts=hosts,
    )


class HttpServer(uvicorn.Server):
    """Serves until `end`, and leaves signals to `serve`. `HttpServer.of(app, listener, idle_s=300, secret=None)`.

    uvicorn looks ten times a second whether it should end. An idle front would do little else, with cold caches, and
    that cost a sixth of its CPU time at 15 queries a second.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # at a counter of 0 it renews the header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @classmethod
    def of(
        cls, app: ASGIApp, listener: socket.socket, idle_s: float, secret: bytes | None, scheme: str = "http"
    ) -> HttpServer:
        """`listener` and `scheme` are those that clients know, whichever uvicorn accepts from.

        With a `secret` those are connections of I/O threads.
        """
        server = listener.getsockname()[:2]

        async def seen_from_outside(scope: Scope, receive: Receive, send: Send) -> None:
            scope["server"], scope["scheme"] = server, scheme
            await app(scope, receive, send)

        config = uvicorn.Config(
            seen_from_outside,
            loop="none",
            http=OutsideProtocol if secret is None else inside_protocol(secret),
            ws="none",
            lifespan="off",
            server_header=False,
            log_config=None,
            log_level="error",  # it warns of each malformed request, of which clients may send many
            access_log=False,
            timeout_keep_alive=math.ceil(idle_s),
            timeout_graceful_shutdown=int(FLUSH_S),
        )
        config.load()  # what it imports is there before anybody is told that this listens
        return cls(config)


def bind(key: str, address: str) -> socket.socket:
    """A listener that nobody can connect to yet. Raises ConfigError, which names the key of [server]."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"server.{key}: cannot listen on {address} ({error.strerror})") from None
    return listener


def listen_inside() -> socket.socket:
    """Where the I/O threads reach uvicorn: a Unix socket with a name that the system gives, which is no file's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")
    listener.listen(BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return join_address(host, port)
