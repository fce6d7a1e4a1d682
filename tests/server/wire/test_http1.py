"""Inference over HTTP/1.1 with a plan: which requests follow it, and that their answers are Python's."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tritonclient.http as triton
from native_http import INFER, PLAIN, HttpFronts, body, infer, post, run
from scripted_engine import ONE, TWO


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_second_request_never_reaches_python_and_has_the_same_answer(batch: int) -> None:
    async def test(fronts: HttpFronts) -> None:
        client, chance = await fronts.client(), np.random.default_rng(batch)
        await fronts.learn(client, infer(np.ones((batch, 4)), np.ones((batch, 2)), request_id="the first"))
        for number in range(5):
            x, ids = chance.standard_normal((batch, 4), np.float32), chance.integers(0, 100, (batch, 2))
            answer = await fronts.both(infer(x, ids, request_id=f"request {number}"))
            assert f'"id":"request {number}"'.encode() in answer
            assert answer.endswith(x.sum(1).astype("f4").tobytes() + ids.sum(1).tobytes())
        assert fronts.scripted.count == 5
        assert fronts.fronts.asked_python == 1 + 5  # the first, and those to Python's own front

    run(test)


@pytest.mark.parametrize("known", ["", "any"])
@pytest.mark.parametrize("id_", ["a", " !~", "x" * 3000])
def test_ids_come_back(known: str, id_: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        data, size = body(request_id=known or "any")
        if not known:
            data = data.replace(b'"any"', b'""', 1)
            size -= 3
        await fronts.learn(client, post(data, size))
        assert f'"id":"{id_}"'.encode() in await fronts.both(infer(request_id=id_))
        assert fronts.scripted.count == 1

    run(test)


def test_an_answer_with_a_plan_has_the_times_of_its_own_query() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        await fronts.learn(client, infer())
        client.send(infer())
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert re.search(rb"\r\nserver-timing: queue;dur=\d+\.\d{3}, compute;dur=\d+\.\d{3}\r\n", head)
        assert fronts.fronts.asked_python == 1

    run(test)


def test_a_plan_answers_with_the_warning_too() -> None:
    async def test(fronts: HttpFronts) -> None:
        data, size = body(parameters={"temperature": 1})
        await fronts.learn(await fronts.client(), post(data, size))
        assert b"unknown parameter: 'temperature'" in await fronts.both(post(data, size))
        assert fronts.scripted.count == 1

    run(test)


def test_an_empty_id_is_left_out() -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        data, size = body(request_id="any")
        assert b'"id"' not in await fronts.both(post(data.replace(b'"any"', b'""', 1), size - 3))
        assert fronts.scripted.count == 1

    run(test)


def spelled(head: bytes) -> bytes:
    """A request whose JSON begins so; the rest is the stock client's."""
    data, size = body()
    return post(head + data[1:], size + len(head) - 1)


IDS_OF_PYTHON = {
    "escaped": spelled(b'{"id": "a\\u0041", '),
    "not ASCII": spelled('{"id": "Größe", '.encode()),
    "twice": spelled(b'{"id": "a", "id": "b", '),
    "twice, escaped": spelled(b'{"id": "a", "\\u0069d": "b", '),
    "spaced": spelled(b'{ "id": "a", '),
    "spaced behind": spelled(b'{"id":  "a", '),
    "compact": spelled(b'{"id":"a",'),
    "no id": infer(),
}


