"""Header blocks from frames in any number of parts, and out of order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.grpc.http2 import frames
from veltair.grpc.http2.frames import ProtocolError
from veltair.grpc.http2.header_blocks import HeaderBlockReader
from veltair.grpc.http2.hpack import encode

FIELDS = [(":status", "200"), ("name", "value"), ("grpc-status", "0")]
BLOCK = encode(FIELDS)


@given(st.lists(st.integers(0, len(BLOCK)), max_size=4), st.booleans())
def test_blocks_in_parts(cuts: list[int], ends_stream: bool) -> None:
    reader, bounds = HeaderBlockReader(), [0, *sorted(cuts), len(BLOCK)]
    for last in range(2):  # the reader starts again with every block
        for i, (begin, end) in enumerate(pairwise(bounds)):
            kind = frames.CONTINUATION if i else frames.HEADERS
            complete = i == len(bounds) - 2
            flags = frames.END_HEADERS * complete | frames.END_STREAM * (ends_stream and not i)
            found = reader.add(kind, flags, 2 * last + 1, BLOCK[begin:end])
            assert found == ((FIELDS, ends_stream) if complete else None)
            assert reader.unfinished_stream == (None if complete else 2 * last + 1)


def test_a_continuation_of_nothing() -> None:
    with pytest.raises(ProtocolError, match="a continuation of nothing"):
        HeaderBlockReader().add(frames.CONTINUATION, 0, 1, b"")
