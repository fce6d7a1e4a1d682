"""The connection against `h2`, and the header compression against `hpack`: in both directions, in Python and in C.

Both are implementations by others. What one side sends the other must understand, whatever the frames are cut into.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack as hpack_oracle
import pytest
from http2_ends import Call, End, Event, PythonEnd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_end import NativeDecoder, NativeEnd, native_encode

from veltair.grpc.http2 import frames, hpack
from veltair.grpc.http2.hpack import Field

Implementation: TypeAlias = type[PythonEnd] | type[NativeEnd]
implementations = pytest.mark.parametrize("implementation", [PythonEnd, NativeEnd], ids=["python", "native"])
sessions = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t/echo"),
    (":authority", "a"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
STATUS = [(":status", "200"), ("content-type", "application/grpc")]
SIZES = [0, 1, 100, 16_379, 16_384, 70_000, 300_000]


def framed(message: bytes) -> bytes:
    return frames.message_prefix(len(message)) + message


def echo(call: Call, event: Event) -> None:
    """Answers each message as it comes; the end with trailers."""
    if event[0] == "message":
        if len(call.of_kind("message")) == 1:
            call.headers(STATUS)
        call.data(framed(event[1]))
    elif event[0] == "end":
        if not call.of_kind("message"):
            call.headers(STATUS)
        call.headers([("grpc-status", "0"), ("note", "x" * 200)], end=True)


def ignore(call: Call, event: Event) -> None: ...


class Oracle:
    """An `h2` connection that gives windows back as it reads, keeps what came, and sends as windows allow.

    Its windows are no smaller than 3 KB: a peer that lets far less through is cut off (test_strictness.py).
    """

    def __init__(self, chance: random.Random, *, client: bool) -> None:
        self.chance = chance
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding=None))
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=client,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: chance.choice([3_000, 65_535, 1 << 20]),
                codes.MAX_FRAME_SIZE: chance.choice([1 << 14, 1 << 17]),
                codes.HEADER_TABLE_SIZE: chance.choice([0, 100, 4096, 65_536]),
                codes.MAX_CONCURRENT_STREAMS: 100,
                codes.ENABLE_PUSH: 0,
            },
        )
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.h2.initiate_connection()
        self.waiting: dict[int, bytes] = {}  # bytes to send on each stream, of which the last one ends it
        self.trailers: dict[int, list[Field]] = {}
        self.got: dict[int, bytearray] = {}
        self.fields: dict[int, list[list[Field]]] = {}
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.pongs = 0

    def receive(self, data: bytes) -> list[Any]:
        events = self.h2.receive_data(data)
        for event in events:
            number = getattr(event, "stream_id", None)
            if isinstance(event, h2.events.DataReceived):
                self.got.setdefault(number, bytearray()).extend(event.data)
                if event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            elif isinstance(event, h2.events.ResponseReceived | h2.events.RequestReceived | h2.events.TrailersReceived):
                texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers]
                self.fields.setdefault(number, []).append(texts)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(number)
            elif isinstance(event, h2.events.StreamReset):
                self.reset[number] = int(event.error_code)
                self.waiting.pop(number, None)
            elif isinstance(event, h2.events.PingAckReceived):
                self.pongs += 1
        return events

    def refill(self) -> None:
        """Open the windows that a change of settings has made negative: h2 leaves them so until more data comes."""
        for number in self.fields.keys() - self.ended - self.reset.keys():
            room = self.h2.remote_flow_control_window(number)
            if room <= 0:
                self.h2.increment_flow_control_window(3_000 - room, number)

    def send_some(self) -> None:
        """Data as windows allow, in frames of chance sizes, some with padding; then the end, perhaps with trailers."""
        for number, data in list(self.waiting.items()):
            while data:
                padding = self.chance.choice([None, None, 0, 7])
                room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
                room -= 0 if padding is None else padding + 1
                size = min(len(data), room, self.chance.choice([1, 5, 1000, 1 << 20]) if len(data) < 5000 else 1 << 20)
                if size <= 0:
                    break
                self.h2.send_data(number, data[:size], pad_length=padding)
                data = data[size:]
            self.waiting[number] = data
            if not data:
                del self.waiting[number]
                if fields := self.trailers.get(number):
                    self.h2.send_headers(number, fields, end_stream=True)
                else:
                    self.h2.end_stream(number)


def exchange(oracle: Oracle, end: End, most: int) -> None:
    """Until neither side has more to say."""
    quiet = False
    while not quiet:
        oracle.send_some()
        oracle.refill()
        sent, answered = oracle.h2.data_to_send(), end.take()
        quiet = not sent and not answered
        end.feed(sent, most)
        oracle.receive(answered)
    assert not end.failed


seeds = st.integers(0, 1 << 32)


@implementations
@sessions
@given(seeds)
def test_h2_asks_our_server(implementation: Implementation, seed: int) -> None:
    chance = random.Random(seed)
    server, client = implementation(True, echo), Oracle(chance, client=True)
    most = chance.choice([7, 1000, 1 << 20])
    sizes = SIZES[:4] if most == 7 else SIZES
    sent, cancelled, pings = {}, set(), 0
    for _ in range(chance.randrange(1, 8)):
        number = client.h2.get_next_available_stream_id()
        messages = [chance.randbytes(chance.choice(sizes)) for _ in range(chance.randrange(3))]
        fields = [*HEAD, ("k", "v" * chance.choice([0, 40, 500])), ("authorization", "secret")]
        priority = {"priority_weight": 7, "priority_depends_on": 0, "priority_exclusive": True}
        client.h2.send_headers(number, fields, **(priority if chance.random() < 0.3 else {}))
        sent[number] = messages
        client.waiting[number] = b"".join(map(framed, messages))
        if chance.random() < 0.3:
            client.trailers[number] = [("after", "all")]
        step = chance.randrange(6)
        if step == 0:
            client.h2.ping(b"12345678")
            pings += 1
        elif step == 1:
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: chance.choice([3_000, 100_000])})
        elif step == 2:
            client.h2.prioritize(number, weight=3, depends_on=0)
        elif step == 3:
            client.h2.reset_stream(number, frames.CANCEL)
            client.waiting.pop(number)
            cancelled.add(number)
        if chance.random() < 0.5:
            exchange(client, server, most)
    exchange(client, server, most)
    for number, messages in sent.items():
        if number in cancelled:
            continue
        assert bytes(client.got.get(number, b"")) == b"".join(map(framed, messages))
        assert client.fields[number] == [STATUS, [("grpc-status", "0"), ("note", "x" * 200)]]
        assert number in client.ended
    assert not server.streams and not client.reset
    assert client.pongs == pings


@implementations
@sessions
@given(seeds)
def test_our_client_asks_an_h2_server(implementation: Implementation, seed: int) -> None:
    chance = random.Random(seed)
    client, server = implementation(False, ignore), Oracle(chance, client=False)
    most = chance.choice([7, 1000, 1 << 20])
    sizes = SIZES[:4] if most == 7 else SIZES
    exchange(server, client, most)
    sent: dict[int, list[bytes]] = {}
    refused, pings = set(), 0
    for _ in range(chance.randrange(1, 8)):
        call = client.open()
        messages = [chance.randbytes(chance.choice(sizes)) for _ in range(chance.randrange(3))]
        call.headers([*HEAD, ("k", "v" * chance.choice([0, 40, 500]))])
        for message in messages:
            call.data(framed(message))
        call.data(b"", end=True)
        sent[call.number] = messages
        if chance.random() < 0.5:
            exchange(server, client, most)
        if chance.random() < 0.2:
            server.h2.ping(b"12345678")
            pings += 1
        if chance.random() < 0.2:
            server.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: chance.choice([3_000, 100_000])})
    exchange(server, client, most)
    for number, messages in sent.items():
        assert bytes(server.got.get(number, b"")) == b"".join(map(framed, messages))
        assert server.fields[number][0][: len(HEAD)] == HEAD
        assert number in server.ended
        if chance.random() < 0.2:
            server.h2.reset_stream(number, frames.REFUSED_STREAM)
            refused.add(number)
            continue
        server.h2.send_headers(number, STATUS)
        server.waiting[number] = bytes(server.got.get(number, b""))
        server.trailers[number] = [("grpc-status", "0"), ("secret", "s" * chance.choice([0, 300]))]
    exchange(server, client, most)
    for call in client.calls:
        if call.number in refused:
            assert call.of_kind("aborted") == [frames.REFUSED_STREAM]
            continue
        assert [event[1] for event in call.events if event[0] == "message"] == sent[call.number]
        assert call.of_kind("headers") == [STATUS, server.trailers[call.number]]
        assert call.closed
    assert not client.streams
    assert server.pongs == pings


texts = st.text(st.characters(max_codepoint=255), max_size=60)
names = st.sampled_from([":path", ":method", "content-type", "te", "k", "cookie", "authorization"]) | texts.filter(bool)
lists = st.lists(st.tuples(names, st.sampled_from(["POST", "/", "", "trailers"]) | texts), max_size=8)


@given(
    st.lists(st.tuples(lists, st.booleans(), st.sampled_from([None, 0, 60, 1000, 4096])), max_size=6),
    st.sets(st.sampled_from(["authorization", "k"])),
)
def test_our_decoders_read_what_hpack_writes(
    blocks: list[tuple[list[Field], bool, int | None]], secret: set[str]
) -> None:
    """With fields that it keeps and finds again, that it never keeps, packed or not, and tables of several sizes."""
    encoder, decoders = hpack_oracle.Encoder(), (hpack.Decoder(), NativeDecoder())
    for fields, packed, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        written = [(name.encode("latin-1"), value.encode("latin-1"), name in secret) for name, value in fields]
        block = encoder.encode(written, huffman=packed)
        assert [decoder.decode(block) for decoder in decoders] == [fields, fields]


@given(st.lists(lists, max_size=5))
def test_hpack_reads_what_our_encoders_write(blocks: list[list[Field]]) -> None:
    decoder = hpack_oracle.Decoder()
    for fields in blocks:
        block = hpack.encode(fields)
        assert block == native_encode(fields)
        found = decoder.decode(block, raw=True)
        assert [(name.decode("latin-1"), value.decode("latin-1")) for name, value in found] == fields


@given(st.binary(max_size=60))
def test_what_our_decoders_take_hpack_takes_as_the_same(block: bytes) -> None:
    """They may refuse more: numbers of more digits than any length needs."""
    decoder = hpack_oracle.Decoder()
    decoder.max_allowed_table_size = hpack.TABLE_BYTES
    try:
        found = hpack.Decoder().decode(block)
    except hpack.HeaderError:
        with pytest.raises(hpack.HeaderError):
            NativeDecoder().decode(block)
        return
    assert NativeDecoder().decode(block) == found
    expected = decoder.decode(block, raw=True)
    assert [(name.decode("latin-1"), value.decode("latin-1")) for name, value in expected] == found
