"""Both HTTP fronts in this process over one service: uvicorn, and I/O threads before it with a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.http as triton
from native_front import IDS, Fronts, X, fronts, run_in
from scripted_engine import ScriptedEngine

from veltair.server.access.http_access import AccessCheck
from veltair.server.front.http_front import application
from veltair.server.front.monitor.dashboard import Dashboard
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.listening import HttpServer, bind, listen_inside
from veltair.types import Machine

INFER = "/v2/models/sums/infer"
IDLE_S = 300.0  # of uvicorn


class Client:
    """A connection, as raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, to_head: bool = False) -> bytes:
        """The next response with Content-Length or without a body, except for its date and times."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
        body = await self.reader.readexactly(int(size[1])) if size and not to_head else b""
        return undated(head) + body

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := await self.reader.read(1 << 16):
                data += chunk
        return undated(data)

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.answer()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def undated(data: bytes) -> bytes:
    """Without dates, and with zeros for the times that the server took."""
    return re.sub(rb";dur=\d+\.\d{3}\b", b";dur=0.000", re.sub(rb"\r\ndate: [^\r]*", b"", data))


@dataclass
class HttpFronts:
    """Clients of both fronts, and what stands behind them."""

    fronts: Fronts
    native: tuple[str, int]
    python: tuple[str, int]
    http: list[Any]  # the uvicorn servers: behind the threads, and alone
    clients: list[Client] = field(default_factory=list)

    @property
    def scripted(self) -> ScriptedEngine:
        return self.fronts.scripted

    async def client(self, *, python: bool = False) -> Client:
        made = Client(*await asyncio.open_connection(*(self.python if python else self.native)))
        self.clients.append(made)
        return made

    async def both(self, data: bytes) -> bytes:
        """The answer of either front to this request, which is the same."""
        native, python = await self.client(), await self.client(python=True)
        found, expected = await native.ask(data), await python.ask(data)
        assert found == expected
        return found

    async def learn(self, client: Client, data: bytes) -> bytes:
        """Ask Python for the first time, so that there is a plan for the next."""
        before = self.fronts.asked_python
        answer = await client.ask(data)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert self.fronts.asked_python == before + 1
        return answer


@asynccontextmanager
async def http_fronts(**options: Any) -> Any:
    async with fronts(**options) as made:
        learner = PlanLearner(made.threads, made.engine, made.service.regions, made.access)
        dashboard = Dashboard(made.engine, made.service.metrics, Machine(((0, 1),)))
        app = AccessCheck(application(made.service, dashboard, learner), made.access, apart=False)
        public, alone, inside = bind("http", "127.0.0.1:0"), bind("http", "127.0.0.1:0"), listen_inside()
        alone.listen()
        addresses = public.getsockname(), alone.getsockname()
        secret = made.threads.uvicorn_secret
        http = [HttpServer.of(app, public, IDLE_S, secret), HttpServer.of(app, alone, IDLE_S, None)]
        tasks = [asyncio.create_task(http[0].serve([inside])), asyncio.create_task(http[1].serve([alone]))]
        made.threads.forward_to(inside)
        made.threads.listen_http(public)
        served = HttpFronts(made, *addresses, http)
        try:
            yield served
        finally:
            for client in served.clients:
                await client.close()
            await made.threads.stop(0)
            public.close()
            await dashboard.close()
            for each in http:
                each.end()
            await asyncio.gather(*tasks)


def run(test: Callable[[HttpFronts], Awaitable[None]], **options: Any) -> None:
    run_in(http_fronts(**options), test)


def body(
    x: Any = X, ids: Any = IDS, *, outputs: Sequence[str] = (), binary: bool = True, **more: Any
) -> tuple[bytes, int]:
    """What the stock client sends for these tensors, and how much of it is JSON."""
    inputs = []
    for name, values, datatype in (("x", np.array(x, np.float32), "FP32"), ("ids", np.array(ids, np.int64), "INT64")):
        inputs.append(triton.InferInput(name, list(values.shape), datatype))
        inputs[-1].set_data_from_numpy(values, binary_data=binary)
    wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
    data, json_bytes = triton.InferenceServerClient.generate_request_body(inputs, outputs=wanted, **more)
    return data, len(data) if json_bytes is None else json_bytes


def post(data: bytes, json_bytes: int | None, *, path: str = INFER, headers: str = "", version: str = "1.1") -> bytes:
    """A request with this body."""
    length = "" if json_bytes is None else f"Inference-Header-Content-Length: {json_bytes}\r\n"
    head = f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Length: {len(data)}\r\n{length}{headers}\r\n"
    return head.encode("latin-1") + data


def infer(*args: Any, headers: str = "", path: str = INFER, version: str = "1.1", **more: Any) -> bytes:
    return post(*body(*args, **more), path=path, headers=headers, version=version)


PLAIN = infer(request_id="any")
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
LIVE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
