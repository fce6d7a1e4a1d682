"""A connection that the server ends while its client still sends: the last answer arrives before any reset."""

from __future__ import annotations

import pytest
from native_http import GET, HttpFronts, run

from veltair.config import LimitsConfig

PART = bytes(1 << 16)
PARTS = 64  # far more than a socket of the server holds unread
TOO_LARGE = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n"
LONG_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-Y: zzzzzzzz\r\n" * 100
ENDED = {"a body that is too large": (TOO_LARGE, b"413"), "a head that is too large": (LONG_HEAD, b"431")}


@pytest.mark.parametrize("case", ENDED)
def test_a_client_that_goes_on_sending_reads_its_answer(case: str) -> None:
    begun, status = ENDED[case]

    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        client.send(begun)
        for _ in range(PARTS):
            client.send(PART)
            await client.writer.drain()
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b'{"error":' in answer
        client.send(PART)  # behind the end, and still not reset
        await client.writer.drain()
        await client.close()
        assert (await (await fronts.client()).ask(GET)).startswith(b"HTTP/1.1 200 ")

    run(test, limits=LimitsConfig(header_bytes=1024))


def test_a_client_that_never_stops_is_reset_in_the_end() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        client.send(TOO_LARGE)
        assert (await client.rest()).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(ConnectionError):
            while True:
                client.send(PART)
                await client.writer.drain()

    run(test)
