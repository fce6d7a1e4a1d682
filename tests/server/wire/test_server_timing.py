"""Server-Timing over gRPC: trailing metadata of an answer, from I/O threads as from Python."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import grpc
from native_front import INFER, Fronts, encoded, run


async def server_timing(channel: Any, data: bytes, path: str = INFER) -> str | None:
    """What the trailing metadata of a call say of its times."""
    call = channel.unary_unary(path)(data)
    with suppress(grpc.aio.AioRpcError):
        await call
    found = dict(await call.trailing_metadata() or ()).get("server-timing")
    return None if found is None else str(found)


def test_an_answer_has_the_times_of_its_own_query_whoever_gives_it() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        told = [await server_timing(channel, encoded()), await server_timing(fronts.channel(python=True), encoded())]
        assert all(re.fullmatch(r"queue;dur=\d+\.\d{3}, compute;dur=2\.000", each or "") for each in told), told
        asked = fronts.asked_python
        assert await server_timing(channel, encoded()) == "queue;dur=0.003, compute;dur=0.002"  # the scripted engine's
        assert fronts.asked_python == asked == 2
        for client in (channel, fronts.channel(python=True)):
            assert await server_timing(client, encoded(model="none")) is None
            assert await server_timing(client, b"", "/inference.GRPCInferenceService/ServerLive") is None

    run(body)
