"""Damaged and odd requests: the native front and Python's answer the same, byte for byte.

The native front knows plans of the requests that the odd ones are made of, so that many of them nearly fit one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from native_front import WAIT_S, Answer, Fronts, ask, encoded, fronts, request
from tritonclient.grpc import service_pb2 as pb

HUGE = [0x7F, 0x80, 0x3FFF, 1 << 14, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 35, (1 << 64) - 1]
CODES = [1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 2047, (1 << 29) - 1]  # of fields, known and not
Fields = tuple[bytes, ...]


def varint(value: int, spare: int = 0) -> bytes:
    """A number, with `spare` bytes more than it needs."""
    data = bytearray()
    while value >= 0x80 or spare:
        data.append(value & 0x7F | 0x80)
        spare -= value < 0x80
        value >>= 7
    return bytes([*data, value])


def field(number: int, payload: bytes, size: int | None = None, spare: int = 0) -> bytes:
    """A length-delimited field, which may lie about its length."""
    return varint(number << 3 | 2) + varint(len(payload) if size is None else size, spare) + payload


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields_of(data: bytes) -> Fields:
    """The fields of a valid message, which are all length-delimited."""
    found, at = [], 0
    while at < len(data):
        _, behind = read_varint(data, at)
        size, behind = read_varint(data, behind)
        found.append(data[at : behind + size])
        at = behind + size
    return tuple(found)


KNOWN = [
    encoded(),
    encoded(id="abc"),
    encoded([[1, 2, 3, 4]] * 2, [[1, 2]] * 2, id="abc"),
    encoded(id="abc", outputs=["ids_sum"]),
    encoded(id="abc", parameters={"timeout": {"int64_param": "50000000"}}),
    encoded(model="one", id="abc"),
    encoded(id="abc", modelVersion="1"),
]
PARTS = sorted({part for known in KNOWN for part in fields_of(known)})
ODD = st.one_of(
    st.builds(field, st.sampled_from(CODES), st.binary(max_size=40)),
    st.builds(field, st.sampled_from(CODES), st.binary(max_size=4), st.sampled_from(HUGE)),
    st.builds(field, st.just(7), st.sampled_from([bytes(16), bytes(15), bytes(17), b""])),
    st.builds(
        field, st.sampled_from([1, 3, 7]), st.sampled_from([b"sums", b"", bytes(16)]), st.none(), st.integers(0, 9)
    ),
    st.builds(field, st.just(3), st.text(max_size=4).map(lambda text: text.encode(errors="surrogatepass"))),
    st.builds(lambda number, value: varint(number << 3) + varint(value), st.sampled_from(CODES), st.sampled_from(HUGE)),
    st.builds(lambda number, data: varint(number << 3 | 5) + data, st.sampled_from(CODES), st.binary(max_size=5)),
    st.sampled_from([b"\x1a\x00", b"\x9a\x00\x01a", b"\x1a\x81\x00b", b"\x02\x00", b"\x3a", b"\x1b\x1c", b"\x07"]),
    st.sampled_from(PARTS),
)


@st.composite
def messages(draw: Any) -> bytes:
    """A known request with a few changes to its fields, and perhaps to its bytes."""
    parts = list(fields_of(draw(st.sampled_from(KNOWN))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(parts)))
        change = draw(st.sampled_from(["insert", "drop", "repeat", "move", "replace", "spare"]))
        if change == "insert":
            parts.insert(at, draw(ODD))
        elif parts:
            at = min(at, len(parts) - 1)
            if change == "drop":
                del parts[at]
            elif change == "repeat":
                parts.insert(draw(st.integers(0, len(parts))), parts[at])
            elif change == "move":
                parts.insert(draw(st.integers(0, len(parts) - 1)), parts.pop(at))
            elif change == "replace":
                parts[at] = draw(ODD)
            elif change == "spare":
                parts[at] = widened(parts[at], draw(st.integers(1, 10)))
    data = bytearray(b"".join(parts))
    kind = draw(st.sampled_from(["whole", "whole", "cut", "bytes"]))
    if kind == "cut":
        del data[draw(st.integers(0, len(data))) :]
    elif kind == "bytes" and data:
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 2, 0x1A, 0x3A, 0x7F, 0x80, 0xFF]))
    return bytes(data)


def widened(part: bytes, spare: int) -> bytes:
    """A field whose length takes more bytes than it has to."""
    try:
        tag, at = read_varint(part, 0)
        size, at = read_varint(part, at)
    except IndexError:
        return part
    return varint(tag) + varint(size, spare) + part[at:]


class BothFronts:
    """Both fronts on a loop that lives as long as a module's tests, which run it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = fronts()
        self.fronts: Fronts = self.loop.run_until_complete(self._context.__aenter__())

    async def answers(self, data: bytes) -> tuple[Answer, Answer, Answer]:
        """Of the native front, again, and of Python's. Plans of the known requests are there each time."""
        native, python = self.channels
        async with asyncio.timeout(WAIT_S):
            self.fronts.threads.clear_plans()
            for known in KNOWN:
                await ask(native, known)
            return await ask(native, data), await ask(native, data), await ask(python, data)

    def start(self) -> None:
        async def channels() -> tuple[Any, Any]:
            return self.fronts.channel(), self.fronts.channel(python=True)

        self.channels = self.loop.run_until_complete(channels())

    def close(self) -> None:
        self.loop.run_until_complete(self._context.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def both() -> Iterator[BothFronts]:
    made = BothFronts()
    made.start()
    yield made
    made.close()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=messages())
