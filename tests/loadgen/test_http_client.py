"""The parser of HTTP answers, fed byte by byte; what a real server provokes is in test_clients."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.loadgen.http_client import BrokenResponseError, HttpConnection, parse_head


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.aborted = b"", False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True


def exchange(answer: bytes, cuts: list[int]) -> tuple[int, bytes]:
    """What a connection makes of an answer that comes cut into pieces."""

    async def play() -> tuple[int, bytes]:
        connection = HttpConnection()
        connection.connection_made(Pipe())
        future = connection.exchange(b"request", keep_body=True)
        edges = [0, *sorted(cut % (len(answer) + 1) for cut in cuts), len(answer)]
        for start, stop in pairwise(edges):
            if start < stop:
                connection.data_received(answer[start:stop])
        connection.connection_lost(None)
        return await future

    return asyncio.run(play())


@given(body=st.binary(max_size=300), cuts=st.lists(st.integers(0, 1000), max_size=12))
def test_an_answer_is_the_same_however_it_is_cut(body, cuts):
    answer = b"HTTP/1.1 503 Service Unavailable\r\nserver: x\r\nContent-LENGTH: %d\r\n\r\n%b" % (len(body), body)
    assert exchange(answer, cuts) == (503, body)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 1000), max_size=5))
def test_no_bytes_do_more_than_break_the_answer(data, cuts):
    with pytest.raises(BrokenResponseError):
        exchange(data, cuts)


@given(cut=st.integers(0, 10_000))
def test_a_truncated_answer_is_broken(cut):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + bytes(20)
    with pytest.raises(BrokenResponseError, match="connection closed"):
        exchange(answer[: cut % len(answer)], [])


@given(head=st.binary(max_size=100))
def test_a_head_is_parsed_or_broken(head):
    for candidate in (head, b"HTTP/1.1 200 OK\r\n" + head, b"HTTP/1.1 200 OK\r\nContent-Length:" + head):
        try:
            status, length, _ = parse_head(candidate)
        except BrokenResponseError:
            continue
        assert 0 <= status <= 999 and length >= 0


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 7", (200, 7, True)),
        (b"HTTP/1.1 200\r\nContent-Length:0\r\nConnection: Close", (200, 0, False)),
        (b"HTTP/1.0 404 Not Found\r\nContent-Length: 3", (404, 3, False)),
        (b"HTTP/1.1 204 No Content", (204, 0, True)),
    ],
)
def test_heads(head, expected):
    assert parse_head(head) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 1",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3",
    ],
)
def test_broken_heads(head):
    with pytest.raises(BrokenResponseError):
        parse_head(head)


def test_bytes_that_nobody_asked_for_end_the_connection():
    async def play() -> bool:
        connection, pipe = HttpConnection(), Pipe()
        connection.connection_made(pipe)
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
        return pipe.aborted and not connection.usable

    assert asyncio.run(play())


@pytest.mark.parametrize(("header", "usable"), [(b"", True), (b"Connection: close\r\n", False)])
def test_a_connection_that_the_server_will_close_is_not_used_again(header, usable):
    async def play() -> bool:
        connection = HttpConnection()
        connection.connection_made(Pipe())
        answer = connection.exchange(b"request")
        connection.data_received(b"HTTP/1.1 200 OK\r\n" + header + b"Content-Length: 2\r\n\r\nok")
        assert await answer == (200, b"")  # a good answer's body is not kept
        return connection.usable

    assert asyncio.run(play()) is usable
