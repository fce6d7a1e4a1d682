"""The gRPC client against servers of grpcio that come and go."""

import asyncio
from typing import Any

import grpc
import uvloop

from veltair.grpc.http2.frames import message_prefix
from veltair.loadgen.client import Outcome, Response
from veltair.loadgen.grpc_client import SERVICE, GrpcClient

WAIT_S = 10.0


async def start_server(handler: Any, port: int = 0) -> tuple[Any, int]:
    server = grpc.aio.server()
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def test_a_lost_connection_is_an_error_and_made_anew() -> None:
    arrived = asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        return b""

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def run() -> list[Response]:
        server, port = await start_server(hang)
        client = GrpcClient("127.0.0.1", port, WAIT_S)
        await client.open(1)
        waiting = asyncio.create_task(client.send(message_prefix(0)))
        await arrived.wait()
        await server.stop(0)
        answers = [await waiting, await client.send(message_prefix(0))]
        server, _ = await start_server(echo, port)
        answers.append(await client.send(message_prefix(5) + b"hello"))
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

    async def run() -> Response:
        server, port = await start_server(hang)
        client = GrpcClient("127.0.0.1", port, 0.2)
        await client.open(1)
        answer = await client.send(message_prefix(0))
        await cancelled.wait()
        await client.close()
        await server.stop(0)
        return answer

    answer = uvloop.run(run())
    assert (answer.outcome, answer.detail) == (Outcome.ERROR, "no answer within 0.2 s")
