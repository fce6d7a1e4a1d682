"""Length-prefixed strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.errors import RequestError
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol import length_prefixed


@given(st.binary(max_size=40), st.integers(0, 6))
def test_any_bytes_are_so_many_strings_or_refused(data: bytes, count: int) -> None:
    found, at = [], 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at == len(data) and len(found) == count:
        strings = length_prefixed.decode("x", data, count)
        assert strings.checked("x", count).tolist() == found
        assert strings.data.size == strings.size  # not a byte beyond the last string
        assert bytes(length_prefixed.encode(strings)) == data
    else:
        with pytest.raises(RequestError, match=r"^x: "):
            length_prefixed.decode("x", data, count)


def test_a_made_up_count_takes_no_memory() -> None:
    with pytest.raises(RequestError, match="strings take at least"):
        length_prefixed.decode("x", b"\0\0\0\0", 1 << 62)


def test_large_ones() -> None:
    for items in ([b"x" * 10_000_000], [b""] * 1_000_000, [b";" * 1_000_000, b"end"]):
        strings = Strings.from_values(items)
        assert length_prefixed.decode("x", length_prefixed.encode(strings), len(items)).tolist() == items
