"""The gRPC client against servers of grpcio that come, go and allow little."""

import asyncio
from typing import Any

import grpc
import uvloop

from veltair.grpc.http2 import hpack
from veltair.grpc.http2.connection import Connection
from veltair.grpc.http2.frames import DATA, HEADERS, REFUSED_STREAM, prefix
from veltair.grpc.http2.stream import Stream
from veltair.loadgen.client import Answer, Outcome
from veltair.loadgen.grpc_client import SERVICE, GrpcClient

WAIT_S = 10.0


async def served(handler: Any, port: int = 0, **options: int) -> tuple[Any, int]:
    server = grpc.aio.server(options=[*options.items(), ("grpc.max_receive_message_length", -1)])
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def test_no_more_calls_at_once_than_the_server_takes() -> None:
    running = most = 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return request * 40  # more than the first window

    async def run() -> list[Answer]:
        server, port = await served(handler, **{"grpc.max_concurrent_streams": 3})
        client = GrpcClient("127.0.0.1", port, WAIT_S)
        await client.open(1)
        answers = await asyncio.gather(*(client.send(prefix(100_000) + bytes(100_000)) for _ in range(20)))
        await client.close()
        await server.stop(0)
        return answers

    assert {answer.outcome for answer in uvloop.run(run())} == {Outcome.OK}
    assert 1 <= most <= 3


def test_a_lost_connection_is_an_error_and_made_anew() -> None:
    arrived = asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        return b""

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def run() -> list[Answer]:
        server, port = await served(hang)
        client = GrpcClient("127.0.0.1", port, WAIT_S)
        await client.open(1)
        waiting = asyncio.create_task(client.send(prefix(0)))
        await arrived.wait()
        await server.stop(0)
        answers = [await waiting, await client.send(prefix(0))]
        server, _ = await served(echo, port)
        answers.append(await client.send(prefix(5) + b"hello"))
        await client.close()
        await server.stop(0)
        return answers

    lost, nobody, answered = uvloop.run(run())
    assert lost.outcome is not Outcome.OK and lost.detail
    assert nobody.outcome is Outcome.ERROR and "refused" in nobody.detail.lower()
    assert answered.outcome is Outcome.OK


def test_a_call_without_an_answer_ends_at_the_timeout() -> None:
    cancelled = asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async def run() -> Answer:
        server, port = await served(hang)
        client = GrpcClient("127.0.0.1", port, 0.2)
        await client.open(1)
        answer = await client.send(prefix(0))
        await cancelled.wait()
        await client.close()
        await server.stop(0)
        return answer

    answer = uvloop.run(run())
    assert (answer.outcome, answer.detail) == (Outcome.ERROR, "no answer within 0.2 s")


class Boasting(Stream):
    """Announces more than there is."""

    def headers(self, fields: list[hpack.Field]) -> None: ...

    def message(self, data: memoryview, *, compressed: bool) -> None: ...

    def too_large(self, size: int) -> None: ...

    def broken(self, code: int | None) -> None: ...

    def ended(self) -> None:
        self.queue(HEADERS, hpack.encode([(":status", "200"), ("content-type", "application/grpc")]))
        self.send(DATA, prefix(1 << 31) + bytes(100))


def test_an_answer_too_large_for_protobuf_is_not_waited_for() -> None:
    async def run() -> Answer:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(lambda: Boasting(100)), "127.0.0.1", 0
        )
        client = GrpcClient("127.0.0.1", server.sockets[0].getsockname()[1], WAIT_S)
        await client.open(1)
        answer = await client.send(prefix(0))
        await client.close()
        server.close()
        return answer

    answer = uvloop.run(run())
    assert (answer.outcome, answer.detail) == (Outcome.ERROR, "an answer of 2147483648 bytes was announced")


class Fickle(Stream):
    """Of the server's calls the second is refused unread; the first is answered only then."""

    first: "Fickle"

    def headers(self, fields: list[hpack.Field]) -> None: ...

    def message(self, data: memoryview, *, compressed: bool) -> None: ...

    def too_large(self, size: int) -> None: ...

    def broken(self, code: int | None) -> None: ...

    def ended(self) -> None:
        if self.number == 1:
            Fickle.first = self
        elif self.number == 3:
            self.reset(REFUSED_STREAM)
            Fickle.first.answer()
        else:
            self.answer()

    def answer(self) -> None:
        self.queue(HEADERS, hpack.encode([(":status", "200"), ("content-type", "application/grpc")]))
        self.queue(DATA, prefix(0))
        self.send(HEADERS, hpack.encode([("grpc-status", "0")]), end=True)


def test_a_call_that_was_refused_unread_is_made_again() -> None:
    async def run() -> list[Answer]:
        server = await asyncio.get_running_loop().create_server(lambda: Connection(lambda: Fickle(100)), "127.0.0.1", 0)
        client = GrpcClient("127.0.0.1", server.sockets[0].getsockname()[1], WAIT_S)
        await client.open(1)
        answers = await asyncio.gather(client.send(prefix(0)), client.send(prefix(0)))
        await client.close()
        server.close()
        return answers

    assert [answer.outcome for answer in uvloop.run(run())] == [Outcome.OK, Outcome.OK]


def test_who_gave_up_waiting_takes_nobodys_turn() -> None:
    arrived, let_go = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            arrived.set()
            await let_go.wait()
        return request

    async def run() -> list[Answer]:
        server, port = await served(handler, **{"grpc.max_concurrent_streams": 1})
        patient, hasty = GrpcClient("127.0.0.1", port, WAIT_S), GrpcClient("127.0.0.1", port, 0.1)
        await patient.open(1)
        hasty._lines = patient._lines  # one connection, whose only call the patient one makes
        slow = asyncio.create_task(patient.send(prefix(4) + b"slow"))
        await arrived.wait()
        given_up = await hasty.send(prefix(0))
        behind = asyncio.create_task(patient.send(prefix(0)))
        let_go.set()
        answers = [await slow, given_up, await behind]
        await patient.close()
        await server.stop(0)
        return answers

    slow, given_up, behind = uvloop.run(run())
    assert given_up.outcome is Outcome.ERROR and "no answer" in given_up.detail
    assert slow.outcome is Outcome.OK and behind.outcome is Outcome.OK
