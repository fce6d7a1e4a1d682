"""Strings in requests with a plan: they arrive as Python puts them, and what does not fit is Python's to refuse."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_front import Fronts, ask, run
from scripted_engine import MAX_TEXT, WORDS_TENANT
from tritonclient.grpc import service_pb2 as pb

ROWS = 3


def raw(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def query(text: bytes, name: bytes, more: Any = (1, 2, 3)) -> bytes:
    message = pb.ModelInferRequest(model_name="words", id="any")
    tensors = (("name", "BYTES", name), ("more", "INT64", np.array(more).tobytes()), ("text", "BYTES", text))
    for tensor, datatype, data in tensors:
        message.inputs.add(name=tensor, datatype=datatype, shape=[ROWS, 1])
        message.raw_input_contents.append(data)
    encoded: bytes = message.SerializeToString()
    return encoded


GOOD = query(raw([b"a", b"", b"bc"]), raw([b"", b"d", b""]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ([b"a", b"", b"bc"], [b"", b"", b""]),
        ([b"", b"", b""], [b"\0", b"\xff\xfe", b"xyz"]),
        ([b"x" * MAX_TEXT * ROWS, b"", b""], [b"", b"", b"xxxxxx"]),  # all the room, in one row
    ],
)
def test_strings_lie_in_the_slot_as_python_puts_them(text: list[bytes], name: list[bytes]) -> None:
    async def body(fronts: Fronts) -> None:
        channel, data = fronts.channel(), query(raw(text), raw(name), [-1, 1 << 40, 0])
        await fronts.learn(channel, GOOD)
        asked = asyncio.create_task(ask(channel, data))
        held = await fronts.scripted.next()
        assert held.message.tenant == WORDS_TENANT
        found = {slot.port.name: slot for slot in fronts.scripted.slots(held)}
        assert found["text"].strings().tolist() == text and found["name"].strings().tolist() == name
        assert found["more"].values.tolist() == [[-1], [1 << 40], [0]]
        fronts.scripted.end(held)
        assert await asked == await ask(fronts.channel(python=True), data)

    run(body, automatic=False)


STRINGS = st.lists(st.binary(max_size=4), min_size=ROWS, max_size=ROWS).map(raw)
DAMAGED = st.one_of(
    STRINGS,
    st.lists(st.binary(max_size=9), max_size=5).map(raw),
    st.builds(lambda data, at: data[: at % (len(data) + 1)], STRINGS, st.integers(0, 40)),
    st.builds(
        lambda data, size: struct.pack("<I", size) + data, STRINGS, st.sampled_from([0, 1, 12, 1 << 31, (1 << 32) - 1])
    ),
    st.builds(lambda data, tail: data + tail, STRINGS, st.binary(max_size=5)),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(DAMAGED, DAMAGED), min_size=20, max_size=40))
def test_damaged_strings_have_pythons_answer(tensors: list[tuple[bytes, bytes]]) -> None:
    async def body(fronts: Fronts) -> None:
        native, python = fronts.channel(), fronts.channel(python=True)
        await fronts.learn(native, GOOD)
        good = 0
        for text, name in tensors:
            expected = await ask(python, query(text, name))
            assert await ask(native, query(text, name)) == expected
            good += expected.code is grpc.StatusCode.OK
        assert fronts.scripted.count == good and fronts.scripted.link.taken == 0

    run(body)
