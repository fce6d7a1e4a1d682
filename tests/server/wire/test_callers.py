"""A plan is for the caller by whose request it was learnt, in C as in Python."""

from __future__ import annotations

import hashlib

import grpc
from native_front import Fronts, ask, encoded
from native_front import run as run_grpc
from native_http import HttpFronts, infer
from native_http import run as run_http

from veltair.access_config import ClientConfig


def known(name: str, *tenants: str) -> ClientConfig:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ClientConfig(name=name, token_sha256=(digest,), tenants=tenants or None)


CLIENTS = (known("all"), known("other"), known("elsewhere", "one"))


def test_over_grpc() -> None:
    async def test(fronts: Fronts) -> None:
        data, channel = encoded(), fronts.channel()

        async def shows(*fields: tuple[str, str]) -> grpc.StatusCode:
            return (await ask(channel, data, metadata=fields)).code

        await fronts.learn(channel, data, metadata=[("authorization", "Bearer all")])
        asked = fronts.asked_python
        assert await shows(("authorization", "Bearer all")) is grpc.StatusCode.OK
        assert fronts.asked_python == asked
        assert await shows() is grpc.StatusCode.UNAUTHENTICATED
        assert await shows(("authorization", "Bearer al")) is grpc.StatusCode.UNAUTHENTICATED
        assert await shows(("authorization", "Bearer elsewhere")) is grpc.StatusCode.NOT_FOUND
        assert fronts.asked_python == asked
        twice = [
            (("authorization", "Bearer all"),) * 2,
            (("authorization", "Bearer all"), *[("veltair-tenant", "sums")] * 2),
        ]
        assert await shows(*twice[0]) is grpc.StatusCode.UNAUTHENTICATED
        assert await shows(*twice[1]) is grpc.StatusCode.INVALID_ARGUMENT
        asked = fronts.asked_python
        assert await shows(("authorization", "Bearer other")) is grpc.StatusCode.OK
        assert fronts.asked_python == asked + 1  # which has a plan of its own from here on
        assert await shows(("authorization", "Bearer other")) is grpc.StatusCode.OK
        assert fronts.asked_python == asked + 1

    run_grpc(test, clients=CLIENTS)


def test_over_http() -> None:
    async def test(fronts: HttpFronts) -> None:
        async def shows(*lines: str) -> int:
            answer = await (await fronts.client()).ask(infer(headers="".join(f"{line}\r\n" for line in lines)))
            return int(answer.split()[1])

        mine, python = "Authorization: Bearer all", fronts.fronts
        await fronts.learn(await fronts.client(), infer(headers=mine + "\r\n"))
        asked = python.asked_python
        assert await shows(mine) == 200
        assert python.asked_python == asked
        assert await shows() == await shows("Authorization: Bearer al") == await shows(mine, mine) == 401
        for name in ("Veltair-Tenant: sums", "Inference-Header-Content-Length: 1"):
            assert await shows(mine, name, name) == 400
        asked = python.asked_python
        assert await shows("Authorization: Bearer elsewhere") == 404
        assert python.asked_python == asked
        assert await shows("Authorization: Bearer other") == 200
        assert python.asked_python == asked + 1
        assert await shows("authorization:   Bearer other ") == 200
        assert python.asked_python == asked + 1

    run_http(test, clients=CLIENTS)


def test_a_plan_without_a_caller_serves_nobody_once_callers_are_named() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        fronts.fronts.access.replace(())  # what a reload does; the threads are told a moment later
        await fronts.learn(client, infer())
        fronts.fronts.access.replace(CLIENTS)
        assert (await client.ask(infer())).split()[1] == b"401"

    run_http(test, clients=CLIENTS)


def test_what_is_learnt_of_a_withdrawn_token_is_no_plan() -> None:
    async def test(fronts: HttpFronts) -> None:
        client, mine = await fronts.client(), infer(headers="Authorization: Bearer all\r\n")
        learner = fronts.fronts
        kept = learner.access.knows
        learner.access.knows = lambda who: False  # type: ignore[method-assign]  # a reload has come between
        await fronts.learn(client, mine)
        learner.access.knows = kept  # type: ignore[method-assign]
        await fronts.learn(client, mine)  # Python is asked once more

    run_http(test, clients=CLIENTS)
