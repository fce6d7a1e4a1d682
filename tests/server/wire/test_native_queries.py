"""Requests with a plan, from a stock client over the I/O threads to an engine and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from native_front import IDS, Fronts, X, ask, encoded, request, run
from scripted_engine import ONE, SUMS, TWO
from tritonclient.grpc import service_pb2 as pb

from veltair.server.front.inference_service import TENANT_HEADER

Status = grpc.StatusCode


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_second_request_never_reaches_python_and_has_the_same_answer(batch: int) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        chance = np.random.default_rng(batch)
        first = await fronts.learn(channel, encoded(np.ones((batch, 4)), np.ones((batch, 2)), id="the first"))
        assert first.message.id == "the first"
        for number in range(5):
            x, ids = chance.standard_normal((batch, 4), np.float32), chance.integers(0, 100, (batch, 2))
            data = encoded(x, ids, id=f"request {number}")
            answer = await ask(channel, data)
            assert answer.message.id == f"request {number}"
            assert answer == await ask(fronts.channel(python=True), data)
        assert fronts.scripted.count == 5
        assert fronts.asked_python == 1 + 5  # the first, and those to Python's own front

    run(body)


@pytest.mark.parametrize("id_", ["", "a", "\x00\x7f", "x" * 127, "x" * 128, "x" * 20_000])
def test_ids_come_back(id_: str) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, encoded())
        await fronts.learn(channel, encoded(id="any"))
        answer = await ask(channel, encoded(id=id_))
        assert answer.message.id == id_ and answer.sums() == ([10.0], [104])
        assert fronts.scripted.count == 1
        assert answer == await ask(fronts.channel(python=True), encoded(id=id_))

    run(body)


def test_ids_with_other_characters_are_pythons() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, encoded())
        answer = await fronts.learn(channel, encoded(id="Größe"))
        assert answer.message.id == "Größe"
        broken = encoded(id="abc").replace(b"abc", b"a\xffc")
        assert await ask(channel, broken) == await ask(fronts.channel(python=True), broken)
        assert fronts.scripted.count == 0

    run(body)


OTHERS: dict[str, bytes] = {
    "batch": encoded(X * 2, IDS * 2),
    "parameter": encoded(parameters={"priority": {"int64_param": 1}}),
    "model": encoded(model="one"),
    "version": encoded(modelVersion="1"),
    "outputs": encoded(outputs=["ids_sum", "sum"]),
    "one output": encoded(outputs=["ids_sum"]),
    "order": pb.ModelInferRequest(
        model_name="sums", inputs=request().inputs[::-1], raw_input_contents=request().raw_input_contents[::-1]
    ).SerializeToString(),
    "final mark": encoded(parameters={"triton_enable_empty_final_response": {"bool_param": True}}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_head_is_another_plan(case: str) -> None:
    async def body(fronts: Fronts) -> None:
        channel, other = fronts.channel(), OTHERS[case]
        await fronts.learn(channel, encoded())
        expected = await fronts.learn(channel, other)
        assert await ask(channel, other) == expected == await ask(fronts.channel(python=True), other)
        assert (await ask(channel, encoded())).sums() == ([10.0], [104])
        assert fronts.scripted.count == 2

    run(body)


def test_a_plan_carries_the_priority() -> None:
    async def body(fronts: Fronts) -> None:
        channel, asked = fronts.channel(), {0: 3, 1: 1, 2: 2, 77: 5}  # and the level that it means
        heads = {priority: encoded(parameters={"priority": {"int64_param": priority}}) for priority in asked}
        for data in (encoded(), *heads.values()):
            await fronts.learn(channel, data)
        assert fronts.engine.priority_levels == [3, *asked.values()]
        fronts.scripted.automatic = False
        for priority, level in asked.items():
            asking = asyncio.create_task(ask(channel, heads[priority]))
            held = await fronts.scripted.next()
            assert held.message.priority_level == level
            fronts.scripted.end(held)
            assert (await asking).code is Status.OK

    run(body)


def test_the_tenants_header_is_part_of_the_head() -> None:
    async def body(fronts: Fronts) -> None:
        fronts.scripted.automatic = False
        channel, data = fronts.channel(), encoded(model="shared")
        for tenant in ("one", "two"):
            await fronts.learn(channel, data, metadata=[(TENANT_HEADER, tenant)])
        for tenant, number in (("one", ONE), ("two", TWO)):
            asked = asyncio.create_task(ask(channel, data, metadata=[("k", "v"), (TENANT_HEADER, tenant)]))
            held = await fronts.scripted.next()
            assert held.message.tenant == number
            fronts.scripted.end(held)
            assert (await asked).sums() == ([10.0], [104])
        for wrong in ([], [(TENANT_HEADER, "three")], [(TENANT_HEADER, "sums")]):
            answer = await ask(channel, data, metadata=wrong)
            assert answer.code is Status.NOT_FOUND
            assert answer == await ask(fronts.channel(python=True), data, metadata=wrong)

    run(body)


def test_the_engine_finds_the_query_in_its_slot() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, encoded(X * 2, IDS * 2))
        asked = asyncio.create_task(ask(channel, encoded([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2], [3, 4]])))
        held = await fronts.scripted.next()
        message = held.message
        assert (message.tenant, message.batch, message.deadline_ns) == (SUMS, 2, None)
        assert fronts.scripted.inputs(held) == [[[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2], [3, 4]]]
        fronts.scripted.end(held)
        assert (await asked).sums() == ([10, 26], [3, 7])

    run(body, automatic=False)


def raws(change: Callable[[Any], object]) -> bytes:
    message = request()
    change(message.raw_input_contents)
    data: bytes = message.SerializeToString()
    return data


def typed() -> bytes:
    message = request()
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.extend(X[0])
    message.inputs[1].contents.int64_contents.extend(IDS[0])
    data: bytes = message.SerializeToString()
    return data


def id_of(value: int) -> bytes:
    return encoded(ids=[[0, value]])


# Requests that no plan fits, though one for their head or a similar one is known.
PYTHONS: dict[str, bytes] = {
    **{f"id {value}": id_of(value) for value in (-1, 100, 1 << 40, -(1 << 63), (1 << 63) - 1)},
    "a short tensor": raws(lambda raw: raw.__setitem__(0, raw[0][:-1])),
    "a long tensor": raws(lambda raw: raw.__setitem__(1, raw[1] + b"\0")),
    "an empty tensor": raws(lambda raw: raw.__setitem__(0, b"")),
    "swapped tensors": raws(lambda raw: raw.__setitem__(slice(None), raw[::-1])),
    "too few": raws(lambda raw: raw.pop()),
    "none": raws(lambda raw: raw.__delitem__(slice(None))),
    "too many": raws(lambda raw: raw.append(b"")),
    "typed": typed(),
    "cut off": encoded()[:-1],
    "a field behind": encoded() + pb.ModelInferRequest(id="behind").SerializeToString(),
    "another model behind": encoded() + pb.ModelInferRequest(model_name="one").SerializeToString(),
    "unknown model": encoded(model="nope"),
    "unknown version": encoded(modelVersion="7"),
    "unknown output": encoded(outputs=["nope"]),
    "wrong timeout": encoded(parameters={"timeout": {"string_param": "soon"}}),
    "nothing": b"",
}


@pytest.mark.parametrize("case", PYTHONS)
def test_what_no_plan_fits_is_answered_as_python_alone_does(case: str) -> None:
    async def body(fronts: Fronts) -> None:
        channel, data = fronts.channel(), PYTHONS[case]
        await fronts.learn(channel, encoded())
        expected = await ask(fronts.channel(python=True), data)
        assert await ask(channel, data) == expected
        assert await ask(channel, data) == expected
        assert fronts.scripted.count == 0
        assert (await ask(channel, encoded())).sums() == ([10.0], [104])  # and nothing was learned from it
        assert fronts.scripted.count == 1 and fronts.scripted.link.taken == 0

    run(body)


def test_a_field_behind_the_tensors_decides_about_no_later_request() -> None:
    async def body(fronts: Fronts) -> None:
        channel, behind = fronts.channel(), pb.ModelInferRequest(model_name="one").SerializeToString()
        answer = await fronts.learn(channel, encoded() + behind)
        assert answer.message.model_name == "one"
        assert (await fronts.learn(channel, encoded())).message.model_name == "sums"
        raw = b"".join(
            pb.ModelInferRequest(raw_input_contents=[part]).SerializeToString() for part in request().raw_input_contents
        )
        await fronts.learn(channel, raw + raws(lambda contents: contents.__delitem__(slice(None))))
        answer = await ask(channel, raw)  # which names no model
        assert answer.code is Status.INVALID_ARGUMENT and answer == await ask(fronts.channel(python=True), raw)
        assert fronts.scripted.count == 0

    run(body)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_pythons(compression: Any) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        data = encoded([[1.0] * 4] * 8, [[1] * 2] * 8)
        await fronts.learn(channel, data)
        await fronts.learn(channel, data, compression=compression)
        await fronts.learn(channel, data, compression=compression)
        assert fronts.scripted.count == 0

    run(body)


@pytest.mark.parametrize("traced", [{"bool_param": True}, {"string_param": "true"}, {"int64_param": "1"}])
def test_a_traced_request_is_always_pythons(traced: dict[str, Any]) -> None:
    async def body(fronts: Fronts) -> None:
        channel, data = fronts.channel(), encoded(parameters={"veltair_trace": traced})
        for _ in range(3):
            answer = await fronts.learn(channel, data)
            assert answer.message.parameters["blocks"].string_param
        untraced = encoded(parameters={"veltair_trace": {"bool_param": False}})
        await fronts.learn(channel, untraced)
        assert not (await ask(channel, untraced)).message.parameters
        assert fronts.scripted.count == 1

    run(body)


def test_a_request_in_a_stream_teaches_too() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        streamed = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        first = [answer async for answer in streamed(iter([encoded(id="a"), encoded(id="b")]))]
        assert [answer.infer_response.id for answer in first] == ["a", "b"] and fronts.asked_python == 2
        answer = await ask(channel, encoded(id="c"))
        assert answer.message.id == "c" and fronts.scripted.count == 1 and fronts.asked_python == 2

    run(body)


def test_tritonclient() -> None:
    async def body(fronts: Fronts) -> None:
        x = triton.InferInput("x", [1, 4], "FP32")
        ids = triton.InferInput("ids", [1, 2], "INT64")
        async with triton.InferenceServerClient(fronts.native.address) as client:
            for number in range(4):
                values = np.full((1, 4), number, np.float32)
                x.set_data_from_numpy(values)
                ids.set_data_from_numpy(np.array([[number, 1]]))
                result = await client.infer("sums", [x, ids], request_id=str(number))
                assert result.get_response().id == str(number)
                assert result.as_numpy("sum").tolist() == [[4.0 * number]]
                assert result.as_numpy("ids_sum").tolist() == [[number + 1]]
        assert fronts.scripted.count == 3 and fronts.asked_python == 1

    run(body)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_connections(threads: int) -> None:
    async def body(fronts: Fronts) -> None:
        channels = [fronts.channel() for _ in range(12)]
        await fronts.learn(channels[0], encoded(id="any"))

        async def client(number: int) -> None:
            for turn in range(20):
                answer = await ask(channels[number], encoded([[number, turn, 0, 0]], [[number, turn]], id=f"{number}"))
                assert answer.message.id == f"{number}"
                assert answer.sums() == ([number + turn], [number + turn])

        await asyncio.gather(*map(client, range(len(channels))))
        assert fronts.scripted.count == 240 and fronts.asked_python == 1
        assert fronts.outcomes() == {"ok": 241} and fronts.scripted.link.taken == 0

    run(body, threads=threads, slots=64)
