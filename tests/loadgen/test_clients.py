"""Both clients against a real server that answers, refuses, hangs and breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import uvloop

from veltair.errors import ConfigError
from veltair.loadgen.client import InferenceClient, ModelMetadata, Outcome, RawFeature, Response, TensorMetadata
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.payloads import DRAWN_BATCH_PAYLOADS, draw_payloads
from veltair.loadgen.shared_memory_client import FOLDER, SharedMemoryClient

T = TypeVar("T")
SCHEMES = ("http", "grpc")


def with_client(server: Any, scheme: str, play: Callable[[Any], Awaitable[T]], timeout_s: float = 10.0) -> T:
    async def session() -> T:
        kind, port = (HttpClient, server.http) if scheme == "http" else (GrpcClient, server.grpc)
        client = kind("127.0.0.1", port, timeout_s)
        await client.open(2)
        try:
            return await play(client)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(session())


async def request(client: InferenceClient, model: str, batch: int | None = 3) -> bytes:
    meta = await client.describe(model)
    return client.encode(meta, draw_payloads(meta, batch, np.random.default_rng(0))[0])


def outcomes(server: Any, scheme: str, model: str, times: int, timeout_s: float = 10.0) -> list[Response]:
    async def play(client: InferenceClient) -> list[Response]:
        data = await request(client, model)
        return [await client.send(data) for _ in range(times)]

    return with_client(server, scheme, play, timeout_s)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_metadata(fake_server, scheme):
    meta = with_client(fake_server, scheme, lambda client: client.describe("echo"))
    assert meta == ModelMetadata(
        "echo",
        (TensorMetadata("x", "FP32", (-1, 4)), TensorMetadata("ids", "INT64", (-1, 3))),
        {"ids": (5, 9)},
        {"s": RawFeature(30, ";"), "user": RawFeature()},
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_tensors_arrive_as_the_metadata_wants_them(own_fake_server, scheme):
    answers = outcomes(own_fake_server, scheme, "echo", 4)
    assert answers == [Response(Outcome.OK)] * 4
    counts = own_fake_server.stats("echo")
    assert (counts["queries"], counts["samples"], counts["bad"]) == (4, 12, 0)


@pytest.mark.parametrize("model", ["echo", "words"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tensors_in_shared_memory_arrive_and_leave_nothing_behind(own_fake_server, scheme, model):
    async def play(client: Any) -> list[Response]:
        sharing = await SharedMemoryClient.register(client)
        meta = await sharing.describe(model)
        payloads = draw_payloads(meta, (1, 5), np.random.default_rng(0))
        requests = [sharing.encode(meta, payload) for payload in payloads]  # all of them lie there at once
        assert max(map(len, requests)) < 1000
        answers = [await sharing.send(data) for data in requests]
        await sharing.close()
        assert not list(FOLDER.glob(f"{sharing.region}*"))
        return answers

    assert with_client(own_fake_server, scheme, play) == [Response(Outcome.OK)] * DRAWN_BATCH_PAYLOADS
    assert own_fake_server.stats(model)["bad"] == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strings_arrive_as_the_configuration_wants_them(own_fake_server, scheme):
    assert outcomes(own_fake_server, scheme, "words", 4) == [Response(Outcome.OK)] * 4
    counts = own_fake_server.stats("words")
    assert (counts["queries"], counts["samples"], counts["bad"]) == (4, 12, 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_fixed_batch(own_fake_server, scheme):
    async def play(client: InferenceClient) -> Response:
        return await client.send(await request(client, "fixed", None))

    assert with_client(own_fake_server, scheme, play).outcome is Outcome.OK
    assert own_fake_server.stats("fixed")["bad"] == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_bad_request_is_an_error_with_the_servers_words(fake_server, scheme):
    async def play(client: InferenceClient) -> Response:
        meta = await client.describe("echo")
        wrong = {"x": np.ones((1, 4), np.float32), "ids": np.full((1, 3), 99)}
        return await client.send(client.encode(meta, wrong))

    answer = with_client(fake_server, scheme, play)
    assert answer.outcome is Outcome.ERROR
    assert "id out of range" in answer.detail


@pytest.mark.parametrize(
    ("scheme", "model", "outcome", "detail"),
    [
        ("http", "refuse", Outcome.REFUSED, "503 queue full"),
        ("http", "deadline", Outcome.REFUSED, "504 past its deadline"),
        ("http", "internal", Outcome.ERROR, "500 not even JSON"),
        ("http", "garbage", Outcome.ERROR, "not HTTP"),
        ("http", "drop", Outcome.ERROR, "closed before an answer"),
        ("http", "half_head", Outcome.ERROR, "closed in the middle"),
        ("http", "half_body", Outcome.ERROR, "closed in the middle"),
        ("http", "chunked", Outcome.ERROR, "without content-length"),
        ("http", "overlong", Outcome.ERROR, "more bytes than content-length"),
        ("http", "say_close", Outcome.OK, ""),
        ("http", "close_idle", Outcome.OK, ""),
        ("grpc", "refuse", Outcome.REFUSED, "UNAVAILABLE queue full"),
        ("grpc", "exhausted", Outcome.REFUSED, "RESOURCE_EXHAUSTED"),
        ("grpc", "deadline", Outcome.REFUSED, "DEADLINE_EXCEEDED"),
        ("grpc", "internal", Outcome.ERROR, "INTERNAL"),
    ],
)
def test_whatever_the_server_does_is_one_outcome_and_the_next_query_is_not_harmed(
    fake_server, scheme, model, outcome, detail
):
    async def play(client: InferenceClient) -> list[Response]:
        bad, good = await request(client, model), await request(client, "echo")
        return [await client.send(data) for data in (bad, good, bad, bad, good)]

    answers = with_client(fake_server, scheme, play)
    for answer in (answers[0], answers[2], answers[3]):
        assert answer.outcome is outcome
        assert detail in answer.detail
    assert answers[1] == answers[4] == Response(Outcome.OK)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_answer_in_time_is_an_error(fake_server, scheme):
    answers = outcomes(fake_server, scheme, "hang", 2, timeout_s=0.3)
    assert answers == [Response(Outcome.ERROR, "no answer within 0.3 s")] * 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_late_answer_is_not_taken_for_the_next_querys(fake_server, scheme):
    async def play(client: Any) -> list[Response]:
        slow, good = await request(client, "hang"), await request(client, "refuse")
        client._timeout_s = 0.2
        first = await client.send(slow)
        client._timeout_s = 10.0
        return [first, await client.send(good)]

    first, second = with_client(fake_server, scheme, play)
    assert first.outcome is Outcome.ERROR
    assert second.outcome is Outcome.REFUSED


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_is_killed_costs_errors_not_refusals(own_fake_server, scheme):
    async def play(client: InferenceClient) -> list[Response]:
        hang, good = await request(client, "hang"), await request(client, "echo")
        waiting = [asyncio.create_task(client.send(hang)) for _ in range(3)]
        while await asyncio.to_thread(lambda: own_fake_server.stats("hang")["queries"]) < 3:
            pass
        own_fake_server.process.kill()
        answers = await asyncio.gather(*waiting)
        return [*answers, await client.send(good)]

    for answer in with_client(own_fake_server, scheme, play):
        assert answer.outcome is Outcome.ERROR
        assert answer.detail


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_at_once_need_not_wait_for_each_other(own_fake_server, scheme):
    async def play(client: InferenceClient) -> int:
        data = await request(client, "hang")
        waiting = [asyncio.create_task(client.send(data)) for _ in range(50)]
        while (most := await asyncio.to_thread(lambda: own_fake_server.stats("hang")["waiting_max"])) < 50:
            pass
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return most

    assert with_client(own_fake_server, scheme, play) == 50


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unknown_model(fake_server, scheme):
    with pytest.raises(ConfigError, match=r"model `nobody`: the server answered .* unknown model"):
        with_client(fake_server, scheme, lambda client: client.describe("nobody"))


@pytest.mark.parametrize("kind", [HttpClient, GrpcClient])
def test_nobody_listens(kind):
    async def play() -> None:
        await kind("127.0.0.1", 1, 10.0).open(1)

    with (
        pytest.raises(ConfigError, match=r"load\.target: cannot reach \w+://127\.0\.0\.1:1"),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(play())


def test_the_other_protocols_port(fake_server):
    async def http_to_grpc() -> None:
        client = HttpClient("127.0.0.1", fake_server.grpc, 10.0)
        await client.open(1)
        try:
            await client.describe("echo")
        finally:
            await client.close()

    with asyncio.Runner() as runner:
        with pytest.raises(ConfigError, match=r"not HTTP|connection closed"):
            runner.run(http_to_grpc())
        with pytest.raises(ConfigError, match="cannot reach"):
            runner.run(GrpcClient("127.0.0.1", fake_server.http, 10.0).open(1))