def test_both_fronts_answer_the_same(both: BothFronts, data: bytes) -> None:
    first, second, python = both.loop.run_until_complete(both.answers(data))
    assert first == python
    assert second == python


def odd(change: Callable[[list[bytes]], None]) -> bytes:
    parts = list(fields_of(encoded(id="abc")))
    change(parts)
    return b"".join(parts)


EXAMPLES = {
    "an empty id": odd(lambda parts: parts.__setitem__(1, field(3, b""))),
    "an empty id ahead of another": odd(lambda parts: parts.insert(1, field(3, b""))),
    "two ids": odd(lambda parts: parts.insert(1, field(3, b"b"))),
    "an id whose length has a spare byte": odd(lambda parts: parts.__setitem__(1, field(3, b"abc", None, 1))),
    "an id with a tag of two bytes": odd(lambda parts: parts.__setitem__(1, b"\x9a\x00\x03abc")),
    "an id at the end of the head": odd(lambda parts: parts.insert(3, parts.pop(1))),
    "an id behind the tensors": odd(lambda parts: parts.append(parts.pop(1))),
    "an id between the tensors": odd(lambda parts: parts.insert(4, parts.pop(1))),
    "a tensor first": odd(lambda parts: parts.insert(0, parts.pop(4))),
    "an unknown field": odd(lambda parts: parts.insert(2, field(15, b"abc"))),
    "an unknown group": odd(lambda parts: parts.insert(2, b"\x7b\x7c")),
    "field number 0": odd(lambda parts: parts.insert(2, b"\x02\x00")),
    "a tensor's length of five bytes": odd(lambda parts: parts.__setitem__(4, field(7, parts[4][2:], None, 4))),
    "a tensor's length of eleven bytes": odd(lambda parts: parts.__setitem__(4, field(7, parts[4][2:], None, 10))),
    "a tensor that is longer than the message": odd(lambda parts: parts.__setitem__(5, field(7, bytes(16), 17))),
    "a model that is no text": odd(lambda parts: parts.__setitem__(0, field(1, b"\xff"))),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_examples(both: BothFronts, case: str) -> None:
    first, second, python = both.loop.run_until_complete(both.answers(EXAMPLES[case]))
    assert first == python
    assert second == python


def test_the_known_requests_have_plans(both: BothFronts) -> None:
    """Without them the others would compare Python with itself."""
    for data in KNOWN:
        before = both.fronts.scripted.count
        both.loop.run_until_complete(both.answers(data))
        assert both.fronts.scripted.count >= before + 2
    assert fields_of(encoded()) == fields_of(request().SerializeToString())
    assert b"".join(fields_of(KNOWN[4])) == KNOWN[4]
    assert pb.ModelInferRequest.FromString(widened(field(3, b"a"), 3)).id == "a"