@pytest.mark.parametrize("case", IDS_OF_PYTHON)
def test_however_an_id_is_written_the_answer_is_pythons(case: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        data = IDS_OF_PYTHON[case]
        first = await fronts.both(data)
        assert await fronts.both(data) == await fronts.both(data) == first

    run(test)


def test_no_other_json_has_the_key_of_one_with_an_id() -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        data, size = body(request_id="any")
        at = len(b'{"id":"any",')
        for begin in (b"", b" ", b'{"id": "any",{', b'{"id": "any"', b'{"id":"any" ,'):
            answer = await fronts.both(post(begin + data[at:], size - at + len(begin)))
            assert (b"200 OK" in answer) == (begin == b'{"id":"any" ,')

    run(test)


OTHERS: dict[str, bytes] = {
    "batch": infer([[1, 2, 3, 4]] * 2, [[5, 99]] * 2, request_id="any"),
    "parameter": infer(request_id="any", parameters={"note": 1}),
    "model": infer(request_id="any", path="/v2/models/one/infer"),
    "version": infer(request_id="any", path="/v2/models/sums/versions/1/infer"),
    "outputs": infer(request_id="any", outputs=["ids_sum", "sum"]),
    "one output": infer(request_id="any", outputs=["ids_sum"]),
    "escaped path": infer(request_id="any", path="/v2/models/su%6ds/infer"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_head_is_another_plan(case: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        client, other = await fronts.client(), OTHERS[case]
        await fronts.learn(client, PLAIN)
        expected = await fronts.learn(client, other)
        assert await fronts.both(other) == expected
        await fronts.both(PLAIN)
        assert fronts.scripted.count == 2

    run(test)


def test_the_tenants_header_is_part_of_the_head() -> None:
    async def test(fronts: HttpFronts) -> None:
        fronts.scripted.automatic = False
        client, path = await fronts.client(), "/v2/models/shared/infer"
        for tenant in ("one", "two"):
            await fronts.learn(client, infer(path=path, headers=f"Veltair-Tenant: {tenant}\r\n"))
        for tenant, number in (("one", ONE), ("two", TWO)):
            client.send(infer(path=path, headers=f"VELTAIR-TENANT:\t{tenant} \r\n"))
            held = await fronts.scripted.next()
            assert held.message.tenant == number
            fronts.scripted.end(held)
            assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
        for wrong in ("", "Veltair-Tenant: three\r\n", "Veltair-Tenant: sums\r\n"):
            assert (await fronts.both(infer(path=path, headers=wrong))).startswith(b"HTTP/1.1 404 ")

    run(test)


FORWARDED: dict[str, bytes] = {
    "JSON data": infer(request_id="any", binary=False),
    "JSON output": post(*(lambda data, size: (data.replace(b"true", b"null", 1), size))(*body())),
    "coding": infer(request_id="any", headers="Content-Encoding: identity\r\n"),
    "gzip wanted": infer(request_id="any", headers="Accept-Encoding: gzip\r\n"),
    "expectation": infer(request_id="any", headers="Expect: 200-ok\r\n"),
    "query": infer(request_id="any", path=INFER + "?a=b"),
    "trace": infer(request_id="any", parameters={"veltair_trace": True}),
    "length twice": infer(request_id="any", headers="Inference-Header-Content-Length: 9\r\n"),
    "id out of range": infer(ids=[[5, 100]], request_id="any"),
    "no body": post(b"", 0),
    "JSON longer than the body": post(b"{}", 3),
    "a tensor too short": post(body()[0][:-1], body()[1]),
    "a tensor too long": post(body()[0] + b"1", body()[1]),
}


@pytest.mark.parametrize("case", FORWARDED)
def test_peculiar_requests_are_pythons(case: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        for _ in range(2):
            native, python = await fronts.client(), await fronts.client(python=True)
            traced = case == "trace"  # which has times
            found, expected = await native.ask(FORWARDED[case]), await python.ask(FORWARDED[case])
            assert found[:15] == expected[:15] if traced else found == expected
        assert fronts.scripted.count == 0

    run(test)


def strings(text: list[bytes], more: list[int]) -> bytes:
    inputs = []
    for name, values, datatype in (("text", text, "BYTES"), ("more", more, "INT64"), ("name", [b"n"] * 3, "BYTES")):
        array = np.array(values, object if datatype == "BYTES" else np.int64).reshape(3, 1)
        inputs.append(triton.InferInput(name, [3, 1], datatype))
        inputs[-1].set_data_from_numpy(array)
    return post(*triton.InferenceServerClient.generate_request_body(inputs), path="/v2/models/words/infer")


def test_strings() -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), strings([b"a", b"", b"bc"], [1, 2, 3]))
        answer = await fronts.both(strings([b"", b"xyz", b""], [10, 20, 30]))
        assert answer.endswith(np.array([10, 23, 30]).tobytes())
        assert fronts.scripted.count == 1

    run(test)


@pytest.mark.parametrize("coding", ["gzip, deflate", "identity", "br"])
def test_codings_that_change_nothing(coding: str) -> None:
    async def test(fronts: HttpFronts) -> None:
        await fronts.learn(await fronts.client(), PLAIN)
        await fronts.both(infer(request_id="any", headers=f"Accept-Encoding: {coding}\r\n"))
        assert fronts.scripted.count == 1

    run(test)
